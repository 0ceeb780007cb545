"""An own model in three lines: what it says, what it refuses, and that it leaves the model alone."""

from __future__ import annotations

import copy
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import queen.bench
from queen.attacks.base import BudgetError, Sizes
from queen.bench.datasets import digits
from queen.bench.evaluate import Evaluation, fresh_copy
from queen.bench.spec import Utility
from queen.errors import DtypeError, OptionError, QueenError, ShapeError
from queen.training import Schedule, train
from queen.zoo import build, seeded

torch.set_num_threads(1)

QUICK = {
    "schedule": Schedule(epochs=15, lr=0.1, batch=16),
    "utility": Utility(clients=2, queries=20),
    "sizes": Sizes(mirror=False),
}


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def plain(generator: torch.Generator) -> nn.Module:
    with seeded(generator):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def data():
    x, y = digits()
    rows = torch.randperm(len(x), generator=seed(3)).split([900, 200, 400, 297])
    parts = [(x[part], y[part]) for part in rows]
    return dict(zip(("train", "test", "pool", "calibration"), parts, strict=True))


@pytest.fixture(scope="module")
def model(data):
    return train(plain(seed()), *data["train"], Schedule(epochs=8, lr=0.1, batch=32), seed(1))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.slow
def test_three_lines_tell_what_every_defense_is_worth(model, data):
    found = queen.bench.evaluate(
        model, train=data["train"], test=data["test"], pool=data["pool"][0], calibration=data["calibration"], **QUICK
    )
    assert isinstance(found, Evaluation)
    assert found.table.columns == ("none", "queen", "queen-sentinel")
    assert [one["attack"] for one in found.results] == ["direct", "label_only"] * 3
    assert all(one["queries"] == {"budget": 400, "sent": 400, "answered": 400} for one in found.results[:2])
    undefended = [one["thief"]["accuracy"] for one in found.results if one["column"] == "none"]
    assert found.best_thief("none") == max(undefended) > 0.7
    assert found.results[0]["protectee"]["name"] == "own model"
    assert found.results[0]["protectee"]["accuracy"] > 0.85
    assert [one["flags"] for one in found.results[:2]] == [[], []]
    assert json.dumps(found.results, allow_nan=False)
    lines = str(found).splitlines()
    assert lines[0] == "| query | attack | none | queen | queen-sentinel |"
    assert any(line.startswith("| knockoff | max |") for line in lines)
    with pytest.raises(OptionError, match="no run against 'rounding'"):
        found.best_thief("rounding")


def evaluate(model, data, **changes):
    options = {"defenses": ["none"], "attacks": ["direct"], "pool": data["pool"], **QUICK, **changes}
    return queen.bench.evaluate(model, train=data["train"], test=data["test"], **options)


def test_the_same_call_gives_the_same_numbers(model, data):
    """Even though its dropout takes from the global random state, which stays what it was."""
    before = torch.get_rng_state()
    first, second = (evaluate(model, data).results[0]["thief"]["epochs"] for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert evaluate(model, data, seeds=[1]).results[0]["thief"]["epochs"] != first


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, False], ids=["training", "answering"])
def test_the_model_is_left_as_it_was(model, data, mode):
    mine = copy.deepcopy(model).train(mode)
    mine[1].requires_grad_(False)
    before = state(mine)
    evaluate(mine, data, defenses=["none", "mad", "adaptive_misinformation", "queen"], budget=60)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert mine.training is mode
    assert [p.requires_grad for p in mine.parameters()] == [False, False, True, True]
    assert all(p.grad is None for p in mine.parameters())


def test_dropout_is_off_while_the_model_is_attacked(model, data):
    training = evaluate(copy.deepcopy(model).train(), data).results[0]
    answering = evaluate(copy.deepcopy(model).eval(), data).results[0]
    assert training["protectee"] == answering["protectee"]
    assert training["thief"]["epochs"] == answering["thief"]["epochs"]


