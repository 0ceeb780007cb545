<<<<<<< HEAD
"""The statement names whom it is about, with which probabilities, and what voids it."""

from __future__ import annotations

import pytest

from queen.options import Sentinel
from queen.sentinel.statement import statement


def said(
    *, certified: bool = True, conditions: tuple[str, ...] = ("clean",), trusted: int = 0, **options: object
) -> str:
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
=======
from __future__ import annotations

from queen.options import Sentinel
from queen.sentinel.statement import BENIGN, statement


def say(certified: bool = True, conditions: tuple[str, ...] = ("clean",), **options) -> str:
    names = ("trusted", "started_over")
    about = {name: options.pop(name) for name in names if name in options}
    return statement(Sentinel(**options), certified=certified, conditions=conditions, **about)


def test_what_is_not_covered_comes_first_then_who_is_benign_then_the_promise():
    said = say(alpha=0.01, delta=0.1, margin=0.3)
    parts = ["Not covered: ", "cascades", "(0.3 standard deviations)", "drift", "mix of true classes", "near-duplicates",
             BENIGN, "With confidence 0.9 ", "at most 0.01", "population of benign clients"]  # fmt: skip
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
    assert places[0] == 0


def test_conditions_narrow_whom_it_is_about():
    assert "a mixture like that of clean, blur" in say(conditions=("clean", "blur"))
    assert "mixture" not in say()


def test_images_that_trained_the_model_promise_nothing():
    said = say(certified=False)
    assert said.startswith("No certificate")
    assert "With confidence" not in said


def test_trusted_clients_promise_more_even_without_a_certificate():
    for certified in (True, False):
        said = say(certified, trusted=19)
        assert "like the 19 trusted ones" in said
        assert "at most 1/20" in said
    assert "trusted" not in say()


def test_a_new_account_is_told():
    assert "started over" in say(started_over=True)
    assert "started over" not in say()
>>>>>>> power
