from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from queen.attacks.base import Transcript
from queen.bench.studies import forget_quality, quartiles
from queen.bench.studies.base import StudyContext
from queen.bench.studies.forget_quality import CLEAN, CONTROL, ForgetQuality, p_value
from queen.bench.studies.quartiles import Quartiles, measure_distances, sample, split_quartiles
from queen.bench.trials.asking import interrogate
from queen.cache import fingerprint
from queen.defenses import DEFENSES
from queen.errors import OptionError
from queen.training import Schedule

counts = st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(any)


@given(counts, counts)
def test_p_values_from_counts_are_those_of_the_labels(own, other):
    generator = np.random.default_rng(0)
    labels = [generator.permutation(np.repeat(np.arange(4), counted)) for counted in (own, other)]
    assert p_value(own, other) == ks_2samp(*labels, method="asymp").pvalue
    assert p_value(own, own) == 1


def test_labels_that_moved_are_told_apart():
    assert p_value([300, 0, 0, 300], [0, 300, 300, 0]) < 1e-6


def test_a_thief_is_like_itself_and_not_like_one_trained_on_poison(context):
    rows = forget_quality.measure(context, ForgetQuality(defenses=("rounding", "harsh")))["rows"]
    assert list(rows) == [CLEAN, CONTROL, "rounding", "harsh"]
    assert all(point["p"] == 1 for point in rows[CLEAN])
    epochs = [[point["epoch"] for point in points] for points in rows.values()]
    assert epochs == [list(range(1, 21))] * 4
    accuracies = {name: [point["accuracy"] for point in points] for name, points in rows.items()}
    assert accuracies[CONTROL] != accuracies[CLEAN]
    assert min(point["p"] for point in rows["harsh"][10:]) < 0.05
    assert all(0 <= point["p"] <= 1 for points in rows.values() for point in points)


def test_long_trainings_have_checkpoints_now_and_then_and_at_the_end(context):
    protectee = replace(context.protectee, key="longer", thief_schedule=Schedule(epochs=45, batch=100))
    parameters = ForgetQuality(defenses=("none",), control=False)
    points = forget_quality.measure(replace(context, protectee=protectee), parameters)["rows"][CLEAN]
    assert [point["epoch"] for point in points] == [*range(2, 45, 2), 45]


def test_a_thief_of_nothing_is_refused(context, monkeypatch):
    nothing = Transcript(context.protectee.pool[:0], torch.empty(0, 10))
    monkeypatch.setattr(forget_quality, "_ask", lambda *_: nothing)
    with pytest.raises(OptionError, match="'none' answered nothing"):
        forget_quality.measure(context, ForgetQuality(seed=7))


@pytest.mark.parametrize("pool", ["foreign", "own_kind"])
@pytest.mark.parametrize("peer_smoothing", [False, True])
@pytest.mark.parametrize(("attack", "budget"), [("direct", 200), ("smoothing", 200), ("repeat_average", 600)])
def test_every_attack_sends_as_many_queries_and_is_judged_by_as_many_images(
    context, monkeypatch, attack, budget, pool, peer_smoothing
):
    sent, judged = [], []

    def ask(trial, protectee):
        asked = interrogate(trial, protectee)
        sent.append((trial.attack, asked.sent))
        return asked

    def check(context, trial, believed, queries, pool):
        judged.append(queries)
        return [{"epoch": 1, "accuracy": 0.5, "labels": [1] * 10}]

    monkeypatch.setattr(forget_quality, "interrogate", ask)
    monkeypatch.setattr(forget_quality, "_train_with_checkpoints", check)
    monkeypatch.setattr(StudyContext, "cached", lambda self, name, depends_on, compute: compute())
    sizes = replace(context.spec.sizes, peer_smoothing=peer_smoothing)
    tried = replace(context, spec=replace(context.spec, budget=budget, sizes=sizes))
    forget_quality.measure(tried, ForgetQuality(defenses=(), attack=attack, pool=pool, control=False))
    images = len(context.protectee_for(pool).pool)
    expected = {"direct": min(budget, images)} | {
        attack: 3 * min(budget // 3, images) if attack != "direct" else budget
    }
    assert dict(sent) == expected
    assert {len(queries) for queries in judged} == {min(budget, images)}


def test_every_thief_but_the_clean_ones_has_a_panel():
    points = [{"epoch": 1, "accuracy": 0.3, "p": 0.0}, {"epoch": 2, "accuracy": 0.5, "p": 1.0}]
    config = {"parameters": {"significant": 0.05}}
    pictures = [
        forget_quality.draw(
            {"config": config, "rows": {CLEAN: points, CONTROL: points, **dict.fromkeys(names, points)}}
        )
        for names in ("abc", "abcd", "abcde")
    ]
    widths, heights = zip(*(struct.unpack(">II", png[16:24]) for png in pictures), strict=True)
    assert widths[0] < widths[1] == widths[2]
    assert heights[0] == heights[1] < heights[2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60))