def test_a_budget_and_an_own_thief_are_taken(model, data):
    built: list[nn.Module] = []

    def make(generator: torch.Generator) -> nn.Module:
        with seeded(generator):
            built.append(build("small_cnn", classes=10, grid=2))
        return built[-1]

    found = evaluate(model, data, budget=50, make_thief=make)
    assert found.results[0]["queries"]["sent"] == 50
    assert built


# Mistakes

MISTAKES = {
    "defense": ({"defenses": ["quen"]}, r"no defense 'quen'.*did you mean 'queen'\?"),
    "attack": ({"attacks": ["dirct"]}, r"no attack 'dirct'.*did you mean 'direct'\?"),
    "query": ({"queries": ["knock"]}, r"no query strategy 'knock'; known: knockoff, jbda_tr"),
    "sentinel without held-out images": (
        {"defenses": ["none", "queen-sentinel"]},
        r"defense 'queen-sentinel' needs held-out images: evaluate\(\.\.\., calibration=\(x, y\)\)",
    ),
}


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_before_anything_runs(model, data, changes, message, monkeypatch):
    module = sys.modules["queen.bench.evaluate"]  # the package has a function of this name
    monkeypatch.setattr(module, "run_trial", lambda *_: pytest.fail("ran"))
    with pytest.raises(OptionError, match=message):
        evaluate(model, data, **changes)


def test_a_budget_larger_than_the_pool_is_an_error(model, data):
    with pytest.raises(BudgetError, match=r"a budget of 401 queries .*the pool has 400"):
        evaluate(model, data, budget=401)


def test_an_attack_that_needs_what_is_not_there_says_so(model, data):
    with pytest.raises(OptionError, match="benign"):
        evaluate(model, data, attacks=["cover_1"])


# Images in other forms


def mapped(folder, name, pair):
    """The same images as an array that lies on disk, read-only."""
    np.save(folder / f"{name}.npy", pair[0].numpy())
    return np.load(folder / f"{name}.npy", mmap_mode="r"), pair[1].numpy()


def timeless(results):
    """All of the results but times."""
    text = json.dumps(results)
    return re.sub(r'"[a-z_]*(seconds|per_second)[a-z_]*": (\{[^}]*\}|[\d.]+)', "", text)


@pytest.mark.parametrize("form", ["mapped", "dataset"])
def test_images_on_disk_or_in_a_dataset_give_the_numbers_of_tensors(model, data, tmp_path, form):
    other = {n: mapped(tmp_path, n, p) if form == "mapped" else TensorDataset(*p) for n, p in data.items()}
    options = {"defenses": {"queen-sentinel": {"map_epochs": 2}}, "budget": 60}
    plain = evaluate(model, data, calibration=data["calibration"], **options)
    again = evaluate(model, other, calibration=other["calibration"], **options)
    assert timeless(again.results) == timeless(plain.results)


def test_a_pool_may_have_no_labels_in_any_form(model, data, tmp_path):
    images = data["pool"][0]
    pools = [images, mapped(tmp_path, "pool", data["pool"])[0], TensorDataset(images)]
    one, *others = (timeless(evaluate(model, data, pool=pool, budget=40).results) for pool in pools)
    assert all(other == one for other in others)


class Stream(IterableDataset):
    """A Dataset without a length."""

    def __iter__(self):
        return iter([])


UNUSABLE = {
    "normalised": (
        lambda x, y: (4 * x - 2, y),
        OptionError,
        r"got numbers from -2 to 2, .*Normalised\(model, ",
    ),
    "in bytes": (lambda x, y: ((255 * x).byte(), y), DtypeError, r"expected images in 0\.\.1 as torch\.float32"),
    "not a number": (lambda x, y: (x / 0 * 0, y), OptionError, "got numbers from nan to nan"),
    "double": (lambda x, y: TensorDataset(x.double(), y), DtypeError, r"got torch\.float64: convert them"),
    "too few labels": (lambda x, y: (x, y[1:]), ShapeError, "expected one label an image"),
    "nothing": (lambda x, y: (x[:0], y[:0]), ShapeError, "expected at least one image, got none"),
    "an empty dataset": (lambda x, y: TensorDataset(x[:0], y[:0]), ShapeError, "expected at least one image, got none"),
    "without length": (lambda x, y: Stream(), OptionError, "expected a Dataset with a length, got Stream"),
    "a list": (lambda x, y: x.tolist(), DtypeError, "expected a tensor, an array or a Dataset, got list"),
}


