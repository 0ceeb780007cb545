from __future__ import annotations

import hashlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import queen
import queen.bundle.store
from queen import Guard, atomic, calibrate, protect
from queen.bundle.calibration import Calibration
from queen.bundle.store import FORMAT, MANIFEST, load_bundle, save_bundle
from queen.core.mapping import MapRecipe
from queen.errors import BundleError, BundleModelError, OptionError, PolicyError, RefusedError, SecretError
from queen.options import Group, Limits, Sentinel
from queen.secret import secret_path
from queen.zoo import build
from tests.support.bundles import read_manifest, sign_manifest
from tests.support.guards import (
    ALL_LETTERS,
    QUICK,
    SECRET,
    fitted,
    held_out,
    images,
    make_mlp,
    queries,
    train_set,
    trained,
)

FACTORY = "tests.support.guards:make_mlp"


def swap(folder: Path, kind: str, *, identify: bool = True, **tensors: Tensor) -> None:
    """Replace tensors in a weight file and make every checksum, and if asked the identity, right again."""
    content = read_manifest(folder)
    changed = safetensors.torch.load((folder / content["files"][kind]["name"]).read_bytes())
    changed |= {name.replace("__", "."): t for name, t in tensors.items()}
    data = safetensors.torch.save(changed)
    digest = hashlib.sha256(data).hexdigest()
    content["files"][kind] = {"name": f"{kind}-{digest[:16]}.safetensors", "sha256": digest}
    (folder / content["files"][kind]["name"]).write_bytes(data)
    if kind == "guard" and identify:
        identity = hashlib.sha256()
        for name, t in sorted((name, t) for name, t in changed.items() if not name.startswith("calibration.")):
            identity.update(f"{name} {tuple(t.shape)} {t.dtype}\0".encode())
            identity.update(t.flatten().view(torch.uint8).numpy().tobytes())
        content["identity"] = identity.hexdigest()
    sign_manifest(folder, content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fitted().save(tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def cnn_folder(tmp_path: Path) -> Path:
    fitted("network").save(tmp_path / "cnn")
    return tmp_path / "cnn"


def assert_same(one: Guard, two: Guard, x: Tensor) -> None:
    for policy in ("paper", "strict", "artifact"):
        a, b = (g.fresh(policy=policy).answer(x, client="a") for g in (one, two))
        assert a.verdicts == b.verdicts
        assert {v.value for v in a.verdicts} == set("ABCD")
        assert torch.equal(a.probabilities, b.probabilities)
    assert one.bundle.identity == two.bundle.identity


def assert_same_calibration(one: Calibration, two: Calibration) -> None:
    for a, b in ((one, two), (one.foreign, two.foreign)):
        assert set(vars(a)) == set(vars(b))
        for name, value in vars(a).items():
            other = getattr(b, name)
            same = torch.equal(value, other) if isinstance(value, Tensor) else name == "foreign" or value == other
            assert same, name


@pytest.mark.parametrize("kind", ["head", "network"])
def test_a_loaded_guard_answers_bit_for_bit_alike(kind, tmp_path):
    guard = fitted(kind)
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    assert_same(guard, loaded, queries(kind))
    for field in ("limits", "policy", "observe", "keep_label", "draw", "recipe", "class_names", "report", "sentinel"):
        assert getattr(loaded.bundle, field) == getattr(guard.bundle, field), field
    if kind == "head":
        assert_same_calibration(loaded.bundle.calibration, guard.bundle.calibration)
    else:
        assert loaded.bundle.calibration is guard.bundle.calibration is None
    loaded.save(tmp_path / "again")
    assert read_manifest(tmp_path / "again") == read_manifest(tmp_path / "b")


def test_a_channels_last_model_stays_one(tmp_path):
    x, y = train_set()
    model = trained("cnn").to(memory_format=torch.channels_last)
    guard = protect(model, (images(x), y), policy="paper", mapping=QUICK, limits=ALL_LETTERS, secret=SECRET)
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    strides = [p.stride() for p in model.parameters()]
    assert [p.stride() for p in loaded.bundle.split.model.parameters()] == strides
    assert read_manifest(tmp_path / "b")["model"]["channels_last"] is True
    assert_same(guard, loaded, queries("network"))


def test_all_options_survive(tmp_path):
    options = {"policy": "strict", "observe": True, "keep_label": True, "draw": 2}
    limits = Limits(radius=tuple(0.1 + 0.02 * k for k in range(10)), threshold=0.03)
    guard = fitted(limits=limits, **options)
    guard.save(tmp_path / "b")
    bundle = queen.load(tmp_path / "b").bundle
    assert {key: getattr(bundle, key) for key in options} == options
    assert bundle.limits == limits
    assert bundle.class_names == tuple(f"digit {k}" for k in range(10))
    assert bundle.name_of(3) == "digit 3"
    assert bundle.identity == fitted().bundle.identity


def test_the_sentinels_settings_survive_and_judge_alike(tmp_path):
    groups = {
        "tenant": Group(limits=Limits(radius=(0.3,) * 10, threshold=0.5, extra_answers=40), enforce_alarm=True),
        "everyone": Group(limits=Limits(extra_answers=90)),
    }
    settings = Sentinel(
        alpha=0.01, delta=0.1, scores=("confidence", "energy"), margin=0.125,
        on_alarm="label-only", on_spent="reverse", after_alarm=None, digits=2, groups=groups,
    )  # fmt: skip
    guard = fitted(policy="sentinel", sentinel=settings, limits=Limits(radius=0.2, threshold=0.02, extra_answers=99))
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    assert loaded.bundle.sentinel == settings
    assert loaded.bundle.limits.extra_answers == 99
    replies = []
    for g in (guard, loaded):
        with pytest.raises(RefusedError) as refusal:  # what groups have spent is refused, whatever on_spent says
            g.answer(queries(), client="a", groups=["tenant:7", "everyone"])
        replies.append(refusal.value.reply)
    one, two = replies
    assert one.verdicts == two.verdicts
    assert np.array_equal(one.refused, two.refused)
    assert torch.equal(one.probabilities, two.probabilities)
    assert guard.ledger.standings() == loaded.ledger.standings()
    assert guard.ledger.standing("a").wealth > 0


def test_a_calibration_under_conditions_survives(tmp_path):
    x, y = held_out()
    guard = protect(
        trained("cnn"), (images(train_set()[0]), train_set()[1]),
        mapping=QUICK, limits=ALL_LETTERS, secret=SECRET, calibration=(images(x), y),
        policy="paper", sentinel=Sentinel(scores=("knn",)),
    )  # fmt: skip
    guard = calibrate(
        guard,
        images(x),
        trusted={"a": images(x)[:50]},
        conditions=["blur", "noise:0.1"],
        start_over=True,
        progress=False,
    )
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b").bundle
    assert_same_calibration(loaded.calibration, guard.bundle.calibration)
    assert loaded.calibration.conditions == ("clean", "blur", "noise:0.1")
    assert loaded.calibration.account
    assert loaded.calibration.trusted.clients == 1
    assert loaded.test == guard.bundle.test
    assert loaded.alarm_after() == guard.bundle.alarm_after() == guard.report["alarm_after"]


def test_pixel_statistics_and_a_normalised_map_survive(tmp_path):
    x, y = train_set()
    recipe = MapRecipe(epochs=2, normalize=True, widths=(16, 8))
    guard = protect(
        trained("mlp"), (x, y), policy="paper", mapping=recipe, min_agreement=0, pixel_mean=[0.25], pixel_std=[0.5],
        factory=FACTORY, secret=SECRET, limits=ALL_LETTERS,
    )  # fmt: skip
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    assert (loaded.bundle.pixel_mean, loaded.bundle.pixel_std) == ((0.25,), (0.5,))
    assert loaded.bundle.mapping.normalize is True
    a, b = (g.answer(queries(), client="a") for g in (guard, loaded))
    assert a.verdicts == b.verdicts
    assert torch.equal(a.probabilities, b.probabilities)


@pytest.mark.parametrize(("version", "way_out"), [(2, "make it again with queen.protect"), (99, "update queen")])
def test_a_bundle_of_another_format_is_refused_with_the_way_out(folder, version, way_out):
    sign_manifest(folder, read_manifest(folder) | {"format": version})
    with pytest.raises(BundleError, match=f"has format {version}, this version reads {FORMAT}: {way_out}"):
        queen.load(folder)


def test_load_overrides_options(folder):
    limits = Limits(radius=0.5, threshold=1)
    bundle = queen.load(folder, policy="strict", observe=True, limits=limits, keep_label=True, draw=1).bundle
    found = (bundle.policy, bundle.observe, bundle.limits, bundle.keep_label, bundle.draw)
    assert found == ("strict", True, limits, True, 1)
    assert queen.load(folder).bundle.policy == "paper"


@pytest.mark.parametrize(
    ("options", "error"), [({"polisy": "strict"}, OptionError), ({"policy": "quen"}, PolicyError),
                           ({"draw": 99}, OptionError), ({"recipe": None}, OptionError)], ids=str)  # fmt: skip
def test_load_refuses_unknown_options(folder, options, error):
    with pytest.raises(error):
        queen.load(folder, **options)


@pytest.mark.parametrize("model", [make_mlp, FACTORY, "module", lambda: make_mlp().train()],
                         ids=["callable", "name", "module", "training"])  # fmt: skip
def test_the_model_may_be_given_in_any_form(folder, model):
    guard = queen.load(folder, make_mlp() if model == "module" else model)
    assert_same(fitted(), guard, queries())
    assert not guard.bundle.split.model.training


@pytest.fixture
def anonymous(tmp_path: Path) -> Path:
    """A bundle that does not say how to build its model."""
    guard = protect(trained("mlp"), train_set(), policy="paper", mapping=QUICK, limits=ALL_LETTERS, secret=SECRET)
    guard.save(tmp_path / "anonymous")
    return tmp_path / "anonymous"


def test_a_bundle_without_a_recipe_wants_a_model(anonymous):
    with pytest.raises(BundleModelError, match=r"queen.load\(path, model="):
        queen.load(anonymous)
    assert queen.load(anonymous, model=make_mlp).bundle.recipe is None


class OtherForward(nn.Sequential):
    """The same weights under the same names, used otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(1))


def failing(error: type[Exception]) -> type[nn.Module]:
    class Failing(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            raise error("not here")

    return Failing


WRONG_MODELS = {
    "other shapes": lambda: make_mlp(width=31),
    "other layers": lambda: build("small_cnn", classes=10),
    "one layer more": lambda: nn.Sequential(*make_mlp(), nn.Linear(10, 10)),
    "no layers": nn.Identity,
    "another forward pass": lambda: OtherForward(*make_mlp()),
    "another activation": lambda: nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 10)),
    "a softmax at the end": lambda: nn.Sequential(*make_mlp(), nn.Softmax(1)),
    "NaN": lambda: nn.Sequential(*make_mlp(), nn.Threshold(1e9, float("nan"))),
    "a number": lambda: 7,
    "nothing": lambda: None,
    "a name that cannot be imported": "nowhere.at.all:make",
    "a name without a function": "tests.support.guards",
    "a dangerous name": "os:system",
    "a function that is not its module's": "tests.support.guards:load_digits",
    "not callable": 3,
    **{f"a forward pass with {e.__name__}": (lambda e=e: failing(e)(*make_mlp()))
       for e in (RuntimeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)},
}  # fmt: skip


@pytest.mark.parametrize("model", WRONG_MODELS.values(), ids=WRONG_MODELS)
def test_another_model_is_recognised(folder, model):
    with pytest.raises(BundleModelError):
        queen.load(folder, model)


def test_a_module_that_is_given_keeps_its_own_weights(folder):
    given = make_mlp()
    before = {name: t.clone() for name, t in given.state_dict().items()}
    queen.load(folder, model=given)
    assert all(torch.equal(t, before[name]) for name, t in given.state_dict().items())


def test_a_file_in_the_way_of_the_folder_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot write a bundle"):
        queen.load(folder).save(tmp_path / "file")


def test_a_factory_that_fails_is_a_bundle_error(folder):
    def broken() -> nn.Module:
        raise ValueError("no weights today")

    with pytest.raises(BundleError, match="no weights today"):
        queen.load(folder, broken)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink, turn_into_a_folder])
@pytest.mark.parametrize("pattern", ["model-*", "guard-*", MANIFEST])
def test_a_damaged_file_is_named(folder, pattern, damage):
    (path,) = folder.glob(pattern)
    damage(path)
    with pytest.raises(BundleError) as caught:
        queen.load(folder)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BundleError, match="nowhere"):
        queen.load(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []  # no secret was made for it


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "3", '"bundle"', "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900,
     '{"a":' * 985 + "1" + "}" * 985, "\ufeff{}", "NaN", '{"sha256": {}}', '{"format": 1' + "0" * 5000 + "}"],
    ids=["empty", "cut", "null", "list", "number", "text", "very deep", "deep", "almost too deep", "with a mark", "NaN",
         "odd checksum", "huge number"],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(folder, text):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(BundleError):
        queen.load(folder)


def test_an_edited_manifest_is_refused(folder):
    content = read_manifest(folder)
    content["limits"]["threshold"] = 1e9
    (folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(BundleError, match="changed after it was saved"):
        queen.load(folder)


def put(*keys: object, value: object):
    def change(content: dict) -> None:
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys: str):
    def change(content: dict) -> None:
        place = content
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


FORGED = {
    "a future format": put("format", value=FORMAT + 1),
    "an old format": put("format", value=1),
    "no format": drop("format"),
    "a name that climbs out": put("files", "guard", "name", value="../guard-0123456789abcdef.safetensors"),
    "an absolute name": put("files", "model", "name", value="/etc/passwd"),
    "a name of another kind": put("files", "model", "name", value="weights.pt"),
    "a name that is no text": put("files", "model", "name", value=3),
    "a name with a line end": put("files", "guard", "name", value="guard-0123456789abcdef.safetensors\n"),
    "files that are no table": put("files", value=[]),
    "no files": drop("files"),
    "no guard file": drop("files", "guard"),
    "another identity": put("identity", value="0" * 64),
    "no identity": drop("identity"),
    "an unknown policy": put("policy", value="quen"),
    "a policy that is a list": put("policy", value=["paper"]),
    "a draw above the shadows": put("draw", value=11),
    "a draw that is text": put("draw", value="5"),
    "no radius": drop("limits", "radius"),
    "a negative radius": put("limits", "radius", value=-1),
    "a radius that is text": put("limits", "radius", value="0.1"),
    "radii of too few classes": put("limits", "radius", value=[0.1]),
    "a threshold that is text": put("limits", "threshold", value="much"),
    "an unknown head": put("model", "head", value="nowhere"),
    "a head that is no name": put("model", "head", value=None),
    "a head that is not the last": put("model", "head", value="0"),
    "a recipe with other arguments": put("model", "recipe", "args", value={"depth": 3}),
    "a recipe that is text": put("model", "recipe", value="make_mlp"),
    "a recipe that runs a program": put("model", "recipe", value={"factory": "os:system", "args": {"command": "true"}}),
    "a recipe of a private function": put("model", "recipe", "factory", value="tests.support.guards:_trained"),
    "class names of too few classes": put("class_names", value=["a"]),
    "class names that are a number": put("class_names", value=3),
    "shadows of another kind": put("shadows", value=[{"factory": FACTORY, "args": {}}]),
    "shadows that are a number": put("shadows", value=4),
    "no map": drop("map"),
    "the manifest as a list of pairs": put("model", value=[["head", "3"]]),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_with_a_right_checksum_is_refused(folder, change):
    content = read_manifest(folder)
    change(content)
    sign_manifest(folder, content)
    with pytest.raises(BundleError):
        queen.load(folder)


def settings_of(**values: object):
    return lambda content: content["sentinel"].update(values)


def facts_of(**values: object):
    return lambda content: content["calibration"].update(values)


def group_with(**values: object):
    limits = {"radius": 0.1, "threshold": 0.2, "extra_answers": 5}
    return settings_of(groups={"tenant": {"limits": limits, "enforce_alarm": False} | values})


FORGED_SENTINELS = {
    "no settings": drop("sentinel"),
    "settings nobody knows": settings_of(beta=1),
    "settings that are a list": put("sentinel", value=[]),
    "an unknown form": settings_of(form="sum"),
    "an alpha of 2": settings_of(alpha=2),
    "an alpha that is text": settings_of(alpha="0.1"),
    "an unknown score": settings_of(scores=["entropy"]),
    "scores that are a number": settings_of(scores=5),
    "a margin that is text": settings_of(margin="wide"),
    "groups that are a list": settings_of(groups=[]),
    "a group without limits": settings_of(groups={"tenant": {"enforce_alarm": True}}),
    "a group with a negative radius": group_with(limits={"radius": -1, "threshold": 0.2, "extra_answers": 5}),
    "a group with radii of too few classes": group_with(limits={"radius": [0.1], "threshold": 0.2, "extra_answers": 5}),
    "a group that enforces a number": group_with(enforce_alarm=3),
    "negative extra answers": put("limits", "extra_answers", value=-1),
    "no extra answers": put("limits", "extra_answers", value=None),
    "no calibration": put("calibration", value=None),
    "a calibration that is a list": put("calibration", value=[]),
    "a tolerance of 0": facts_of(tolerance=0),
    "a negative tolerance": facts_of(tolerance=-1.0),
    "a tolerance of NaN": facts_of(tolerance=float("nan")),
    "a tolerance that is text": facts_of(tolerance="small"),
    "an account that is a number": facts_of(account=3),
    "foreign images of no name": facts_of(
        foreign=None, trusted={"clients": 0, "highest": 1.0, "scores": [], "margin": 0}
    ),
    "trusted clients of endless wealth": facts_of(
        trusted={"clients": 2, "highest": float("inf"), "scores": ["energy"], "margin": 0.0}
    ),
    "trusted clients as a list": facts_of(trusted=[2, 1.0]),
    "conditions that are a number": facts_of(conditions=3),
    "no conditions": facts_of(conditions=[]),
    "a certificate that is text": facts_of(certified="yes"),
    "facts nobody knows": facts_of(weather="fine"),
}


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """The bundle of a sentinel."""
    fitted(policy="sentinel").save(tmp_path / "watched")
    return tmp_path / "watched"


@pytest.mark.parametrize("change", FORGED_SENTINELS.values(), ids=FORGED_SENTINELS)
def test_a_forged_sentinel_with_a_right_checksum_is_refused(watched, change):
    content = read_manifest(watched)
    change(content)
    sign_manifest(watched, content)
    with pytest.raises(BundleError):
        queen.load(watched)


def like(name: str, change):
    return {f"calibration__{name}": lambda found: change(getattr(found, name))}


FORGED_CALIBRATIONS = {
    "NaN scores": like("scores", lambda t: t * float("nan")),
    "scores of another width": like("scores", lambda t: t[:, :2]),
    "fewer points": like("points", lambda t: t[:5]),
    "fewer conditions": like("condition", lambda t: t[:5]),
    "negative labels": like("labels", lambda t: t - 10),
    "labels too high": like("labels", lambda t: t + 10),
    "float labels": like("labels", lambda t: t.double()),
    "conditions that are not named": like("condition", lambda t: t + 5),
    "negative conditions": like("condition", lambda t: t - 1),
    "no answers": like("answers", lambda t: t[:0]),
    "answers of fewer classes": like("answers", lambda t: t[:, :9]),
    "answers in one row": like("answers", lambda t: t[0]),
    "answers that are no numbers": like("answers", lambda t: t * float("nan")),
    "answers that do not add up to one": like("answers", lambda t: 2 * t),
    "negative answers": like("answers", lambda t: 3 * t - 0.2),
    "answers of another precision": like("answers", lambda t: t.double()),
    "no images": {
        f"calibration__{name}": lambda found, name=name: getattr(found, name)[:0]
        for name in ("labels", "points", "scores", "condition")
    },
    "a tensor nobody knows": {"calibration__weather": lambda found: found.labels},
    "a reference of another width": {"calibration__reference": lambda found: torch.zeros(3, 7)},
}


@pytest.mark.parametrize("tensors", FORGED_CALIBRATIONS.values(), ids=FORGED_CALIBRATIONS)
def test_a_forged_calibration_with_right_checksums_is_refused(watched, tensors):
    found = fitted().bundle.calibration
    swap(watched, "guard", **{name: make(found).contiguous() for name, make in tensors.items()})
    with pytest.raises(BundleError):
        queen.load(watched)


def test_signing_alone_changes_nothing(folder):
    identity = read_manifest(folder)["identity"]
    swap(folder, "guard")
    assert read_manifest(folder)["identity"] == identity
    assert_same(fitted(), queen.load(folder), queries())


def test_a_file_outside_the_folder_is_not_read(folder, monkeypatch):
    (guard,) = folder.glob("guard-*")
    outside = folder.parent / guard.name
    outside.write_bytes(guard.read_bytes())
    content = read_manifest(folder)
    content["files"]["guard"]["name"] = f"../{guard.name}"
    sign_manifest(folder, content)
    opened: list[Path] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: opened.append(self) or real(self))
    with pytest.raises(BundleError, match="names a file"):
        queen.load(folder)
    assert all(".." not in str(path) for path in opened)


def nan_like(name: str):
    return lambda guard: torch.full_like(getattr(guard.bundle.geometry, name), float("nan"))


FORGED_TENSORS = {
    "NaN centres": {"geometry__centres": nan_like("centres")},
    "NaN spreads": {"geometry__spreads": nan_like("spreads")},
    "infinite feature centres": {"geometry__feature_centres": lambda g: g.bundle.geometry.feature_centres / 0},
    "a spread of 0": {"geometry__spreads": lambda g: g.bundle.geometry.spreads * 0},
    "a negative spread": {"geometry__spreads": lambda g: -g.bundle.geometry.spreads},
    "fewer spreads": {"geometry__spreads": lambda g: g.bundle.geometry.spreads[:5]},
    "fewer centres": {"geometry__centres": lambda g: g.bundle.geometry.centres[:5]},
    "fewer feature centres": {"geometry__feature_centres": lambda g: g.bundle.geometry.feature_centres[:5]},
    "feature centres of another width": {"geometry__feature_centres": lambda g: torch.zeros(10, 5)},
    "centres in space": {"geometry__centres": lambda g: torch.zeros(10, 3)},
    "a NaN in the map": {"map__layers__0__bias": lambda g: g.bundle.mapping.layers[0].bias * float("nan")},
    "a map of another width": {"map__layers__0__weight": lambda g: g.bundle.mapping.layers[0].weight[:, :5]},
    "a map layer too many": {"map__layers__9__weight": lambda g: torch.zeros(2, 2)},
    "another probe": {"probe__logits": lambda g: g.bundle.probe.logits + 1},
    "a probe of NaN": {"probe__logits": lambda g: g.bundle.probe.logits * float("nan")},
    "shadows of another shape": {"shadows__bias": lambda g: torch.zeros(3)},
    "shadows of fewer classes": {
        "shadows__weight": lambda g: g.bundle.shadows.weight[:, :5],
        "shadows__bias": lambda g: g.bundle.shadows.bias[:, :5],
    },
    "shadows of NaN": {"shadows__weight": lambda g: g.bundle.shadows.weight * float("nan")},
}


@pytest.mark.parametrize("tensors", FORGED_TENSORS.values(), ids=FORGED_TENSORS)
def test_forged_tensors_with_right_checksums_are_refused(folder, tensors):
    swap(folder, "guard", **{name: make(fitted()).contiguous() for name, make in tensors.items()})
    with pytest.raises(BundleError):
        queen.load(folder)


def test_tensors_of_another_identity_are_refused(folder):
    centres = fitted().bundle.geometry.centres
    swap(folder, "guard", identify=False, geometry__centres=centres + 1)
    with pytest.raises(BundleError, match="identity"):
        queen.load(folder)


@pytest.mark.parametrize("name", ["0__weight", "3__bias"])
def test_other_weights_are_recognised_by_the_probe(folder, name):
    shape = dict(make_mlp().named_parameters())[name.replace("__", ".")].shape
    swap(folder, "model", **{name: torch.randn(shape, generator=torch.Generator().manual_seed(0))})
    with pytest.raises(BundleModelError):
        queen.load(folder)


def test_other_network_shadows_are_refused(cnn_folder):
    assert_same(fitted("network"), queen.load(cnn_folder), queries("network"))
    content = read_manifest(cnn_folder)
    content["shadows"] = content["shadows"][:2]
    sign_manifest(cnn_folder, content)
    with pytest.raises(BundleError):
        queen.load(cnn_folder, draw=1)


def test_nothing_is_ever_unpickled(folder, cnn_folder, monkeypatch):
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    for place, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(place, name, forbidden)
    for path in (folder, cnn_folder):
        assert {p.suffix for p in path.iterdir()} == {".json", ".safetensors"}
        assert queen.load(path).bundle.identity


def test_a_pickle_in_place_of_weights_is_refused_unopened(folder, tmp_path):
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    content = read_manifest(folder)
    for data in (pickle.dumps(Trap()), pickle.dumps(Trap(), 0)):
        digest = hashlib.sha256(data).hexdigest()
        entry = {"name": f"model-{digest[:16]}.safetensors", "sha256": digest}
        (folder / entry["name"]).write_bytes(data)
        content["files"]["model"] = entry
        sign_manifest(folder, content)
        with pytest.raises(BundleError):
            queen.load(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.fixture
def other() -> Guard:
    x, y = train_set()
    return protect(
        trained("mlp"),
        (x, y),
        policy="paper",
        mapping=QUICK,
        seed=1,
        limits=ALL_LETTERS,
        factory=FACTORY,
        secret=SECRET,
    )


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("where", ["replace", "open"])
def test_a_save_that_dies_half_way_leaves_the_old_bundle(folder, other, monkeypatch, where, step):
    real, calls = getattr(os, where), []

    def dies(path: Path, *args: object) -> object:
        if path != folder:  # the folder is opened too, to be synced
            calls.append(path)
        if len(calls) > step:
            raise KeyboardInterrupt
        return real(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", SimpleNamespace(**vars(os) | {where: dies}))
        with pytest.raises(KeyboardInterrupt):
            save_bundle(other.bundle, folder)
    assert len(calls) == step + 1
    assert_same(fitted(), queen.load(folder), queries())
    save_bundle(other.bundle, folder)
    assert load_bundle(folder).identity == other.bundle.identity


def test_a_save_that_dies_after_the_manifest_leaves_the_new_bundle(folder, other, monkeypatch):
    real = Path.unlink

    def dies(path: Path, **options: bool) -> None:
        if path.suffix == ".safetensors":
            raise KeyboardInterrupt
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            save_bundle(other.bundle, folder)
    assert load_bundle(folder).identity == other.bundle.identity


def test_a_manifest_that_cannot_be_written_leaves_the_old_bundle(folder, other, monkeypatch):
    real = queen.bundle.store.write_atomically

    def full(path: Path, data: bytes) -> None:
        if path.name == MANIFEST:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(queen.bundle.store, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        other.save(folder)
    assert load_bundle(folder).identity == fitted().bundle.identity


def test_old_weights_go_after_a_good_save_and_other_files_stay(folder, other):
    (folder / "notes.txt").write_text("mine")
    before = names(folder)
    other.save(folder)
    after = names(folder)
    assert len(after) == 4
    assert after & before >= {"notes.txt", MANIFEST}
    assert {f["name"] for f in read_manifest(folder)["files"].values()} < after
    assert load_bundle(folder).identity == other.bundle.identity


def test_saving_twice_gives_the_same_files(folder):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    fitted().save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert len(before) == 3


def test_the_secret_is_beside_the_folder_and_is_needed_only_for_the_draws(folder):
    assert names(folder.parent) == {"bundle", "bundle.secret"}
    assert not any(SECRET.hex().encode() in p.read_bytes() or SECRET in p.read_bytes() for p in folder.iterdir())
    secret_path(folder).unlink()
    fresh = queen.load(folder)
    assert secret_path(folder).exists()
    x = queries()
    a, b = fresh.answer(x, client="a"), fitted().answer(x, client="a")
    assert a.verdicts == b.verdicts
    assert not torch.equal(a.probabilities, b.probabilities)
    again = queen.load(folder).answer(x, client="a")
    assert torch.equal(again.probabilities, a.probabilities)


def test_the_secret_may_be_given_as_bytes_or_as_a_file(folder, tmp_path):
    expected = fitted().answer(queries(), client="a").probabilities
    path = secret_path(folder).rename(tmp_path / "elsewhere")
    for secret in (SECRET, path, str(path)):
        guard = queen.load(folder, secret=secret)
        assert torch.equal(guard.answer(queries(), client="a").probabilities, expected)
    assert not secret_path(folder).exists()
    with pytest.raises(SecretError):
        queen.load(folder, secret=tmp_path / "nowhere")


def test_a_secret_that_others_may_read_stops_the_load(folder):
    secret_path(folder).chmod(0o644)
    with pytest.raises(SecretError):
        queen.load(folder)


def test_a_moved_bundle_still_loads(folder, tmp_path):
    moved = folder.rename(tmp_path / "deep name with spaces é")
    assert_same(fitted(), queen.load(str(moved), secret=SECRET), queries())


def test_the_identity_knows_what_was_fitted_and_not_the_options(other):
    base = fitted().bundle.identity
    assert len(base) == 64
    assert fitted(policy="strict", draw=1, observe=True).bundle.identity == base
    assert other.bundle.identity != base
    geometry = fitted().bundle.geometry
    changed = replace(geometry, spreads=geometry.spreads * (1 + 1e-15))
    assert replace(fitted().bundle, geometry=changed).identity != base


def test_the_identity_does_not_know_the_calibration():
    bundle = fitted().bundle
    assert replace(bundle, calibration=None).identity == bundle.identity


def test_loading_leaves_the_global_random_state_alone(cnn_folder):
    before = torch.get_rng_state()
    load_bundle(cnn_folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_needs_no_gradients(folder):
    guard = queen.load(folder)
    parts = (guard.bundle.split.model, guard.bundle.mapping)
    assert not any(p.requires_grad for part in parts for p in part.parameters())