def test_quartiles_share_every_class_evenly_and_in_order(drawn):
    labels, far = (torch.tensor(column) for column in zip(*drawn, strict=True))
    parts = split_quartiles(far.double(), labels, 3)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(drawn)))
    for k in range(3):
        own = [far[part][labels[part] == k].tolist() for part in parts]
        assert max(map(len, own)) - min(map(len, own)) <= 1
        for nearer, farther in pairwise(own):
            assert not nearer or not farther or max(nearer) <= min(farther)


def test_a_sample_has_as_many_of_every_class_and_says_so_if_it_cannot():
    labels = torch.tensor([0] * 5 + [1] * 3)
    chosen = sample(torch.arange(8), labels, 2, 3, torch.Generator().manual_seed(0))
    assert labels[chosen].tolist() == [0, 0, 0, 1, 1, 1]
    assert len(set(chosen.tolist())) == 6
    with pytest.raises(OptionError, match="per_class is 4, but a quartile has only 3 images of class 1"):
        sample(torch.arange(8), labels, 2, 4, torch.Generator())


def test_thieves_of_quartiles_have_farther_and_farther_images(context):
    distances = ("map", "feature")
    parameters = Quartiles(sources=("train",), distances=distances, attacks=("direct",), per_class=5, seeds=(0, 1))
    rows = quartiles.measure(context, parameters)["rows"]
    assert [row["distance"] for row in rows] == ["map", "feature"]
    for row in rows:
        assert all(0.5 < share <= 1 for share in row["victim_right"])
        assert row["mean_distance"] == sorted(row["mean_distance"])
        assert [len(runs) for runs in row["accuracy"]] == [2] * 4
        assert all(0 < run <= 1 for runs in row["accuracy"] for run in runs)


def test_networks_may_learn_true_labels_as_in_the_paper(context, monkeypatch):
    learnt = []

    def steal(transcript, knowledge, generator):
        learnt.append(transcript)
        return context.protectee.victim.model

    monkeypatch.setitem(quartiles.ATTACKS, "direct", SimpleNamespace(steal=steal))
    parameters = Quartiles(sources=("own_kind",), attacks=("label_only",), true_labels=True, per_class=3, seeds=(0,))
    rows = quartiles.measure(context, parameters)["rows"]
    assert [row["attack"] for row in rows] == ["label_only", "true_labels"]
    x, y = context.own_kind_images()
    truth = {fingerprint(image): label for image, label in zip(x, y.tolist(), strict=True)}
    assert len(learnt) == 4  # one a quartile
    for transcript in learnt:
        assert transcript.answers.max(1).values.tolist() == transcript.answers.sum(1).tolist() == [1.0] * 30
        assert [truth[fingerprint(image)] for image in transcript.x] == transcript.answers.argmax(1).tolist()


def test_distances_are_those_the_guard_measures(context):
    x, _ = context.own_kind_images()
    labels = context.protectee.victim.clean(x).argmax(1)
    distances = measure_distances(context.fit_bundle(), x, labels, "map")
    trial = context.make_trial("queen", seed=0, options={"threshold": 100.0, "radius": 1e-6})
    service = DEFENSES[trial.defense].start(context.protectee.victim, trial.generator("defense"), **trial.options)
    service.client("c")(x)
    assert service.verdicts["A"] == int((distances >= 1).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": ("tran",)}, "'tran' is not known; known: own_kind, train; did you mean 'train'"),
        ({"distances": ("mapp",)}, "did you mean 'map'"),
    ],
)
def test_unknown_names_of_quartiles_are_refused(changes, message):
    with pytest.raises(OptionError, match=message):
        Quartiles(**changes)
