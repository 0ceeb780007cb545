from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import beta

from queen.bench.studies import detectors
from queen.bench.studies.base import StudyContext
from queen.bench.studies.detectors import (
    COVERS,
    STUDY,
    Detectors,
    list_ways,
    measure,
    replay,
    to_markdown,
    upper_limit,
)
from queen.bench.trials.trial import Trial
from queen.errors import CalibrationError, OptionError, RefusedError


@pytest.mark.parametrize(("hits", "trials"), [(0, 100), (1, 100), (7, 20), (19, 20)])
def test_the_limit_is_that_of_clopper_and_pearson(hits, trials):
    assert upper_limit(hits, trials) == pytest.approx(beta.ppf(0.95, hits + 1, trials - hits))
    assert upper_limit(trials, trials) == 1


def test_the_limit_covers_no_hits_as_the_rule_says():
    """No hit in n trials has probability 1 - level at the limit."""
    assert (1 - upper_limit(0, 50)) ** 50 == pytest.approx(0.05)


def test_more_images_than_there_are_are_refused(context):
    protectee = replace(context.protectee, test=tuple(part[:40] for part in context.protectee.test))
    with pytest.raises(OptionError, match="life must be at most the number of test images, 40, got 41"):
        measure(replace(context, protectee=protectee), Detectors(defenses=("seat",), life=41))


def test_a_life_that_the_calibration_images_are_too_few_for_is_refused_before_any_work(context):
    with pytest.raises(CalibrationError, match="got 101 with 200 of them: lower life to 100, or give at least 202"):
        STUDY.needs(context.spec, Detectors(defenses=("seat",), life=101))


def test_columns_whose_alarms_are_not_refusals_are_refused(context):
    quiet = {**context.spec.defenses["quick-sentinel"], "on_alarm": "decoy"}
    spec = replace(context.spec, defenses={**context.spec.defenses, "decoys": quiet})
    assert STUDY.needs(spec, Detectors(defenses=("quick-sentinel",))).defenses == ("quick-sentinel",)
    with pytest.raises(OptionError, match="sees alarms by refusals, got 'decoys' with on_alarm decoy: leave it out"):
        STUDY.needs(spec, Detectors(defenses=("quick-sentinel", "decoys")))


@pytest.mark.parametrize(("life", "expected"), [(None, 50), (30, 30)])
def test_all_columns_are_compared_over_the_same_life(context, monkeypatch, life, expected):
    """Thresholds are chosen for it, and benign clients send as many images; the sentinel's rate has no end."""
    lives, sent = [], []

    def make_trial(_, name, **fields):
        lives.append((name, fields["options"].get("life")))
        return SimpleNamespace(seed=0, start_endpoint=lambda _: None)

    monkeypatch.setattr(detectors, "_attack", lambda *_: {"alarm": None, "honest": 0, "cover": 0})
    monkeypatch.setattr(detectors, "replay", lambda *_: lambda rows: sent.append(len(rows)))
    monkeypatch.setattr(StudyContext, "make_trial", make_trial)
    monkeypatch.setattr(StudyContext, "generator", lambda *_: torch.Generator())
    monkeypatch.setattr(StudyContext, "cached", lambda *arguments: arguments[-1]())
    parameters = Detectors(defenses=("seat", "quick-sentinel"), clients=2, life=life, seeds=(0,))
    result = measure(context, parameters)
    assert set(lives) == {("seat", expected), ("quick-sentinel", None)}
    assert sent == [expected] * 4
    assert result["life"] == expected
    shown = to_markdown({**result, "config": {"parameters": vars(parameters)}})
    assert f"over a life of {expected} queries" in shown


def test_unknown_queries_are_refused(context):
    with pytest.raises(OptionError, match="did you mean 'knockoff'"):
        STUDY.needs(context.spec, Detectors(queries=("knockof",)))


def test_wrong_covers_and_kinds_are_refused(context):
    for wrong, message in (
        ({"covers": (0, 2)}, "no attack sends 2 cover images before each of its own; known: 0, 1, 3, 10"),
        ({"covers": (1,), "queries": ("jbda_tr",)}, "only the queries 'knockoff' go with cover"),
        ({"kinds": ("cascad",)}, "no kind of client 'cascad'.*did you mean 'cascade'"),
        ({"defenses": ("queen",)}, "defense 'queen' accuses nobody"),
    ):
        with pytest.raises(OptionError, match=message):
            STUDY.needs(context.spec, Detectors(**wrong))


def test_endpoints_that_accuse_nobody_have_nothing_to_replay(context):
    endpoint = context.make_trial("rounding", seed=0).start_endpoint(context.protectee)
    with pytest.raises(OptionError, match="expected an endpoint that accuses clients, got MappedEndpoint"):
        replay(endpoint, context.protectee.test[0])


