from __future__ import annotations

import copy
import json
import math
from collections import Counter

import pytest
import torch

from queen import Verdict
from queen.attacks import ATTACKS
from queen.bench import run as bench_run
from queen.core.certify import certify
from queen.demo import run as module
from queen.demo.measure import SCORES
from queen.demo.run import DELTA, EPSILON, demo_spec, own_kind_spec
from queen.errors import QueenError
from queen.options import Limits
from queen.training import predict
from tests.demo.conftest import tiny
from tests.support.guards import fitted

THIEF = {"thief_direct", "thief_direct_runs", "agreement", "flags"}
ATTACK = THIEF | {
    "thief_label_only", "thief_label_only_runs", "queries", "answers", "verdicts", "honest_answers", "alarm_at",
}  # fmt: skip


def without_times(results: dict) -> dict:
    results = copy.deepcopy(results)
    del results["seconds"], results["fit"]["seconds"]
    for policy in results["policies"].values():
        del policy["time_ratio"]
    return results


# The specs that ship


@pytest.mark.parametrize("policy", EPSILON)
def test_the_radii_are_the_sound_ones(policy):
    options = demo_spec(0).defenses[policy]
    threshold = next(cell.options["threshold"] for cell in demo_spec(0).cells() if cell.column == policy)
    assert options["radius"] == pytest.approx(certify(EPSILON[policy], DELTA, threshold).rho_sound, abs=5e-4)


def test_every_digit_has_one_use_and_attackers_send_all_they_own():
    spec = demo_spec(0)
    protectee = spec.protectee
    assert protectee.train + protectee.calibration + protectee.benign + protectee.test == 5000
    assert spec.budget == 1797  # all of scikit-learn's digits
    own = own_kind_spec(spec)
    assert (own.protectee.pool, own.budget) == ("benign", 600)
    assert {cell.attack for cell in own.cells()} == {"direct", "label_only"}
    assert {cell.attack for cell in spec.cells()} == {"direct", "label_only"}


def test_the_seed_is_that_of_victim_and_maps():
    spec = demo_spec(7)
    assert spec.protectee.seed == 7
    assert [spec.defenses[policy].get("seed") for policy in spec.defenses] == [None, 7, 7, 7]
    assert spec.seeds == demo_spec(0).seeds == (0, 1, 2, 3, 4)


def test_the_adaptive_attackers_share_the_victim():
    spec = demo_spec(3, adaptive=True)
    assert spec.protectee == demo_spec(3).protectee
    assert {cell.column for cell in spec.cells()} == {"undefended", "sentinel", "decoys"}
    attacks = {cell.attack for cell in spec.cells()}
    assert {"look_alike", "warm_up", "cover_1", "cover_3", "cover_10", "many_accounts", "remap"} < attacks
    assert all(ATTACKS[attack].adaptive for attack in attacks - {"direct", "label_only"})


# What a run measures


def test_the_results_are_json_and_hold_what_was_promised(demo):
    results = json.loads(json.dumps(demo.results, allow_nan=False))
    assert results == demo.results
    assert set(results["policies"]) == {"undefended", "paper", "strict", "sentinel"}
    for policy in results["policies"].values():
        for key in ("thief_direct", "thief_label_only", "agreement", "benign_accuracy", "benign_refused"):
            assert 0 <= policy[key] <= 1
        assert 0 <= policy["benign_l1"] <= 2
        assert policy["time_ratio"] > 0
        assert set(policy["foreign"]) == set(policy["own_kind"]) == ATTACK
        assert all(policy[key] == policy["foreign"][key] for key in ("thief_direct", "thief_label_only", "verdicts"))
    assert results["seeds"] == [0]
    assert results["images"] == {
        "train": 800, "calibration": 500, "test": 200, "pool_foreign": 150, "pool_own_kind": 200,
    }  # fmt: skip
    assert results["limits"]["paper"] == {
        "radius": 0.4, "threshold": 0.2, "extra_answers": 2000, "epsilon": 0.3, "delta": 0.05,
    }  # fmt: skip


def test_chance_is_the_share_of_the_most_common_class(demo):
    labels = demo.protectee.test[1].tolist()
    assert demo.results["chance"] == max(Counter(labels).values()) / len(labels)


def test_the_victim_beats_chance_and_undefended_means_untouched(demo):
    results, plain = demo.results, demo.results["policies"]["undefended"]
    assert results["victim_accuracy"] > 5 * results["chance"]
    assert plain["benign_l1"] == 0
    assert plain["benign_accuracy"] == results["victim_accuracy"]
    assert plain["time_ratio"] == 1
    assert plain["verdicts"] == plain["own_kind"]["verdicts"] == {}
    assert plain["own_kind"]["honest_answers"] == plain["own_kind"]["queries"] == 200


def test_the_policies_of_the_paper_distort_a_benign_clients_answers(demo):
    plain, paper, strict = (demo.results["policies"][name] for name in ("undefended", "paper", "strict"))
    assert strict["benign_l1"] >= paper["benign_l1"] > 0
    for defended in (paper, strict):
        assert defended["benign_accuracy"] <= plain["benign_accuracy"]
        assert defended["own_kind"]["honest_answers"] < 200


def test_the_sentinel_stops_the_foreign_thief_and_leaves_the_benign_client_alone(demo):
    results, policy = demo.results, demo.results["policies"]["sentinel"]
    plain = results["policies"]["undefended"]
    assert 0 < policy["benign_l1"] < 0.01  # rounded
    assert policy["benign_refused"] == 0
    assert policy["benign_accuracy"] == plain["benign_accuracy"]
    assert policy["alarm_at"] == policy["foreign"]["alarm_at"]
    assert policy["honest_answers"] == policy["foreign"]["honest_answers"]
    assert policy["alarm_at"] - 1 <= policy["honest_answers"] < 100
    assert policy["foreign"]["answers"] == policy["honest_answers"]  # the others are refused
    assert policy["own_kind"]["honest_answers"] == policy["own_kind"]["queries"]
    assert policy["own_kind"]["alarm_at"] is None


