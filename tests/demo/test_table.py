from __future__ import annotations

import pytest

from queen.demo.table import (
    HEADER,
    adaptive_markdown,
    adaptive_tables,
    demo_tables,
    markdown,
    notes,
    rows,
    verdict_shares,
)


def make_attack(direct: float, labels: float, *flags: str, verdicts: dict | None = None) -> dict:
    scores = {"thief_direct": direct, "thief_label_only": labels, "agreement": 0.4321}
    asked = {"queries": 100, "honest_answers": 40, "alarm_at": None, "verdicts": verdicts or {}, "flags": list(flags)}
    return {**scores, **asked}


def make_honest_only(direct: float, answers: float) -> dict:
    return {"thief_direct": direct, "agreement": 0.4321, "answers": answers, "flags": []}


def make_policy(foreign: dict, own_kind: dict, accuracy: float, l1: float, ratio: float) -> dict:
    flags = [f"foreign: {flag}" for flag in foreign["flags"]] + [f"own kind: {flag}" for flag in own_kind["flags"]]
    return {
        "foreign": foreign, "own_kind": own_kind, "flags": flags,
        "benign_accuracy": accuracy, "benign_l1": l1, "time_ratio": ratio,
    }  # fmt: skip


@pytest.fixture
def results() -> dict:
    shares = {"A": 0.5, "C": 0.25, "D": 0.25}
    sentinel = make_policy(make_attack(0.09, 0.08, verdicts=shares), make_attack(0.81, 0.82), 0.912, 0, 1.31)
    sentinel |= {"alarm_at": 41, "foreign_honest_only": make_honest_only(0.43, 40.2)}
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
            "sentinel": sentinel,
        },
        "sentinel": {
            "statement": "Nobody is accused.",
            "honest_answers_bound": 3850,
            "benign_clients": {"random_orders": {"clients": 1000, "accused": 2}},
            "foreign_orders": {"orders": 300, "accused": 300, "median": 33.0, "p95": 43.4, "worst": 56},
        },
    }


def test_every_policy_has_a_row_for_each_attacker(results):
    table = list(rows(results))
    assert all(len(row) == len(HEADER) for row in table)
    assert [row[:2] for row in table] == [
        ("undefended", "foreign"), ("", "own kind"), ("paper", "foreign"), ("", "own kind"),
        ("sentinel", "foreign"), ("", "own kind"), ("", "(honest)"),
    ]  # fmt: skip
    assert table[0][2:] == ("40", "70.1%", "60.2%", "43.2%", "-", "91.2%", "0.00", "1.00")
    assert table[2][2:] == ("40", "30.5%", "40.6%", "43.2%", "50/0/25/25", "90.0%", "0.46", "1.29")
    assert table[3][2:] == ("40", "50.7%", "10.8%", "43.2%", "-", "", "", "")
    assert table[6][2:] == ("40", "43.0%", "", "43.2%", "", "", "", "")


def test_the_notes_say_what_the_better_thief_got(results):
    lines = list(notes(results))
    assert "91.2% on 600 held-out" in lines[0]
    assert "12.3%" in lines[0]
    assert "seeds [0, 1, 2]" in lines[0]
    assert "1797" in lines[1]
    assert "900" in lines[1]
    assert len(lines) == 6
    assert lines[3].startswith("sentinel: the better of both thieves gets 9.0%")
    assert "accused in 300 of 300 random orders" in lines[4]
    assert "(median at query 33, 95 % by 43, the last at 56), in the runs above at query 41 in the median" in lines[4]
    assert "keeps its 40 honest answers reaches 43.0%" in lines[4]
    assert "at most 3850 honest answers" in lines[4]
    assert "2 of 1000 random orders" in lines[5]
    assert "conditional on these 600 images. Nobody is accused." in lines[5]
    assert lines[2].startswith("paper: ")
    assert "40.6% with foreign images (undefended 70.1%)" in lines[2]
    assert "50.7% with the victim's own kind (85.3%)" in lines[2]
    assert "90.0% (91.2%)" in lines[2]


