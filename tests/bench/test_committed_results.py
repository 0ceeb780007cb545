"""The committed results of the benchmark are complete, and show what the documents say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queen.bench.run import is_finished, read_results
from queen.bench.spec import read_spec
from queen.defenses import DEFENSES
from tests.support.detectors import DETECTORS
from tests.support.paths import ROOT

PUBLISHED = ("direct", "label_only", "s4l", "s4l_average", "smoothing", "ddae", "ddae_plus", "pbayes")
BOTH = ("direct", "label_only", "ddae", "ddae_plus", "pbayes")


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("spec", "folder"), [("smoke", "results/smoke"), ("queen", "results/queen"), ("cifar10", "results/cifar10-h200")]
)
def test_committed_results_are_those_of_the_committed_spec_and_complete(spec, folder):
    cells = list(read_spec(Path(f"benchmarks/{spec}.yaml")).cells())
    assert [str(cell.path) for cell in cells if not is_finished(cell, Path(folder))] == []
    assert len(read_results(Path(folder))) == len(cells)


def test_the_smoke_matrix_has_every_defense_and_every_published_attack():
    found = {(r["column"], r["query"], r["attack"]) for r in read_results(Path("results/smoke"))}
    for defense in DEFENSES:
        once = defense in DETECTORS  # their answers are honest or none: one attack shows it all
        assert {(defense, "knockoff", attack) for attack in (PUBLISHED[:1] if once else PUBLISHED)} <= found
        assert {(defense, "jbda_tr", attack) for attack in (BOTH[:1] if once else BOTH)} <= found


def test_the_first_real_evidence_is_what_was_asked_for():
    results = read_results(Path("results/cifar10-h200"))
    columns = {"none", "label_only", "modelguard_w", "queen", "queen-strict", "queen-sentinel"}
    attacks = {"direct", "label_only", "ddae_plus", "pbayes"}
    assert {(r["column"], r["attack"]) for r in results} >= {(c, a) for c in columns for a in attacks}
    for result in results:
        assert result["protectee"]["accuracy"] >= 0.90
        assert result["protectee"]["images"] == {"train": 45_000, "calibration": 5_000, "test": 10_000, "pool": 50_000}
        assert result["queries"]["sent"] == result["queries"]["budget"] == 50_000
        assert result["oracle_prior"] == (result["attack"] in ("ddae_plus", "pbayes", "drop_after_alarm"))
        assert "H200" in result["hardware"]["device"]
    # Equal beliefs are trained on once; at least eight processes trained at once.
    full = [r["thief"] for r in results if r["attack"] not in ("agreement_filter", "drop_after_alarm")]
    rates = sorted({(thief["images_per_second"], thief["training_seconds"]) for thief in full})
    assert sum(rate for rate, _ in rates[:8]) >= 60_000


def test_no_thief_gets_more_than_chance_from_the_sentinel_on_cifar10():
    results = [r for r in read_results(Path("results/cifar10-h200")) if r["column"] == "queen-sentinel"]
    assert len(results) == 8
    real = [r for r in results if r["attack"] != "drop_after_alarm"]  # that one knows all the clean answers
    assert max(r["thief"]["accuracy"] for r in real) < 0.12


def test_the_papers_settings_reverse_many_answers_of_a_thief_at_the_papers_cost_to_a_benign_client():
    results = {(r["column"], r["attack"]): r for r in read_results(Path("results/queen"))}

    def points_lost(column: str) -> float:
        result = results[column, "direct"]
        return 100 * (result["protectee"]["accuracy"] - result["utility"]["one_client"]["accuracy"])

    for column in ("queen-paper", "queen-paper-heads"):
        shares = results[column, "direct"]["verdicts"]
        assert shares["B"] > 0.1
        assert shares["B"] / (1 - shares["A"]) > 1 / 3  # of those that may be reversed at all
        assert 2 <= points_lost(column) <= 3
        assert results[column, "direct"]["answers"]["label_kept"] < 0.9
    kept = results["queen-keep-label", "direct"]
    assert kept["verdicts"]["B"] > 0.1
    assert kept["answers"]["label_kept"] == 1
    assert points_lost("queen-keep-label") == 0
    assert "B" not in results["queen", "direct"]["verdicts"]  # the default, beside them


def test_the_released_code_collapses_a_direct_thief_at_first_and_is_undone_by_the_sanitiser():
    results = {r["attack"]: r for r in read_results(Path("results/queen")) if r["column"] == "queen-artifact"}
    direct, sanitiser = results["direct"]["thief"], results["sanitiser"]["thief"]
    assert direct["tries"][0] <= results["direct"]["protectee"]["chance"]
    assert direct["retried"]
    assert sanitiser["accuracy"] > max(direct["tries"])


def test_the_prototype_says_what_it_is():
    assert "not part of this repository" in json.loads(Path("results/prototype/cifar10.json").read_text())["what"]
