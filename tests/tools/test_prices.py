"""The tables and the picture of what copies cost, from result files."""

from __future__ import annotations

import json

from tests.support.prices import curve_of
from tools.prices import (
    lengths_markdown,
    limits_markdown,
    max_copy_markdown,
    price_markdown,
    price_picture,
    read_prices,
    sold_markdown,
)

PRICE = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2)]).as_json() | {"statements": ["One client buys it."]}


def test_a_new_result_file_is_shown_without_more_ado(tmp_path):
    for name in ("cifar10", "demo", "my-model"):
        (tmp_path / f"{name}.json").write_text(json.dumps(PRICE))
    assert list(read_prices(tmp_path)) == ["the demo's digits", "CIFAR-10", "my-model"]
    text = price_markdown(tmp_path)
    assert text.startswith("The demo's digits:\n\n| images |")
    assert text.count("- One client buys it.") == 3
    assert price_picture(tmp_path).startswith(b"\x89PNG")


def test_promises_and_refusals_are_told(tmp_path):
    thieves = [{"attack": attack, "agreement": share} for attack, share in (("direct", 0.5), ("direct", 0.6))]
    kept = {"max_copy": 0.7, "promised": True, "answers": 35, "thieves": thieves, "spread": 0.1, "holds": True}
    refused = {"max_copy": 0.6, "promised": False, "refusal": "too easy"}
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"bounds": [refused, kept, kept | {"holds": False}]}))
    lines = max_copy_markdown(path).splitlines()
    assert lines[0] == "- `max_copy=0.6`: not promised: too easy."
    assert "the best of 2 own-kind thieves: direct 60.0%" in lines[1]
    assert lines[1].endswith("holds.")
    assert lines[2].endswith("does NOT hold.")


def test_what_a_budget_sells_is_told_by_the_day_and_where_it_was_not_measured(tmp_path):
    curve = curve_of([(30, "held-out", False, 0.1, 0.15, 0.2), (3000, "held-out", False, 0.6, 0.7, 0.8)])
    (tmp_path / "demo.json").write_text(json.dumps(curve.as_json() | {"statements": []}))
    lines = sold_markdown(tmp_path).splitlines()
    assert "copy in a day" in lines[0]
    day, month, year = (curve.agreement_at(50 * days) for days in (1, 30, 365))
    assert lines[2] == f"| the demo's digits | 50 | {day:.1%} | {month:.1%} | ≥ {year:.1%} |"
    assert lines[4].count("≥") == 3  # 10,000 a day


def test_what_limits_cost_is_a_row_each(tmp_path):
    def sent(queries, refused, wrong):
        return {"queries": queries, "refused": refused, "wrong_labels": wrong}

    rows = [
        {"name": "default", "all_classes": sent(10_000, 0.0, 0), "one_class": sent(1000, 0.0, 0)},
        {"name": "few", "all_classes": sent(10_000, 0.5, 1), "one_class": sent(900, 0.25, 2)},
    ]
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"rows": rows, "protectee": {"accuracy": 0.9}}))
    text = limits_markdown(path)
    assert "| default | 0.0% | 0.0% | 0 |" in text
    assert "| few | 50.0% | 25.0% | 3 |" in text
    assert "a victim of 90.0%" in text


def test_how_long_students_learned_is_a_row_for_every_length_and_number_of_answers(tmp_path):
    def row(steps, answers, label_only, agreement):
        figures = {"agreement": agreement, "low": agreement - 0.01, "high": agreement + 0.01, "passes": steps / answers}
        return {"batch": 1, "steps": steps, "answers": answers, "label_only": label_only, **figures}

    rows = [row(steps, 30, label_only, steps / 1000) for steps in (300, 600) for label_only in (False, True)]
    (tmp_path / "demo.json").write_text(json.dumps({"rows": rows}))
    shown = lengths_markdown(tmp_path)
    assert "| the demo's digits | 30 | 300 of 1 | 10 | 30.0% (29.0% to 31.0%) | 30.0% (29.0% to 31.0%) |" in shown
    assert "| 600 of 1 | 20 | 60.0%" in shown