def test_only_knockoff_goes_with_cover():
    ways = list_ways(Detectors(queries=("knockoff", "jbda_tr"), covers=(0, 3)))
    assert [way.name for way in ways] == ["knockoff", "knockoff, cover 3:1", "jbda_tr"]
    assert [way.name for way in list_ways(Detectors())] == ["knockoff", "jbda_tr"]


TRIED = ("seat", "mmd", "quick-sentinel")
RATE = {"alpha": 0.05, "clients": 8, "life": 60, "seeds": (0, 1)}


@pytest.fixture(scope="module")
def measured(context):
    parameters = Detectors(
        defenses=TRIED, queries=("knockoff",), covers=(0, 1, 10), kinds=("mixed", "one_class", "cascade"), **RATE
    )
    return measure(context, parameters) | {"config": {"parameters": vars(parameters)}}


@pytest.mark.slow
def test_an_alarm_leaks_at_most_the_answers_before_it(measured):
    for row in measured["rows"].values():
        for way, cover in measured["covers"].items():
            for run in row["attacks"][way]:
                alarm = run["alarm"] or measured["budget"] + 1
                assert run["honest"] + run["cover"] <= alarm - 1  # a spent budget is refused too
                assert run["honest"] <= measured["budget"] // (1 + cover)
                assert cover * run["honest"] <= run["cover"] if cover else run["cover"] == 0


@pytest.mark.slow
def test_answers_are_as_many_as_the_endpoint_says_are_honest(context, monkeypatch):
    started = []
    start = Trial.start_endpoint
    monkeypatch.setattr(Trial, "start_endpoint", lambda *them: started.append(start(*them)) or started[-1])
    for cover, attack in COVERS.items():
        trial = context.make_trial("quick-sentinel", seed=0, attack=attack, options={"alpha": 0.05})
        run = detectors._attack(context, trial, cover)
        assert run["honest"] + run["cover"] == started[-1].verdicts["honest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_without_cover_and_with_mixed_clients_the_figures_are_those_of_asking_one_client_after_the_other(
    context, measured, name
):
    """What the study was before it knew cover and kinds, written down again: every client asks an endpoint itself."""
    options = {"alpha": RATE["alpha"]} | ({} if name == "quick-sentinel" else {"life": RATE["life"]})
    endpoint = context.make_trial(name, seed=0, options=options).start_endpoint(context.protectee)
    x, generator, accused = context.protectee.test[0], context.generator(0, "benign clients"), 0
    for client in range(RATE["clients"]):
        try:
            endpoint.client(f"benign {client}")(x[torch.randperm(len(x), generator=generator)[: RATE["life"]]])
        except RefusedError as refusal:
            accused += bool(refusal.reply.alarmed.any())
    assert measured["rows"][name]["benign"]["mixed"]["accused"] == accused
    for seed, run in zip(RATE["seeds"], measured["rows"][name]["attacks"]["knockoff"], strict=True):
        trial = context.make_trial(name, seed=seed, options=options)
        endpoint = trial.start_endpoint(context.protectee)
        pool = context.protectee.pool[torch.randperm(200, generator=trial.generator("query"))]
        accusing = []
        for start in range(0, len(pool), trial.sizes.ask_batch):
            try:
                endpoint.client("thief")(pool[start : start + trial.sizes.ask_batch])
            except RefusedError as refusal:
                accusing += [start + row + 1 for row, alarmed in enumerate(refusal.reply.alarmed) if alarmed]
        assert run["alarm"] == min(accusing, default=None)
        assert run["honest"] == endpoint.verdicts["honest"]


@pytest.mark.slow
def test_the_tables_show_every_way_and_every_kind(context, measured):
    _, y = context.protectee.test
    shown = to_markdown(measured)
    assert "| honest answers before the alarm of | knockoff | knockoff, cover 1:1 | knockoff, cover 10:1 |" in shown
    assert "a thief sends 100 at 1:1, 18 at 10:1 images of its own" in shown
    sizes = y.bincount()[:8]  # one class for each of the eight clients
    assert sizes.min() < sizes.max() <= 60
    assert f"| one_class | {sizes.min()} to {sizes.max()} |" in shown
    assert "| mixed | 60 |" in shown
    for name in TRIED:
        for kind, counted in measured["rows"][name]["benign"].items():
            assert 0 <= counted["accused"] <= counted["clients"] == 8, kind
            assert counted["upper"] == upper_limit(counted["accused"], 8)


@pytest.mark.slow
def test_parts_that_were_measured_before_are_not_measured_again(context, measured, monkeypatch):
    for work in ("_attack", "_accuse"):
        monkeypatch.setattr(detectors, work, lambda *_: pytest.fail("measured again"))
    fewer = Detectors(defenses=TRIED[:2], queries=("knockoff",), covers=(10, 0), kinds=("cascade",), **RATE)
    rows = measure(context, fewer)["rows"]
    for name, row in rows.items():
        assert row["attacks"]["knockoff, cover 10:1"] == measured["rows"][name]["attacks"]["knockoff, cover 10:1"]
        assert row["benign"] == {"cascade": measured["rows"][name]["benign"]["cascade"]}
