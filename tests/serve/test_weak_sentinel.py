"""A sentinel that would not catch plain foreign queries is served only to those who ask for it by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queen.errors import CalibrationError, ProtectionWarning
from queen.ledger.memory import MemoryLedger
from queen.options import Sentinel
from queen.sentinel import power
from queen.serve.load import load_guard
from queen.serve.settings import read_settings
from tests.support.serving import small_bundle, small_guard


@pytest.fixture
def weak_bundle(tmp_path, monkeypatch):
    monkeypatch.setattr(power, "LONGEST", 60)
    small_guard(sentinel=Sentinel(margin=10)).save(tmp_path / "weak")
    return tmp_path / "weak"


def test_it_is_refused_with_the_way_out(weak_bundle):
    with pytest.raises(CalibrationError, match=r"expected .* got one that catches 0% .*--weak"):
        load_guard(read_settings({"bundle": weak_bundle}))


@pytest.mark.parametrize("way", ["a flag", "the environment", "a file"])
def test_it_is_served_if_asked_for_with_a_warning_and_a_line_in_the_log(
    weak_bundle, way, monkeypatch, tmp_path, caplog
):
    given, config = {"bundle": weak_bundle}, None
    if way == "a flag":
        given["weak"] = True
    elif way == "the environment":
        monkeypatch.setenv("QUEEN_WEAK", "true")
    else:
        config = tmp_path / "serve.yaml"
        config.write_text("weak: true\n")
    with pytest.warns(ProtectionWarning, match="catches 0% of such thieves"):
        guard = load_guard(read_settings(given, config))
    assert guard.bundle.policy == "sentinel"
    [line] = [record for record in caplog.records if record.message == "weak sentinel"]
    assert line.levelname == "WARNING"
    assert "catches 0%" in line.fields["why"]


def test_other_policies_and_better_sentinels_need_no_leave(weak_bundle, recwarn):
    assert load_guard(read_settings({"bundle": weak_bundle, "policy": "strict"})).bundle.policy == "strict"
    assert load_guard(read_settings({"bundle": weak_bundle, "policy": "none"})).policy.name == "none"
    assert load_guard(read_settings({"bundle": small_bundle()})).bundle.policy == "sentinel"
    assert not [w for w in recwarn if issubclass(w.category, ProtectionWarning)]


def test_the_more_calibrations_a_ledger_has_met_the_sooner_a_sentinel_is_too_weak(monkeypatch):
    settings = read_settings({"bundle": small_bundle()})
    bundle = load_guard(settings).bundle
    monkeypatch.setattr(power, "LONGEST", int(bundle.alarm_after()["0:1"]["p95"]) + 2)
    ledger = MemoryLedger()
    assert load_guard(settings, ledger=ledger).bundle.policy == "sentinel"
    for number in range(2000):
        ledger.number_of(replace(bundle.test, id=number))
    with pytest.raises(CalibrationError, match=r"as calibration 2001 of this ledger.*--start-over"):
        load_guard(settings, ledger=ledger)
    assert ledger.number_of(bundle.test, claim=False) == 2001  # to look is not to claim
