"""What remains, as the threat model tells it, follows from the results."""

from __future__ import annotations

from tools.threats import THIEVES, remaining_markdown


def column(thief, answers):
    return {"thief": thief, "honest_answers": answers}


def test_the_table_holds_what_was_measured_and_leaves_out_what_was_not():
    thieves = {
        "direct": {"columns": {"undefended": column(0.7, 600), "sentinel": column(0.25, 14.6)}},
        "cover_3": {"columns": {"sentinel": column(0.9, 433)}},
    }
    demo = {
        "adaptive": {"thieves": thieves},
        "sentinel": {"benign_clients": {"a": {"clients": 1000, "accused": 1}, "b": {"clients": 30, "accused": 2}}},
        "victim_accuracy": 0.957,
        "chance": 0.1,
    }
    asked = {"sent": 1990, "budget": 2000}
    columns = {"queen-sentinel": (0.1, 0.2), "none": (0.9,)}
    matrix = [
        {"column": name, "query": "knockoff", "attack": "direct", "thief": {"accuracy": share}, "queries": asked}
        for name, shares in columns.items()
        for share in shares
    ]
    text = remaining_markdown(demo, matrix)
    assert f"| `direct` | {THIEVES['direct']} | 15 | 70.0% | 25.0% | 15.0% |" in text
    assert f"| `cover_3` | {THIEVES['cover_3']} | 433 |  | 90.0% |  |" in text
    assert f"| `greybox_head` | {THIEVES['greybox_head']} |  |  |  |  |" in text
    assert "3 of 1,030 simulated" in text
    assert "2,000 queries each" in text
