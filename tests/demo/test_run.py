from __future__ import annotations

import copy
import json
import math
from collections import Counter

import pytest
import torch

import queen.demo.run as module
from queen import Verdict
from queen.demo.run import load_images
from queen.training import predict

THIEF = {
    "thief_direct", "thief_label_only", "agreement", "thief_direct_runs", "thief_label_only_runs", "answers", "flags",
}  # fmt: skip
ATTACK = THIEF | {"queries", "verdicts", "honest_answers", "alarm_at"}


def without_times(results: dict) -> dict:
    results = copy.deepcopy(results)
    del results["seconds"], results["fit"]["seconds"]
    for policy in results["policies"].values():
        del policy["time_ratio"]
    return results


def test_the_results_are_json_and_hold_what_was_promised(demo):
    results = json.loads(json.dumps(demo.results, allow_nan=False))
    assert results == demo.results
    assert set(results["policies"]) == {"undefended", "paper", "strict", "sentinel"}
    for policy in results["policies"].values():
        for key in ("thief_direct", "thief_label_only", "agreement", "benign_accuracy"):
            assert 0 <= policy[key] <= 1
        assert 0 <= policy["benign_l1"] <= 2
        assert policy["time_ratio"] > 0
        assert set(policy["foreign"]) == set(policy["own_kind"]) == ATTACK
        assert all(policy[key] == policy["foreign"][key] for key in ("thief_direct", "thief_label_only", "verdicts"))
    assert results["seeds"] == [0]
    assert results["images"] == {
        "train": 1500, "calibration": 2300, "test": 400, "pool_foreign": 300, "pool_own_kind": 800,
    }  # fmt: skip
    assert results["limits"]["paper"]["radius"] == pytest.approx(0.19758, abs=1e-5)
    assert results["limits"]["sentinel"]["radius"] == pytest.approx(0.06586, abs=1e-5)
    assert set(results["policies"]["sentinel"]["foreign_honest_only"]) == THIEF


def test_chance_is_the_share_of_the_most_common_class(demo):
    labels = demo.images.test[1].tolist()
    assert demo.results["chance"] == max(Counter(labels).values()) / len(labels)


def test_the_victim_beats_chance_and_undefended_means_untouched(demo):
    results, plain = demo.results, demo.results["policies"]["undefended"]
    assert results["victim_accuracy"] > 5 * results["chance"]
    assert plain["benign_l1"] == 0
    assert plain["benign_accuracy"] == results["victim_accuracy"]
    assert plain["time_ratio"] == 1
    assert plain["verdicts"] == plain["own_kind"]["verdicts"] == plain["benign_verdicts"] == {}
    assert plain["own_kind"]["thief_direct"] > 4 * results["chance"]


def test_a_defended_answer_differs_and_the_own_kind_thief_gets_less(demo):
    plain, paper, strict = (demo.results["policies"][name] for name in ("undefended", "paper", "strict"))
    assert strict["benign_l1"] > paper["benign_l1"] > 0
    for defended in (paper, strict):
        assert defended["own_kind"]["thief_direct"] < plain["own_kind"]["thief_direct"]
        assert defended["benign_accuracy"] <= plain["benign_accuracy"]


def test_the_sentinel_leaves_the_foreign_thief_at_chance_and_the_benign_client_alone(demo):
    results, policy = demo.results, demo.results["policies"]["sentinel"]
    plain = results["policies"]["undefended"]
    assert policy["benign_l1"] == policy["benign_refused"] == policy["benign_alarmed"] == 0
    assert policy["benign_accuracy"] == plain["benign_accuracy"]
    assert policy["alarm_at"] == policy["foreign"]["alarm_at"]
    assert policy["honest_answers"] == policy["foreign"]["honest_answers"] == policy["foreign_honest_only"]["answers"]
    assert policy["alarm_at"] - 1 <= policy["honest_answers"] < 150
    assert policy["foreign"]["answers"] == policy["foreign"]["queries"]  # decoys are answers too
    better = max(policy["thief_direct"], policy["thief_label_only"])
    # Here a third of the answers is honest; the full demo holds the figure that counts.
    assert better < max(plain["thief_direct"], plain["thief_label_only"])
    assert policy["own_kind"]["honest_answers"] == policy["own_kind"]["queries"]


