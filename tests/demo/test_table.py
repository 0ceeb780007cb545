from __future__ import annotations

import pytest

from queen.demo.table import HEADER, markdown, notes, rows, verdict_shares


def make_attack(direct: float, labels: float, *flags: str, verdicts: dict | None = None) -> dict:
    scores = {"thief_direct": direct, "thief_label_only": labels, "agreement": 0.4321}
    return {**scores, "queries": 100, "verdicts": verdicts or {}, "flags": list(flags)}


def make_policy(foreign: dict, own_kind: dict, accuracy: float, l1: float, ratio: float) -> dict:
    flags = [f"foreign: {flag}" for flag in foreign["flags"]] + [f"own kind: {flag}" for flag in own_kind["flags"]]
    return {
        "foreign": foreign, "own_kind": own_kind, "flags": flags,
        "benign_accuracy": accuracy, "benign_l1": l1, "time_ratio": ratio,
    }  # fmt: skip


@pytest.fixture
def results() -> dict:
    shares = {"A": 0.5, "C": 0.25, "D": 0.25}
    return {
        "victim_accuracy": 0.912,
        "chance": 0.1234,
        "seeds": [0, 1, 2],
        "images": {"test": 600, "pool_foreign": 1797, "pool_own_kind": 900},
        "policies": {
            "undefended": make_policy(make_attack(0.701, 0.602), make_attack(0.853, 0.804), 0.912, 0, 1),
            "paper": make_policy(
                make_attack(0.305, 0.406, verdicts=shares), make_attack(0.507, 0.108), 0.9, 0.456, 1.29
            ),
        },
    }


def test_every_policy_has_a_row_for_each_attacker(results):
    table = list(rows(results))
    assert all(len(row) == len(HEADER) for row in table)
    assert [row[:2] for row in table] == [
        ("undefended", "foreign"), ("", "own kind"), ("paper", "foreign"), ("", "own kind"),
    ]  # fmt: skip
    assert table[0][2:] == ("70.1%", "60.2%", "43.2%", "-", "91.2%", "0.00", "1.00")
    assert table[2][2:] == ("30.5%", "40.6%", "43.2%", "50/0/25/25", "90.0%", "0.46", "1.29")
    assert table[3][2:] == ("50.7%", "10.8%", "43.2%", "-", "", "", "")


def test_the_notes_say_what_the_better_thief_got(results):
    told = list(notes(results))
    assert "91.2% on 600 held-out" in told[0]
    assert "12.3%" in told[0]
    assert "seeds [0, 1, 2]" in told[0]
    assert "1797" in told[1]
    assert "900" in told[1]
    assert len(told) == 3
    assert told[2].startswith("paper: ")
    assert "40.6% with foreign images (undefended 70.1%)" in told[2]
    assert "50.7% with the victim's own kind (85.3%)" in told[2]
    assert "90.0% (91.2%)" in told[2]


def test_a_flagged_run_has_a_star_and_a_note(results):
    assert "*" not in markdown(results)
    flag = "1 of 3 direct thieves collapsed to one class"
    foreign = make_attack(0.1, 0.4, flag)
    results["policies"]["paper"] = make_policy(foreign, make_attack(0.5, 0.1), 0.9, 0.4, 1.2)
    assert [row[2] for row in rows(results)] == ["70.1%", "85.3%", "10.0%*", "50.0%"]
    assert [row[3] for row in rows(results)] == ["60.2%", "80.4%", "40.0%", "10.0%"]
    assert list(notes(results))[-1] == f"* paper: foreign: {flag}"


def test_the_star_stands_at_the_figure_that_is_flagged(results):
    own_kind = make_attack(0.5, 0.1, "1 of 3 label-only thieves collapsed to one class")
    results["policies"]["paper"] = make_policy(make_attack(0.3, 0.4), own_kind, 0.9, 0.4, 1.2)
    assert [row[3] for row in rows(results)] == ["60.2%", "80.4%", "40.0%", "10.0%*"]
    assert [row[2] for row in rows(results)] == ["70.1%", "85.3%", "30.0%", "50.0%"]


def test_markdown_is_one_table_and_a_list(results):
    table, listed = markdown(results).strip().split("\n\n")
    lines = table.splitlines()
    assert len(lines) == 2 + 4
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(HEADER)
    assert set(lines[1]) == set("| -")
    assert lines[4].startswith("| paper | foreign | 30.5% |")
    assert listed.splitlines() == [f"- {note}" for note in notes(results)]


def test_verdict_shares_are_percentages_in_order():
    assert verdict_shares({"D": 0.005, "A": 0.62, "B": 0.375}) == "62/38/0/0"
    assert verdict_shares({}) == "-"
