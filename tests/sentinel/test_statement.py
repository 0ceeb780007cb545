from __future__ import annotations

from queen.options import Sentinel
from queen.sentinel.statement import BENIGN, statement


def say(certified: bool = True, conditions: tuple[str, ...] = ("clean",), **options) -> str:
    names = ("trusted", "started_over")
    about = {name: options.pop(name) for name in names if name in options}
    return statement(Sentinel(**options), certified=certified, conditions=conditions, **about)


def test_what_is_not_covered_comes_first_then_who_is_benign_then_the_promise():
    said = say(alpha=0.01, delta=0.1, margin=0.3)
    not_covered = ["cascades", "(0.3 standard deviations)", "drift", "mix of true classes", "near-duplicates"]
    promise = ["With confidence 0.9 ", "at most 0.01", "population of benign clients"]
    parts = ["Not covered: ", *not_covered, BENIGN, *promise]
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
    alone = say(trusted=1)
    assert "A client like the trusted one whose traffic was replayed" in alone
    assert "at most 1/2," in alone
    assert "above all that it reached" in alone


def test_a_new_account_is_mentioned():
    assert "started over" in say(started_over=True)
    assert "started over" not in say()