@pytest.mark.parametrize("name", ["train", "test", "pool", "calibration", "benign"])
@pytest.mark.parametrize(("change", "error", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_images_are_named_before_anything_runs(model, data, name, change, error, message, monkeypatch):
    module = sys.modules["queen.bench.evaluate"]
    monkeypatch.setattr(module, "run_trial", lambda *_: pytest.fail("ran"))
    x, y = data[name if name in data else "train"]
    given = {"train": data["train"], "test": data["test"], "pool": data["pool"], name: change(x, y)}
    with pytest.raises(QueenError, match=f"^{name}: .*{message}") as caught:
        queen.bench.evaluate(model, defenses=["none"], **given)
    assert isinstance(caught.value, error)


def test_images_without_labels_are_an_error_where_labels_are_needed(model, data):
    with pytest.raises(OptionError, match="test: expected images and labels"):
        evaluate(model, {**data, "test": data["test"][0]})


def test_a_column_may_be_another_method_with_options(model, data):
    found = evaluate(model, data, defenses={"coarse": {"defense": "rounding", "decimals": 0}}, budget=40)
    [one] = found.results
    assert (one["column"], one["defense"]["name"], one["defense"]["options"]["decimals"]) == ("coarse", "rounding", 0)


def test_tables_of_pairs_are_smaller_where_there_are_many_classes():
    fitting = sys.modules["queen.bench.evaluate"]._fitting_sizes
    assert fitting(10) == Sizes()
    assert fitting(1000) == replace(Sizes(), table=100_000)


# A cache folder


def test_an_evaluation_that_was_stopped_goes_on_where_it_stopped(model, data, tmp_path, monkeypatch):
    module = sys.modules["queen.bench.evaluate"]
    original, ran = module.run_trial, []

    def stop_at_the_second(trial, *rest):
        ran.append(trial.column)
        if ran == ["none", "rounding"]:
            raise KeyboardInterrupt
        return original(trial, *rest)

    monkeypatch.setattr(module, "run_trial", stop_at_the_second)
    options = {"defenses": ["none", "rounding", "label_only"], "budget": 40, "cache": tmp_path / "new"}
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, data, **options)
    first = evaluate(model, data, **options)
    assert ran == ["none", "rounding", "rounding", "label_only"]
    assert evaluate(model, data, **options) == first
    assert len(ran) == 4
    assert [path for path in (tmp_path / "new").iterdir() if path.is_dir()] == []  # no images stay behind
    thief = {"make_thief": lambda _: build("small_cnn", classes=10, grid=2)}
    for changes in ({"seeds": [1]}, {"budget": 41}, {"schedule": Schedule(epochs=1)}, thief):
        evaluate(model, data, **(options | changes | {"defenses": ["none"]}))
    other = {**data, "train": (data["train"][0].flip(0), data["train"][1])}
    evaluate(model, other, **(options | {"defenses": ["none"]}))
    assert len(ran) == 9


class Scaled(nn.Module):
    """A model with an attribute that no weight tells of."""

    def __init__(self, inner: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x):
        return self.inner(x) * self.scale


def count_runs(monkeypatch):
    """A list that grows by one with each trial that is run and not taken from the cache."""
    module = sys.modules["queen.bench.evaluate"]
    original, ran = module.run_trial, []
    monkeypatch.setattr(module, "run_trial", lambda *given: ran.append(1) or original(*given))
    return ran


def test_models_with_the_same_weights_that_answer_otherwise_do_not_share_results(model, data, tmp_path, monkeypatch):
    ran, options = count_runs(monkeypatch), {"budget": 40, "defenses": ["rounding"]}
    evaluate(Scaled(model, 1.0), data, **options, cache=tmp_path)
    found = evaluate(Scaled(model, 20.0), data, **options, cache=tmp_path)
    assert len(ran) == 2
    assert timeless(found.results) == timeless(evaluate(Scaled(model, 20.0), data, **options).results)
    evaluate(Scaled(model, 1.0), data, **options, cache=tmp_path)
    assert len(ran) == 3


def test_a_thief_that_ignores_the_generator_is_the_same_in_every_call(data, tmp_path, monkeypatch):
    """As the error about layers that cannot be reset advises."""
    ran, options = count_runs(monkeypatch), {"budget": 40, "make_thief": lambda generator: Stubborn()}
    model = Stubborn()
    first = evaluate(model, data, **options, cache=tmp_path)
    assert evaluate(model, data, **options, cache=tmp_path) == first
    assert len(ran) == 1
    assert timeless(evaluate(model, data, **options).results) == timeless(first.results)
    evaluate(model, data, **options, cache=tmp_path, seeds=[1])
    assert len(ran) == 3


def test_all_that_is_trained_like_the_model_is_recorded_or_not_as_the_schedule_says(model, data, monkeypatch):
    module, schedules = sys.modules["queen.bench.evaluate"], []

    def note(_, protectee, *rest):
        schedules.extend([protectee.victim.schedule, protectee.thief_schedule])
        return {}

    monkeypatch.setattr(module, "run_trial", note)
    for record in (True, False):
        evaluate(model, data, schedule=Schedule(record=record))
    assert [schedule.record for schedule in schedules] == [True, True, False, False]


# Fresh copies


def test_a_fresh_copy_has_forgotten_everything():
    with seeded(seed()):
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)]
    x, y = digits()
    taught = train(nn.Sequential(*layers), x[:900], y[:900], Schedule(epochs=3, lr=0.1, batch=32), seed(1))
    taught.requires_grad_(False)
    before = state(taught)
    fresh = fresh_copy(taught, seed(5))
    assert [type(layer) for layer in fresh] == [type(layer) for layer in taught]
    for name, value in fresh.state_dict().items():
        assert not torch.equal(value, before[name])  # running statistics too
        assert torch.equal(taught.state_dict()[name], before[name])
    assert all(p.requires_grad for p in fresh.parameters())
    assert torch.equal(fresh[1].running_mean, torch.zeros(4))
    accuracy = [(net.eval()(x[900:]).argmax(1) == y[900:]).double().mean().item() for net in (taught, fresh)]
    assert accuracy[0] > 0.8
    assert accuracy[1] < 0.4


