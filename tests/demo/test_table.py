from __future__ import annotations

import pytest

from queen.demo.table import (
    BEST_HEADER,
    HEADER,
    adaptive_markdown,
    adaptive_tables,
    best_markdown,
    best_table,
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
    sentinel |= {"alarm_at": 41, "honest_answers": 40.2}
    curve = {"queries": [100, 200], "right": [0.9, 0.7], "answered": [1.0, 0.8]}
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
            "cost": {"paper": curve, "sentinel": curve | {"right": [0.9, 0.88], "answered": [1.0, 1.0]}},
        },
    }


def test_every_policy_has_a_row_for_each_attacker(results):
    table = list(rows(results))
    assert all(len(row) == len(HEADER) for row in table)
    assert [row[:2] for row in table] == [
        ("undefended", "foreign"), ("", "own kind"), ("paper", "foreign"), ("", "own kind"),
        ("sentinel", "foreign"), ("", "own kind"),
    ]  # fmt: skip
    assert table[0][2:] == ("40", "70.1%", "60.2%", "43.2%", "-", "91.2%", "0.00", "1.00")
    assert table[2][2:] == ("40", "30.5%", "40.6%", "43.2%", "50/0/25/25", "90.0%", "0.46", "1.29")
    assert table[3][2:] == ("40", "50.7%", "10.8%", "43.2%", "-", "", "", "")


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
    assert "Its 40 honest answers before that make a copy of 9.0%" in lines[4]
    assert "at most 3850 honest answers" in lines[4]
    assert "2 of 1000 that send the images in a random order" in lines[5]
    assert "All of them send these 600 images, so other images may give other counts. Nobody is accused." in lines[5]
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
    assert len(lines) == 2 + 6
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == list(HEADER)
    assert set(lines[1]) == set("| -")
    assert lines[4].startswith("| paper | foreign | 40 | 30.5% |")
    assert listed.splitlines() == [f"- {note}" for note in notes(results)]


def test_verdict_shares_are_percentages_in_order():
    assert verdict_shares({"D": 0.005, "A": 0.62, "B": 0.375}) == "62/38/0/0"
    assert verdict_shares({}) == "-"


def make_column(thief: float | None, *flags: str, honest: float = 30.6, labels: float = 0.9) -> dict:
    return {"thief": thief, "honest_answers": honest, "alarmed": 0.951, "labels_right": labels, "flags": list(flags)}


@pytest.fixture
def adaptive(results) -> dict:
    orders = {"orders": 300, "accused": 300, "median": 33.0, "p95": 43.4, "worst": 56}
    never = {"orders": 300, "accused": 0}
    plain, refused = make_column(0.601, honest=600), make_column(0.123)
    thieves = {
        "direct": {"knows": [], "columns": {"undefended": plain, "sentinel": refused}},
        "warm_up": {"knows": ["benign"], "columns": {"sentinel": make_column(0.85, "1 of 5 runs: stuck")}},
        "path": {"knows": [], "columns": {"decoys": make_column(0.11, labels=0.104)}},
        "many_accounts": {"knows": [], "columns": {"sentinel": make_column(0.3)}},
        "greybox_head": {"knows": ["encoder"], "columns": {"sentinel": make_column(0.99)}},
        "drop_after_alarm": {"knows": ["prior"], "columns": {"sentinel": make_column(None)}},
    }
    return results | {
        "adaptive": {
            "seeds": [0, 1],
            "thieves": {name: {"queries": 600} | one for name, one in thieves.items()},
            "accounts": {
                "1": {"alone": 28, "pooled": 30},
                "100": {"alone": 900, "pooled": 31},
                "1000": {"alone": 1797, "pooled": 31},
            },
            "alarms": {"plain": {"energy": orders, "energy and knn": never}},
        }
    }


def test_adaptive_attackers_have_tables_of_their_own(adaptive, results):
    assert [table.title for table in demo_tables(results)] == [""]
    thieves, accounts, alarms = adaptive_tables(adaptive)
    assert demo_tables(adaptive)[1:] == [thieves, accounts, alarms]
    assert thieves.rows[:3] == (
        ("direct", "600", "31", "95%", "60.1%", "12.3%", "-", "-"),
        ("warm_up†*", "600", "31", "95%", "-", "85.0%", "-", "-"),
        ("path", "600", "31", "95%", "-", "-", "11.0%", "10.4%"),
    )
    assert thieves.rows[-1][:1] + thieves.rows[-1][4:] == ("drop_after_alarm°", "-", "-", "-", "-")
    assert thieves.notes[-1] == "* warm_up, sentinel: 1 of 5 runs: stuck"
    assert accounts.rows == (("1", "28", "30"), ("100", "900", "31"), ("1000", "1797", "31"))
    assert alarms.header == ("images", "energy", "energy and knn")
    assert alarms.rows == (("plain", "300 of 300, at 33", "0 of 300"),)
    for table in (thieves, accounts, alarms):
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_the_adaptive_markdown_is_three_titled_tables(adaptive):
    text = adaptive_markdown(adaptive)
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        "**Thieves who know the sentinel**", "**Many accounts**", "**Images made to look usual**",
    ]  # fmt: skip
    assert "| warm_up†* | 600 | 31 | 95% | - | 85.0% | - | - |\n" in text
    assert "| 1000 | 1797 | 31 |\n" in text


def test_the_best_thief_of_every_kind_is_named(adaptive):
    """Insiders are not counted, nor attackers that were left without an answer."""
    table = best_table(adaptive)
    assert {len(row) for row in table.rows} == {len(BEST_HEADER)}
    undefended, paper, sentinel = table.rows
    assert undefended == (
        "undefended", "70.1% (direct, best of 3)", "85.3% (direct, best of 2)", "-", "91.2%", "91.2%", "100.0%",
    )  # fmt: skip
    assert paper[1:4] == ("40.6% (label_only, best of 2)", "50.7% (direct, best of 2)", "-")
    assert paper[4:] == ("90.0%", "80.0%", "90.0%")
    assert sentinel[1:4] == (
        "12.3% (direct, best of 3)", "85.0% (warm_up, best of 3)", "30.0% (many_accounts, best of 1)",
    )  # fmt: skip
    assert (
        "accounts get 900 honest answers together, while a single account gets 28. In one group, the hundred get 31"
        in table.notes[4]
    )
    assert table.notes[3].startswith("Not in the table: greybox_head, 99.0% under the sentinel.")
    assert "2 of 1000 simulated" in table.notes[2]


def test_the_best_thieves_can_do_without_the_adaptive_ones(results):
    assert [row[3] for row in best_table(results).rows] == ["-", "-", "-"]
    assert len(best_table(results).notes) == 3
    assert best_markdown(results).startswith("| policy | best thief, foreign images |")
