from __future__ import annotations

from queen.options import Sentinel
from queen.sentinel.statement import BENIGN, reword, statement


def say(certified: bool = True, conditions: tuple[str, ...] = ("clean",), **options) -> str:
    names = ("trusted", "started_over")
    about = {name: options.pop(name) for name in names if name in options}
    return statement(Sentinel(**options), certified=certified, conditions=conditions, **about)


def test_what_is_not_covered_comes_first_then_who_is_benign_then_the_promise():
    said = say(alpha=0.01, delta=0.1, margin=0.3)
    not_covered = ["cascades", "(0.3 standard deviations)", "drift", "mix of true classes", "near-duplicates"]
    promise = ["With confidence 0.9 ", "is ever accused is at most 0.01", "Of many benign clients"]
    parts = ["The following promise does not cover", *not_covered, BENIGN, *promise]
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
        assert "a client like the 19 trusted clients" in said
        assert "at most 1/20" in said
    assert "trusted" not in say()
    alone = say(trusted=1)
    assert "a client like the trusted client is accused" in alone
    assert "at most 1/2," in alone
    assert "above all that it reached" in alone


def test_a_certificate_of_an_older_version_is_put_into_todays_words_with_its_own_figures():
    printed = (
        "Not covered: cameras that shift scores by more than the margin (0.3 standard deviations), drift. With "
        "confidence 0.9 over the calibration images, a benign client is ever accused with probability at most 0.01, "
        "over all calibrations of a ledger together."
    )
    assert reword(printed) == reword(reword(printed)) == say(alpha=0.01, delta=0.1, margin=0.3)
    assert reword("Nobody is accused.") == "Nobody is accused."
    for other in (say(certified=False), say(trusted=3), say(conditions=("clean", "blur"))):
        assert reword(other) == other


def test_a_new_account_is_mentioned():
    assert "started over" in say(started_over=True)
    assert "started over" not in say()