def test_no_benign_client_is_accused_and_every_foreign_one_is(demo):
    watched = demo.results["sentinel"]
    assert watched["alpha"] == 1e-3
    assert "probability at most 0.001" in watched["statement"]
    kinds = {"random_orders", "one_predicted_class", "one_true_class", "retry_loops", "retries_in_a_stream"}
    assert set(watched["benign_clients"]) == kinds
    assert all(kind["accused"] == 0 < kind["clients"] for kind in watched["benign_clients"].values())
    orders = watched["foreign_orders"]
    assert orders["accused"] == orders["orders"] == 30
    assert 1 < orders["median"] <= orders["p95"] <= orders["worst"] <= 300


def test_the_cost_is_told_by_the_number_of_queries(demo):
    cost = demo.results["sentinel"]["cost"]
    assert set(cost) == {"paper", "strict", "sentinel"}
    for lines in cost.values():
        assert lines["queries"] == list(range(100, 1300, 100))
        assert {len(line) for line in lines.values()} == {12}
    assert cost["sentinel"]["l1"] == [0] * 12
    assert min(cost["paper"]["l1"]) > 0
    assert cost["paper"]["answered"] == [1] * 12
    first = demo.images.test[1][:100] == predict(demo.guard.bundle.split.model, demo.images.test[0][:100])
    assert cost["sentinel"]["right"][0] == first.double().mean()


def test_verdict_shares_sum_to_one(demo):
    for name in ("paper", "strict"):
        policy = demo.results["policies"][name]
        for shares in (policy["foreign"]["verdicts"], policy["own_kind"]["verdicts"], policy["benign_verdicts"]):
            assert set(shares) <= set("ABCD")
            assert math.isclose(sum(shares.values()), 1)


def test_the_table_and_the_maps_tell_of_the_same_clients(demo):
    assert list(demo.maps) == ["foreign", "own_kind"]
    for pool, queries in demo.maps.items():
        attack = demo.results["policies"]["paper"][pool]
        assert {k: v / len(queries.letters) for k, v in Counter(queries.letters).items()} == attack["verdicts"]
        assert len(queries.letters) == attack["queries"] == len(demo.images.pools[pool])
        # Which verdict a query gets does not depend on the policy, only what is done about it.
        assert demo.results["policies"]["strict"][pool]["verdicts"] == attack["verdicts"]


def test_every_attacker_is_a_client_of_its_own(demo):
    for pool, queries in demo.maps.items():
        served = module._serving(demo.guard, "paper")
        replies = served.answer(demo.images.pools[pool], client="alone")
        assert "".join(verdict.value for verdict in replies.verdicts) == queries.letters
    assert Verdict(demo.maps["own_kind"].letters[0]) in (Verdict.OUTSIDE, Verdict.FRESH)


def test_the_own_kind_attacker_meets_every_verdict_and_the_foreign_one_is_mostly_outside(demo):
    own, foreign = (demo.results["policies"]["paper"][pool]["verdicts"] for pool in ("own_kind", "foreign"))
    assert all(own[letter] > 0.02 for letter in "BCD")
    assert foreign["A"] > own["A"]
    assert foreign["A"] > 0.5


def test_theorem_3_counts_every_query_of_the_own_kind_attacker(demo):
    found = demo.results["theorem3_paper_own_kind"]
    assert {letter: one["rows"] for letter, one in found.items()} == Counter(demo.maps["own_kind"].letters)
    assert all(found[letter]["bound"] == found[letter]["fitted"] == 0 for letter in "CD")
    assert all(found[letter]["fitted"] > 0 for letter in "AB")


def test_points_and_labels_of_the_maps_are_the_guards_own(demo):
    points, labels = demo.train_points
    assert points.shape == (1500, 2)
    victim = demo.guard.bundle.split.model
    assert torch.equal(torch.from_numpy(labels), predict(victim, demo.images.train[0]))
    assert demo.maps["foreign"].points.shape == (300, 2)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_results_but_for_the_times(demo, small_demo):
    again = small_demo()
    assert without_times(again.results) == without_times(demo.results)
    assert again.guard.bundle.identity == demo.guard.bundle.identity
    assert again.guard._secret != demo.guard._secret  # the bundle left behind must not have a public secret


def test_the_parts_of_the_images_are_disjoint_and_complete(mnist, monkeypatch):
    monkeypatch.setattr(module, "mnist5k", lambda: mnist)
    images = load_images()
    parts = [images.train[0], images.calibration[0], images.pools["own_kind"], images.test[0]]
    assert [len(part) for part in parts] == [2500, 1300, 600, 600]
    rows = sorted(row.numpy().tobytes() for part in parts for row in part)
    assert rows == sorted(row.numpy().tobytes() for row in mnist[0])
    assert images.pools["foreign"].shape == (1797, 1, 28, 28)
