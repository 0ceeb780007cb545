import pytest
import torch

from queen.bench.recovery import recovery_by_verdict
from queen.errors import RefusedError
from tests.support.guards import fitted, queries


@pytest.mark.parametrize("kind", ["head", "network"])
def test_honest_verdicts_hide_nothing_and_the_others_do(kind):
    x = queries(kind)
    found = recovery_by_verdict(fitted(kind), x)
    letters = [verdict.value for verdict in fitted(kind).answer(x, client="a").verdicts]
    assert {letter: one.rows for letter, one in found.items()} == {k: letters.count(k) for k in "ABCD"}
    assert all(found[letter].bound == found[letter].fitted == 0 for letter in "CD")
    assert all(0 <= found[letter].bound <= found[letter].fitted for letter in "AB")
    assert all(found[letter].fitted > 1e-4 for letter in "AB")


def test_the_estimate_is_of_a_fresh_client_and_leaves_the_guard_alone():
    guard, x = fitted(), queries()
    first = recovery_by_verdict(guard, x)
    assert recovery_by_verdict(guard, x) == first
    assert list(guard.ledger.clients()) == []
    assert recovery_by_verdict(fitted(observe=True), x) == first  # what the answers would be


def test_only_verdicts_that_occur_are_estimated():
    x = queries()
    letters = [verdict.value for verdict in fitted().answer(x, client="a").verdicts]
    fresh = x[letters.index("C")][None]
    assert list(recovery_by_verdict(fitted(), fresh)) == ["C"]
    assert recovery_by_verdict(fitted(), torch.cat([fresh] * 3))["D"].rows == 2


def test_the_artifact_policy_leaves_no_verdict_honest():
    found = recovery_by_verdict(fitted(policy="artifact"), queries())
    assert all(one.fitted > 0 for one in found.values())


def test_queries_without_an_answer_are_left_out():
    guard, noise = fitted(policy="sentinel"), torch.rand(100, 64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RefusedError) as refusal:
        guard.fresh().answer(noise, client="a")
    assert sum(one.rows for one in recovery_by_verdict(guard, noise).values()) == (~refusal.value.reply.refused).sum()
