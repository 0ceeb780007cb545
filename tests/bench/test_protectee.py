"""A protectee: every image has one use, and the victim is trained once for all pools."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from queen.bench import protectee as module
from queen.bench.datasets import digits, load_set
from queen.bench.parsing import SpecError
from queen.bench.protectee import make_protectee
from queen.cache import Cache
from queen.errors import OptionError
from queen.training import train
from tests.support.benchmarks import tiny_protectee, tiny_spec


def test_the_parts_are_disjoint_and_none_is_lost():
    protectee = tiny_protectee()
    parts = [protectee.victim.train[0], protectee.victim.calibration[0], protectee.benign[0], protectee.test[0]]
    assert [len(part) for part in parts] == [900, 400, 100, 200]
    rows = torch.cat(parts).flatten(1).tolist()
    everything = digits()[0].flatten(1).tolist()
    assert len({tuple(row) for row in rows}) == len(rows)
    assert {tuple(row) for row in rows} <= {tuple(row) for row in everything}


def test_a_pool_of_benign_images_leaves_the_victim_and_its_surroundings_as_they_are(tmp_path, monkeypatch):
    spec, cache = tiny_spec(protectee__train=200, protectee__schedule__epochs=1), Cache(tmp_path)
    foreign = make_protectee(spec.protectee, spec.thief, cache, "cpu", None)
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("trained again"))
    own = make_protectee(replace(spec.protectee, pool="benign"), spec.thief, cache, "cpu", None)
    assert torch.equal(own.pool, foreign.benign[0])
    assert torch.equal(own.pool_labels, foreign.benign[1])
    assert torch.equal(own.test[0], foreign.test[0])
    x = own.test[0]
    assert torch.equal(own.victim.clean(x), foreign.victim.clean(x))
    assert own.key != foreign.key
    assert own.sources == foreign.sources


@pytest.mark.parametrize("changes", [{"seed": 1}, {"outlier_weight": 0.5}, {"schedule": {"epochs": 2}}])
def test_another_recipe_is_another_victim(tmp_path, monkeypatch, changes):
    trained = []
    monkeypatch.setattr(module, "train", lambda network, *_, **__: trained.append(1) or network)
    cache = Cache(tmp_path)
    for more in ({}, changes, {}):
        spec = tiny_spec(**{f"protectee__{name}": value for name, value in more.items()})
        make_protectee(spec.protectee, spec.thief, cache, "cpu", None)
    assert len(trained) == 2


def test_other_code_trains_another_victim(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(module, "train", lambda network, *_, **__: trained.append(1) or network)
    spec, cache = tiny_spec(), Cache(tmp_path)
    for code in ("old", "new", "old"):
        monkeypatch.setattr(module, "code_version", lambda *_, code=code: code)
        make_protectee(spec.protectee, spec.thief, cache, "cpu", None)
    assert len(trained) == 2


def test_weights_from_a_file_are_used_and_nothing_is_trained(tmp_path, monkeypatch):
    trained = tiny_protectee().victim
    save_file(trained.model.state_dict(), tmp_path / "mine.safetensors")
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("trained"))
    spec, cache = tiny_spec(protectee__weights="mine.safetensors"), Cache(tmp_path / "cache")
    given = make_protectee(spec.protectee, spec.thief, cache, "cpu", tmp_path)
    x = given.test[0]
    assert torch.equal(given.victim.clean(x), trained.clean(x))
    assert given.facts()["weights"] == given.weights == tiny_protectee().weights
    wide = tiny_spec(protectee__weights="mine.safetensors", protectee__network={"width": 9})
    with pytest.raises(OptionError, match=r"mine\.safetensors' do not fit the network"):
        make_protectee(wide.protectee, wide.thief, cache, "cpu", tmp_path)


def test_the_victims_files_are_all_that_another_machine_needs_to_attack_the_same_one(tmp_path, monkeypatch):
    spec = tiny_spec(protectee__schedule__epochs=1)
    here = make_protectee(spec.protectee, spec.thief, Cache(tmp_path / "here"), "cpu", None)
    there = Cache(tmp_path / "there")
    for path in (tmp_path / "here").glob("victim-*"):
        (there.folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(module, "train", lambda *_, **__: pytest.fail("trained again"))
    again = make_protectee(spec.protectee, spec.thief, there, "cpu", None)
    assert (again.weights, again.key) == (here.weights, here.key)
    assert torch.equal(again.victim.clean(here.test[0]), here.victim.clean(here.test[0]))


START = {"data": {"set": "digits", "split": "all", "count": 300}, "schedule": {"epochs": 2, "lr": 0.1, "batch": 32}}


def test_victim_and_thieves_start_from_the_same_weights_whatever_the_seed(tmp_path, monkeypatch):
    learned = []
    monkeypatch.setattr(module, "train", lambda network, x, *_, **__: learned.append(len(x)) or train(network, x, *_))
    cache = Cache(tmp_path)
    began = [
        make_protectee(spec.protectee, spec.thief, cache, "cpu", None).make_thief(torch.Generator().manual_seed(draw))
        for spec in (tiny_spec(protectee__start=START, protectee__seed=seed) for seed in (0, 1))
        for draw in (3, 4)
    ]
    assert sorted(learned) == [300, 900, 900]  # learned once, then two victims
    weights = [network.state_dict() for network in began]
    different = {key for key in weights[0] if not all(torch.equal(w[key], weights[0][key]) for w in weights)}
    assert different == {"head.weight", "head.bias"}
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])


def test_a_start_makes_another_victim_and_another_thief_of_another_network(tmp_path):
    cache = Cache(tmp_path)
    plain, started = (tiny_spec(protectee__schedule__epochs=1, **more) for more in ({}, {"protectee__start": START}))
    scratch, public = (make_protectee(spec.protectee, spec.thief, cache, "cpu", None) for spec in (plain, started))
    assert public.weights != scratch.weights
    assert public.key != scratch.key
    own = tiny_spec(protectee__schedule__epochs=1, protectee__start=START, thief={"network": {"grid": 1}})
    thief = make_protectee(own.protectee, own.thief, cache, "cpu", None).make_thief(torch.Generator())
    assert len(list(tmp_path.glob("start-*"))) == 2
    assert thief.state_dict()["hidden.weight"].shape != public.make_thief(torch.Generator()).hidden.weight.shape


def test_of_image_files_only_those_wanted_are_decoded(tmp_path, monkeypatch):
    counts = []

    def load_some(name, split, *, count=None, **options):
        counts.append(count)
        return load_set(name, split, count=count, **options)

    monkeypatch.setattr(module, "load_set", load_some)
    spec = tiny_spec(protectee__schedule__epochs=1)
    assert len(make_protectee(spec.protectee, spec.thief, Cache(tmp_path), "cpu", None).pool) == 600
    assert 600 in counts
    greedy = tiny_spec(protectee__pool={"set": "digits", "split": "all", "count": 6000})
    with pytest.raises(SpecError, match="'digits' has 1797 images"):
        make_protectee(greedy.protectee, greedy.thief, Cache(tmp_path), "cpu", None)
