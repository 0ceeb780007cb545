"""Recorded traffic of trusted clients: what calibrates, and the bar they set, against the ledger itself."""

from __future__ import annotations

import pytest
import torch

from queen import calibrate
from queen.errors import CalibrationError, ClientError, OptionError
from queen.fit.traffic import split_clients
from queen.guard import Guard
from queen.options import Sentinel
from tests.support.guards import fitted, held_out

X = held_out()[0]
FOREIGN = 1 - X
CLIENTS = {f"client {i}": X[300 + 40 * i : 340 + 40 * i] for i in range(6)}


def by_the_ledger(guard: Guard, x: torch.Tensor) -> float:
    """The highest wealth of a client who sends this, as a real ledger counts it, query by query."""
    free = guard.fresh(policy="sentinel", sentinel=Sentinel(alpha=1e-12, delta=1e-12), on_alarm="observe")
    return max(_wealth_after(free, row) for row in x.split(1))


def _wealth_after(guard: Guard, x: torch.Tensor) -> float:
    guard.judge(guard.measure(x), "a")
    return guard.ledger.standing("a").wealth


def test_the_bar_is_above_all_that_trusted_clients_reach():
    guard = calibrate(fitted("head"), X[:300], trusted=CLIENTS, progress=False)
    trusted = guard.bundle.calibration.trusted
    expected = {name: by_the_ledger(guard, x) for name, x in CLIENTS.items()}
    assert trusted.clients == 6
    assert trusted.highest == pytest.approx(max(expected.values()), rel=1e-12)
    assert (trusted.scores, trusted.margin) == (Sentinel().scores, Sentinel().margin)
    assert "the data calibrates, 6 trusted clients set the bar" in guard.report["traffic"]
    assert "1/7" in guard.bundle.statement
    usual = 1 / (1e-3 * 0.05) * 9.869604401089358 / 6
    assert guard.bundle.test.bar(1) / guard.bundle.test.size == pytest.approx(usual)  # none came near


def test_repeats_of_a_trusted_client_place_no_bets():
    odd = FOREIGN[:8]
    once, again = (
        calibrate(fitted("head"), X[:300], trusted={"a": x}, progress=False).bundle.calibration.trusted.highest
        for x in (odd, odd.repeat(5, 1))
    )
    assert once == again > 1


def test_a_trusted_client_above_the_bar_raises_it_and_is_named():
    calm = calibrate(fitted("head"), X[:300], progress=False)
    wild = calibrate(fitted("head"), X[:300], trusted=CLIENTS | {"odd one": FOREIGN[:40]}, progress=False)
    reached = wild.bundle.calibration.trusted.highest
    assert reached > calm.bundle.test.bar(1) / calm.bundle.test.size
    assert wild.bundle.test.bar(1) > wild.bundle.test.size * reached
    assert any("trusted client 'odd one' exceeds the usual bar" in w for w in wild.report["warnings"])
    assert not any("exceeds" in w for w in calm.report["warnings"])
    served = wild.fresh(policy="sentinel")
    assert not served.answer(FOREIGN[:40], client="like the odd one").alarmed.any()
    assert calm.fresh(policy="sentinel", on_alarm="decoy").answer(FOREIGN[:40], client="like the odd one").alarmed.any()
    plain = [guard.report["alarm_after"]["0:1"] for guard in (calm, wild)]
    assert plain[1]["median"] is None or plain[0]["median"] < plain[1]["median"]


def test_few_calibrating_clients_are_warned_of():
    few, many = ({f"client {i}": X[20 * i : 20 * i + 20] for i in range(count)} for count in (19, 20))
    for clients, data, warned in ((few, None, True), (many, None, False), (few, X[:300], False)):
        guard = calibrate(fitted("head"), data, trusted=clients, progress=False)
        said = "\n".join(guard.report["warnings"])
        assert ("the images of 9 clients stand for those of all" in said) == warned


def test_without_data_half_of_the_clients_calibrate():
    guard = calibrate(fitted("head"), trusted=CLIENTS, progress=False)
    calibration = guard.bundle.calibration
    split = split_clients(CLIENTS, has_data=False, seed=0)
    assert sorted([*split.calibrating, *split.setting_bar]) == sorted(CLIENTS)
    assert len(calibration.labels) + calibration.repeated == sum(len(CLIENTS[name]) for name in split.calibrating)
    assert calibration.trusted.clients == 3
    assert "what 3 trusted clients sent calibrates, 3 trusted clients set the bar" in guard.report["traffic"]


def test_the_split_is_random_but_for_the_seed():
    splits = {tuple(split_clients(CLIENTS, has_data=False, seed=seed).calibrating) for seed in range(20)}
    assert len(splits) > 5
    assert split_clients(CLIENTS, has_data=True, seed=0).setting_bar == sorted(CLIENTS)


def test_other_settings_take_no_bar_from_trusted_clients():
    guard = calibrate(fitted("head"), X[:300], trusted={"odd one": FOREIGN[:40]}, progress=False)
    other = guard.with_options(sentinel=Sentinel(scores=("energy",)))
    assert other.bundle.test.least == 0.0 < guard.bundle.test.least
    assert "trusted" not in other.bundle.statement


@pytest.mark.parametrize(
    ("trusted", "error"),
    [({}, CalibrationError), ({"a": X}, CalibrationError), ({"": X, "b": X}, ClientError), ([X], OptionError)],
    ids=["nobody", "one client", "a client without a name", "a list"],
)
def test_mistakes_are_named(trusted, error):
    with pytest.raises(error):
        calibrate(fitted("head"), trusted=trusted, progress=False)


def test_a_trusted_client_of_endless_wealth_is_refused_by_name():
    thief = torch.rand(600, 64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(CalibrationError, match="trusted client 'thief'"):
        calibrate(fitted("head", sentinel=Sentinel(margin=0.0)), X, trusted={"thief": thief}, progress=False)