def test_fresh_copies_depend_on_the_generator_alone(model):
    state_before = torch.get_rng_state()
    first, again, other = (fresh_copy(model, seed(number)) for number in (1, 1, 2))
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)
    assert torch.equal(torch.get_rng_state(), state_before)


def test_a_layer_that_still_has_its_first_weights_is_reset_all_the_same():
    untrained = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    assert torch.equal(fresh_copy(untrained, seed(5))[1].weight, torch.ones(4))


class Stubborn(nn.Module):
    """A parameter that no layer knows how to reset."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1) * self.scale)


def test_a_model_that_cannot_be_reset_asks_for_another_thief(data):
    with pytest.raises(OptionError, match="parameter 'scale' of this model cannot be reset: say make_thief="):
        evaluate(Stubborn(), data)
    found = evaluate(Stubborn(), data, make_thief=plain, budget=20)
    assert found.results[0]["queries"]["sent"] == 20


class Wrapped(torch.nn.Module):
    """A model that returns more than logits, as some do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def forward(self, x):
        return self.inner(x), "something else"


def test_models_that_return_a_tuple_are_attacked_too(data):
    result = evaluate(Wrapped(), data, budget=60).results[0]
    assert 0 <= result["thief"]["accuracy"] <= 1


def test_an_attacker_with_own_kind_images_must_be_given_some(model, data):
    with pytest.raises(OptionError, match="benign"):
        evaluate(model, data, attacks=["cover_1"])
