"""QUEEN among the defenses: one fit for all policies, whatever interrupts it, and what an attacker can simulate."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from queen.cache import Cache
from queen.core.shadows import HeadShadows
from queen.core.split import Split
from queen.defenses import DEFENSES
from queen.defenses import queen as module
from queen.errors import OptionError, QueenError
from queen.guard import Guard
from tests.support.defenses import small_victim

LIMITS = {"radius": 0.2, "threshold": 0.02}  # under which digits meet all four verdicts


def started(victim, name="queen", **options):
    return DEFENSES[name].start(victim, torch.Generator().manual_seed(0), map_epochs=3, **options)


@pytest.mark.parametrize("damage", ["no manifest", "half a file", "nothing there"])
def test_a_fit_that_was_killed_while_it_was_saved_is_made_again(tmp_path, damage):
    victim = small_victim(cache=Cache(tmp_path))
    x = victim.train[0][:20]
    first = started(victim).client("a")(x)
    [folder] = tmp_path.glob("bundle-*")
    if damage == "no manifest":
        (folder / "bundle.json").unlink()
    elif damage == "half a file":
        for path in folder.glob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:100])
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    assert torch.equal(started(victim).client("a")(x), first)


def test_all_policies_share_one_fit(tmp_path, monkeypatch):
    victim = small_victim(cache=Cache(tmp_path))
    started(victim)
    monkeypatch.setattr(module, "_fit", lambda *_, **__: pytest.fail("fitted twice"))
    for name in ("queen", "queen-strict"):
        started(victim, name, radius=0.1)
    assert len(list(tmp_path.glob("bundle-*"))) == 1


def test_other_code_fits_anew(tmp_path, monkeypatch):
    victim = small_victim(cache=Cache(tmp_path))
    for code in ("old", "new", "old"):
        monkeypatch.setattr(module, "code_version", lambda *_, code=code: code)
        started(victim)
    assert len(list(tmp_path.glob("bundle-*"))) == 2


def test_verdicts_are_counted(tmp_path):
    endpoint = started(small_victim())
    x = small_victim().train[0][:50]
    endpoint.client("a")(x[:30])
    endpoint.client("b")(x[30:])
    letters = {name: count for name, count in endpoint.verdicts.items() if name in "ABCD"}
    assert sum(letters.values()) == 50
    assert endpoint.verdicts["alarmed"] == endpoint.verdicts["refused"] == 0


def test_simulated_answers_of_the_paper_depend_on_what_the_model_is_said_to_have_said():
    victim = small_victim()
    endpoint, x = started(victim), victim.train[0][:40]
    clean = victim.clean(x)
    answers = endpoint.simulate(clean, x, torch.Generator().manual_seed(1))
    assert answers.shape == (1, 40, 10)
    assert torch.allclose(answers[0], started(victim).client("new")(x), atol=1e-4)
    other = endpoint.simulate(clean.roll(1, 1), x, torch.Generator().manual_seed(1))
    assert not torch.allclose(other, answers)


def test_the_sentinel_is_simulated_without_refusals_since_nobody_can_learn_from_them():
    victim = small_victim()
    victim = replace(victim, calibration=(victim.train[0][:300], victim.train[1][:300]))
    x = victim.train[0][:200]
    clean = victim.clean(x)
    few = {"extra_answers": 1, "threshold": 0.001}
    endpoint = started(victim, "queen-sentinel", on_alarm="decoy", digits=None, **few)
    honest, accused = endpoint.simulate(clean, x, torch.Generator().manual_seed(1))
    assert torch.allclose(honest, clean, atol=1e-5)
    assert (accused.argmax(1) == clean.argmax(1)).float().mean() < 0.3
    [rounded] = started(victim, "queen-sentinel", **few).simulate(clean, x, torch.Generator().manual_seed(1))
    assert (rounded - clean).abs().max() < 2e-2  # the accused get nothing, so there is nothing to simulate


def passes(victim, name="queen", **options):
    """An endpoint, 700 queries, and a function that simulates a pass over them with the answers of a seed."""
    victim = replace(victim, calibration=(victim.train[0][:300], victim.train[1][:300]))
    x = victim.train[0][:700].clone()
    endpoint = started(victim, name, **options)

    def simulate(seed, x=x):
        generator = torch.Generator().manual_seed(seed)
        clean = (3 * torch.randn(len(x), 10, generator=generator)).softmax(1)
        return endpoint.simulate(clean, x, generator)

    return endpoint, x, simulate


def step_by_step(endpoint, clean, x, generator):
    """What a simulation is by definition, the network run for every part of it; without accused clients."""
    guard = Guard(endpoint._guard.bundle, secret=module.draw_secret(generator))
    batches = [guard.measure(part, said=said) for part, said in zip(x.split(512), clean.split(512), strict=True)]
    answers = [guard.respond(batch, guard.judge(batch, "attacker"), "attacker").probabilities for batch in batches]
    return torch.cat(answers)[None]


@pytest.mark.parametrize(
    ("name", "options"), [("queen", LIMITS), ("queen-strict", LIMITS), ("queen-sentinel", {"on_alarm": "decoy"})]
)
def test_the_model_runs_once_however_often_its_stream_is_simulated(monkeypatch, name, options):
    _, x, simulate = passes(small_victim(), name, **options)
    rows = 0

    def count(split, part, run=Split.__call__):
        nonlocal rows
        rows += len(part)
        return run(split, part)

    monkeypatch.setattr(Split, "__call__", count)
    first, second = simulate(1), simulate(2)
    assert rows == len(x)
    assert not torch.equal(first, second)
    fresh = passes(small_victim(), name, **options)[2]
    assert torch.equal(fresh(2), second)  # to the bit what an endpoint says that has simulated nothing before
    assert torch.equal(simulate(1), first)


def test_simulated_answers_are_those_of_the_definition_to_the_bit():
    endpoint, x, simulate = passes(small_victim(), **LIMITS)
    simulate(1)
    generator = torch.Generator().manual_seed(2)
    clean = (3 * torch.randn(len(x), 10, generator=generator)).softmax(1)
    expected = step_by_step(endpoint, clean, x, generator)
    assert torch.equal(simulate(2), expected)


@pytest.mark.parametrize("change", ["in place", "another", "part", "in inference mode"])
def test_queries_that_changed_are_measured_anew(change):
    _, x, simulate = passes(small_victim(), **LIMITS)
    if change == "in inference mode":
        with torch.inference_mode():
            x = x.clone()
    before = simulate(1, x)
    other = x
    if change == "another":
        other = x.flip(0)
    elif change == "part":
        other = x[:-1]
    else:
        with torch.inference_mode(change != "in place"):
            x.copy_(x.flip(0))
    fresh = passes(small_victim(), **LIMITS)[2](1, other)
    after = simulate(1, other)
    assert torch.equal(after, fresh)
    assert after.shape != before.shape or not torch.equal(after, before)


# Options of the column


def reversed_rows(victim, **options):
    """Digits, the answers to them, and which of them were reversed: labels change nowhere else."""
    x = victim.train[0][:400]
    endpoint = started(victim, **{**LIMITS, **options})
    answers = endpoint.client("a")(x)
    assert endpoint.verdicts["B"] > 50
    return x, answers, (answers.argmax(1) != victim.clean(x).argmax(1))


def test_an_absolute_radius_is_divided_by_the_spread_of_each_class():
    victim = small_victim()
    bundle = started(victim, absolute_radius=0.005, radius=7.0)._guard.bundle
    expected = [0.005 / spread for spread in bundle.geometry.spreads.tolist()]
    assert bundle.limits.radius == pytest.approx(expected)
    alike = started(victim, radius=tuple(expected))._guard.bundle
    assert alike.limits == bundle.limits


@pytest.mark.parametrize("radius", [0, -1, float("nan"), "wide"])
def test_an_absolute_radius_that_is_none_is_refused(radius):
    with pytest.raises(QueenError, match="radius must be a number"):
        started(small_victim(), absolute_radius=radius)


def test_kept_labels_are_kept_in_every_reversed_answer():
    victim = small_victim()
    _, plain, changed = reversed_rows(victim)
    x, kept, moved = reversed_rows(victim, keep_label=True)
    assert changed.sum() > 50
    assert not moved.any()
    assert (plain - kept).abs().amax(1)[changed].min() > 1e-3
    assert not torch.allclose(kept[changed], victim.clean(x)[changed], atol=0.05)  # reversed all the same


def test_shadows_can_be_networks_by_kind_or_by_name():
    victim = small_victim()
    victim = replace(victim, train=(victim.train[0][:60], victim.train[1][:60]))  # one of the networks is large
    few = {"shadow_models": 2, "map_epochs": 2}
    kinds = {
        kind: DEFENSES["queen"].start(victim, torch.Generator().manual_seed(0), shadow_kind=kind, **few)._guard.bundle
        for kind in ("head", "network", "small_cnn")
    }
    assert isinstance(kinds["head"].shadows, HeadShadows)
    names = [[recipe.args["name"] for recipe in kinds[kind].shadows.recipes] for kind in ("network", "small_cnn")]
    assert names == [["small_cnn", "vgg11_bn"], ["small_cnn", "small_cnn"]]
    with pytest.raises(OptionError, match=r"no shadow_kind 'heads'; known: head, network, .*did you mean 'head'"):
        started(victim, shadow_kind="heads")


def test_as_many_shadows_answer_as_are_drawn():
    victim = small_victim()
    assert started(victim)._guard.bundle.draw == 5
    assert started(victim, shadow_models=3)._guard.bundle.draw == 3
    _, several, _ = reversed_rows(victim)
    _, one, _ = reversed_rows(victim, draw=1)
    assert not torch.equal(one, several)
    with pytest.raises(OptionError, match="draw must lie between 1 and the 10 shadows, got 11"):
        started(victim, draw=11)