def test_a_thief_who_was_never_accused_is_told_too(results):
    results["sentinel"]["foreign_orders"] = {"orders": 300, "accused": 0}
    results["policies"]["sentinel"]["alarm_at"] = None
    assert "accused in 0 of 300 random orders, in the runs above never" in list(notes(results))[4]


def test_a_flagged_run_has_a_star_and_a_note(results):
    assert "*" not in markdown(results)
    flag = "1 of 3 direct runs: the thief collapsed to one class"
    foreign = make_attack(0.1, 0.4, flag)
    results["policies"]["paper"] = make_policy(foreign, make_attack(0.5, 0.1), 0.9, 0.4, 1.2)
    assert [row[3] for row in rows(results)][:4] == ["70.1%", "85.3%", "10.0%*", "50.0%"]
    assert [row[4] for row in rows(results)][:4] == ["60.2%", "80.4%", "40.0%", "10.0%"]
    assert list(notes(results))[-1] == f"* paper: foreign: {flag}"


def test_the_star_stands_at_the_figure_that_is_flagged(results):
    own_kind = make_attack(0.5, 0.1, "1 of 3 label-only runs: the thief collapsed to one class")
    results["policies"]["paper"] = make_policy(make_attack(0.3, 0.4), own_kind, 0.9, 0.4, 1.2)
    assert [row[4] for row in rows(results)][:4] == ["60.2%", "80.4%", "40.0%", "10.0%*"]
    assert [row[3] for row in rows(results)][:4] == ["70.1%", "85.3%", "30.0%", "50.0%"]


def test_markdown_is_one_table_and_a_list(results):
    table, listed = markdown(results).strip().split("\n\n")
    lines = table.splitlines()
    assert len(lines) == 2 + 7
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(HEADER)
    assert set(lines[1]) == set("| -")
    assert lines[4].startswith("| paper | foreign | 40 | 30.5% |")
    assert listed.splitlines() == [f"- {note}" for note in notes(results)]


def test_verdict_shares_are_percentages_in_order():
    assert verdict_shares({"D": 0.005, "A": 0.62, "B": 0.375}) == "62/38/0/0"
    assert verdict_shares({}) == "-"


@pytest.fixture
def adaptive(results) -> dict:
    thief = {
        "queries": 600,
        "honest_answers": 30.6,
        "alarmed": 0.951,
        "thief_accuracy": 0.123,
        "flags": [],
        "knows": [],
    }
    orders = {"orders": 300, "accused": 300, "median": 33.0, "p95": 43.4, "worst": 56}
    never = {"orders": 300, "accused": 0}
    return results | {
        "adaptive": {
            "thieves": {
                "direct": thief | {"thief_undefended": 0.601},
                "warm_up": thief | {"thief_undefended": None, "knows": ["benign"], "flags": ["1 of 5 runs: stuck"]},
            },
            "accounts": {"1": {"alone": 28, "pooled": 30}, "1000": {"alone": 1797, "pooled": 31}},
            "alarms": {"plain": {"energy": orders, "energy and knn": never}},
        }
    }


def test_adaptive_attackers_have_tables_of_their_own(adaptive, results):
    assert [table.title for table in demo_tables(results)] == [""]
    thieves, accounts, alarms = adaptive_tables(adaptive)
    assert demo_tables(adaptive)[1:] == [thieves, accounts, alarms]
    assert thieves.rows == (
        ("direct", "600", "31", "95%", "60.1%", "12.3%"),
        ("warm_up†", "600", "31", "95%", "-", "12.3%*"),
    )
    assert thieves.notes[-1] == "* warm_up: 1 of 5 runs: stuck"
    assert accounts.rows == (("1", "28", "30"), ("1000", "1797", "31"))
    assert alarms.header == ("images", "energy", "energy and knn")
    assert alarms.rows == (("plain", "300 of 300, at 33", "0 of 300"),)
    for table in (thieves, accounts, alarms):
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_the_adaptive_markdown_is_three_titled_tables(adaptive):
    text = adaptive_markdown(adaptive)
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        "**Thieves who know the sentinel**", "**Many accounts**", "**Images made to look usual**",
    ]  # fmt: skip
    assert "| warm_up† | 600 | 31 | 95% | - | 12.3%* |\n" in text
    assert "| 1000 | 1797 | 31 |\n" in text
