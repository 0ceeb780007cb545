"""The statement names whom it is about, with which probabilities, and what voids it."""

from __future__ import annotations

import pytest

from queen.options import Sentinel
from queen.sentinel.statement import statement


def said(*, certified: bool = True, conditions: tuple[str, ...] = ("clean",), trusted: int = 0, **options: object) -> str:
    started_over = bool(options.pop("started_over", False))
    settings = Sentinel(**options)
    return statement(settings, certified=certified, conditions=conditions, trusted=trusted, started_over=started_over)


@pytest.mark.parametrize(("alpha", "delta"), [(1e-3, 0.05), (0.01, 0.2)])
def test_both_probabilities_are_said(alpha, delta):
    text = said(alpha=alpha, delta=delta)
    assert f"confidence {1 - delta:g}" in text
    assert f"at most {alpha:g}" in text
    assert "benign client" in text


def test_without_held_out_images_there_is_no_certificate():
    text = said(certified=False)
    assert text.startswith("No certificate")
    assert "at most" not in text


def test_conditions_widen_whom_the_statement_is_about():
    assert "mixture like that of clean, noise" in said(conditions=("clean", "noise"))
    assert "mixture" not in said()


def test_trusted_clients_and_a_new_account_are_mentioned_only_if_there_are_any():
    assert "1/40" in said(trusted=39)
    assert "trusted" not in said()
    assert "started over" in said(started_over=True)
    assert "started over" not in said()
