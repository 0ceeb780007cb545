"""The demo's takeaway: it follows the figures, and bad news is told as such."""

from __future__ import annotations

from typing import Any

import pytest

from queen.demo.takeaway import takeaway


def results(foreign: float | None, own: float | None, honest: float = 0.95, accused: int = 0) -> dict[str, Any]:
    """What a demo finds where copies without protection have 64 % and 94 %, and honest clients 95 %."""

    def policy(accuracies: dict[str, float | None], right: float) -> dict[str, Any]:
        pools = {pool: {"thief_direct": value, "thief_label_only": value} for pool, value in accuracies.items()}
        return {**pools, "benign_accuracy": right}

    undefended = policy({"foreign": 0.64, "own_kind": 0.94}, 0.95)
    sentinel = policy({"foreign": foreign, "own_kind": own}, honest)
    clients = {"orders": {"clients": 1000, "accused": accused}, "loops": {"clients": 20, "accused": 0}}
    return {
        "chance": 0.12,
        "policies": {"undefended": undefended, "sentinel": sentinel},
        "sentinel": {"benign_clients": clients},
    }


def test_good_news_and_bad_news_side_by_side():
    assert takeaway(results(0.32, 0.94)) == (
        "A thief with foreign images is held off: its copy gets 32.0% of held-out digits right behind the sentinel,"
        " 64.0% without protection. A thief with images of the victim's own kind is not stopped: its copy gets "
        "94.0% of held-out digits right behind the sentinel, 94.0% without protection. An honest client notices "
        "next to nothing: 95.0% of its answers are right (95.0% without protection), and none of 1,020 simulated "
        "honest clients was accused."
    )


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"foreign": 0.63}, "foreign images is not stopped"),
        ({"foreign": 0.70}, "foreign images is not stopped: its copy gets 70.0%"),
        ({"foreign": None}, "foreign images gets nothing to learn from; without protection its copy gets 64.0%"),
        ({"own": 0.70}, "own kind is hindered, not stopped: its copy gets 70.0%"),
        ({"honest": 0.80}, "An honest client pays for it: 80.0% of its answers are right (95.0% without protection)"),
        ({"accused": 1}, "1 of 1,020 simulated honest clients was accused"),
        ({"accused": 400}, "400 of 1,020 simulated honest clients were accused"),
    ],
)
def test_whatever_the_figures_say(figures, told):
    assert told in takeaway(results(**{"foreign": 0.32, "own": 0.94, **figures}))


def test_many_accounts_are_told_of_where_they_were_tried():
    found = results(0.32, 0.94)
    assert "many accounts" not in takeaway(found)
    columns = {"undefended": {"thief": 0.66}, "sentinel": {"thief": 0.60}}
    found["adaptive"] = {"thieves": {"many_accounts": {"knows": [], "columns": columns}}}
    assert "A thief with many accounts is hindered, not stopped: its copy gets 60.0%" in takeaway(found)
    columns["sentinel"]["thief"] = 0.66
    assert "A thief with many accounts is not stopped: its copy gets 66.0%" in takeaway(found)
