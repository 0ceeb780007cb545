"""The price in sentences."""

from __future__ import annotations

from dataclasses import replace

from queen.price.words import HEADER, budget_sentence, price_lines, purchases, span_sentence, table_rows
from tests.support.prices import curve_of

CURVE = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (3000, "training", True, 0.6, 0.7, 0.8)])


def test_what_accounts_buy_follows_the_curve():
    copies = purchases(CURVE, 300)
    assert [copy["accounts"] for copy in copies] == [1, 10, 100]
    assert [copy["answers"] for copy in copies] == [300, 3000, 30_000]
    assert [copy["agreement"] for copy in copies] == [CURVE.agreement_at(n) for n in (300, 3000, 30_000)]
    assert [copy["beyond"] for copy in copies] == [False, False, True]


def test_the_sentence_says_what_one_client_and_ten_accounts_buy():
    assert budget_sentence(CURVE, 30) == (
        "At your budget (30 honest answers) one client can buy a copy of 70.0% (60.0% to 80.0%); "
        "10 accounts buy 70.0% (60.0% to 80.0%)."
    )
    assert "at least 70.0%" in budget_sentence(CURVE, 5000)
    assert "no more than 3,000 answers were measured" in budget_sentence(CURVE, 5000)


def test_the_lines_say_what_is_not_promised():
    lines = list(price_lines(CURVE, 30, 0.6))
    assert lines[0] == budget_sentence(CURVE, 30)
    assert "no reference student reaches 60%" in lines[1]
    assert "reference students, not proved" in lines[2]
    assert "Nothing here limits" in next(price_lines(CURVE, None, None))


def test_one_seed_has_no_spread():
    [row] = CURVE.rows[:1]
    one = replace(CURVE, rows=(replace(row, low=row.agreement, high=row.agreement),), seeds=(0,))
    sentence, method = list(price_lines(one, row.answers, None))
    assert f"a copy of {row.agreement:.1%};" in sentence
    assert "one seed" in method
    assert " to " in budget_sentence(CURVE, row.answers)


def test_a_budget_that_renews_is_told_by_the_day_and_by_the_year():
    first = next(price_lines(CURVE, None, None, within={"day": 30, "year": 10_950}))
    assert first == span_sentence(CURVE, {"day": 30, "year": 10_950})
    assert "70.0% (60.0% to 80.0%) in a day (30 answers)" in first
    assert "at least 70.0% (60.0% to 80.0%) in a year (10,950 answers)" in first
    assert "no more than 3,000 were measured" in first
    assert "no more than" not in span_sentence(CURVE, {"day": 30})


def test_the_table_has_a_row_for_every_point():
    rows = table_rows(CURVE)
    assert [len(row) for row in rows] == [len(HEADER)] * 2
    assert rows[1] == ("training", "labels", "3,000", "70.0%", "60.0%", "80.0%", "-", "mlp")