def test_no_benign_client_is_accused_and_every_foreign_one_is(demo):
    watched = demo.results["sentinel"]
    assert watched["alpha"] == 1e-3
    assert "is ever accused is at most 0.001" in watched["statement"]
    kinds = {"random_orders", "one_predicted_class", "one_true_class", "retry_loops", "retries_in_a_stream"}
    assert set(watched["benign_clients"]) == kinds
    assert all(kind["accused"] == 0 < kind["clients"] for kind in watched["benign_clients"].values())
    orders = watched["foreign_orders"]
    assert orders["accused"] == orders["orders"] == 20
    assert 1 < orders["median"] <= orders["p95"] <= orders["worst"] <= 150


def test_the_cost_is_given_by_the_number_of_queries(demo):
    cost = demo.results["sentinel"]["cost"]
    assert set(cost) == {"paper", "strict", "sentinel"}
    for curve in cost.values():
        assert curve["queries"] == [100, 200, 300, 400]
        assert {len(line) for line in curve.values()} == {4}
    assert max(cost["sentinel"]["l1"]) < 0.01
    assert min(cost["paper"]["l1"]) > 0
    assert cost["paper"]["answered"] == [1] * 4
    x, y = demo.protectee.test
    first = y[:100] == predict(demo.guard.bundle.split.model, x[:100])
    assert cost["sentinel"]["right"][0] == first.double().mean()


def test_verdict_shares_sum_to_one(demo):
    for name in ("paper", "strict", "sentinel"):
        policy = demo.results["policies"][name]
        for shares in (policy["foreign"]["verdicts"], policy["own_kind"]["verdicts"]):
            assert set(shares) <= set("ABCD")
            assert math.isclose(sum(shares.values()), 1)


def test_the_maps_show_every_attackers_queries_and_their_verdicts(demo):
    assert list(demo.maps) == ["foreign", "own_kind"]
    pools = {"foreign": demo.protectee.pool, "own_kind": demo.protectee.benign[0]}
    for pool, queries in demo.maps.items():
        alone = demo.guard.fresh(policy="paper", limits=Limits(radius=0.4))
        replies = alone.answer(pools[pool], client="alone")
        assert "".join(verdict.value for verdict in replies.verdicts) == queries.letters
        assert queries.points.shape == (len(pools[pool]), 2)
    assert Verdict(demo.maps["own_kind"].letters[0]) in (Verdict.OUTSIDE, Verdict.FRESH)


def test_theorem_3_counts_every_query_of_the_own_kind_attacker(demo):
    recovery = demo.results["theorem3_paper_own_kind"]
    assert {letter: one["rows"] for letter, one in recovery.items()} == Counter(demo.maps["own_kind"].letters)
    assert all(one["bound"] == one["fitted"] == 0 for letter, one in recovery.items() if letter in "CD")


def test_points_and_labels_of_the_map_are_the_guards_own(demo):
    points, labels = demo.train_points
    assert points.shape == (800, 2)
    victim = demo.guard.bundle.split.model
    assert torch.equal(torch.from_numpy(labels), predict(victim, demo.protectee.victim.train[0]))


# Attackers who know the sentinel


def test_every_adaptive_attacker_reports_what_it_got(demo):
    thieves = demo.results["adaptive"]["thieves"]
    assert list(thieves) == ["direct", "warm_up", "drop_after_alarm"]
    for one in thieves.values():
        assert one["queries"] == 100
        for column in one["columns"].values():
            assert 0 < column["honest_answers"] <= 100
            assert 0 <= column["thief"] <= 1
            assert len(column["runs"]) == 1
    assert "undefended" not in thieves["drop_after_alarm"]["columns"]
    assert thieves["warm_up"]["knows"] == ["benign"]
    assert thieves["warm_up"]["columns"]["sentinel"]["honest_answers"] >= 50  # the benign images are


def test_pooled_accounts_get_hardly_more_than_one(demo):
    """A group's bar is 16 times a client's, which takes it a few more queries to reach."""
    one, fifty = demo.results["adaptive"]["accounts"].values()
    assert fifty["pooled"] <= one["pooled"] + 5
    assert fifty["alone"] > one["alone"]


def test_alarms_are_counted_for_every_kind_of_images_and_scores(demo):
    alarms = demo.results["adaptive"]["alarms"]
    assert list(alarms) == ["plain", "look-alike", "binarised"]
    assert all(list(row) == list(SCORES) for row in alarms.values())
    assert alarms["plain"]["energy"]["accused"] == 20


# Runs


def test_a_finished_demo_attacks_nobody_again_and_measures_the_same(demo, again, monkeypatch):
    monkeypatch.setattr(bench_run, "run_trial", lambda *_, **__: pytest.fail("attacked again"))
    second = again()
    assert without_times(second.results) == without_times(demo.results)
    assert second.guard.bundle.identity == demo.guard.bundle.identity
    assert second.guard._secret != demo.guard._secret  # the bundle left behind must not have a public secret


def test_a_failed_attack_stops_the_demo_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_run, "run_trial", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(module, "protect", lambda *_, **__: fitted("head", policy="sentinel"))
    with tiny(tmp_path), pytest.raises(QueenError, match=r"attacks failed, such as .*ZeroDivisionError"):
        module.run_demo(tmp_path / "out", progress=False)
