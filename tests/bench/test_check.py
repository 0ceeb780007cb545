"""The gate: what passes, what fails, and what it refuses to judge."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from queen import cli
from queen.bench.check import problems
from queen.bench.run import write_result
from queen.errors import OptionError
from tests.support.benchmarks import result


def test_good_results_pass():
    assert problems([result(accuracy=0.3)], max_thief=0.5, min_benign=0.9) == []


def test_a_thief_that_was_ever_too_good_is_a_problem():
    found = problems([result(accuracy=0.45)], max_thief=0.5)  # its best epoch is 0.1 better
    assert found == ["queen, knockoff, direct, seed 0: the thief reaches 55.0%, allowed are 50.0%"]
    assert problems([result(accuracy=0.4)], max_thief=0.5) == []  # the bound itself is allowed


def test_every_run_is_judged_for_itself():
    results = [result(seed=0, accuracy=0.1), result(seed=1, accuracy=0.8), result("rounding", accuracy=0.8)]
    found = problems(results, max_thief=0.5)
    assert [line.partition(":")[0] for line in found] == [
        "queen, knockoff, direct, seed 1",
        "rounding, knockoff, direct, seed 0",
    ]


def test_benign_clients_must_get_what_is_asked_for():
    results = [result(accuracy=0.1, benign=0.8)]
    assert problems(results, max_thief=0.5) == []
    assert problems(results, max_thief=0.5, min_benign=0.8) == []
    (found,) = problems(results, max_thief=0.5, min_benign=0.85)
    assert found.endswith("benign clients get 80.0%, at least 85.0% are asked for")


def test_a_flagged_run_is_no_success():
    results = [result(accuracy=0.1, flags=("the thief collapsed to one class", "budget exceeded"))]
    found = problems(results, max_thief=0.5)
    assert [line.split(": ")[1] for line in found] == ["the thief collapsed to one class", "budget exceeded"]
    assert problems(results, max_thief=0.5, allow_flags=True) == []


def test_a_run_without_thief_is_flagged_but_not_too_good():
    results = [result(accuracy=None, flags=("no thief: nothing was answered",))]
    assert len(problems(results, max_thief=0.0)) == 1
    assert problems(results, max_thief=0.0, allow_flags=True) == []


def test_undefended_runs_are_not_judged_unless_they_are_named():
    results = [result("none", accuracy=0.8), result("bare", defense="none", accuracy=0.8), result(accuracy=0.1)]
    assert problems(results, max_thief=0.5) == []
    assert len(problems(results, max_thief=0.5, columns=["none", "queen"])) == 1


def test_only_the_columns_that_are_named_are_judged():
    results = [result(accuracy=0.8), result("rounding", accuracy=0.1)]
    assert problems(results, max_thief=0.5, columns=["rounding"]) == []
    assert len(problems(results, max_thief=0.5, columns=["queen"])) == 1


def test_nothing_to_judge_is_an_error_and_no_success():
    with pytest.raises(OptionError, match="no results to check"):
        problems([result("none")], max_thief=0.5)
    with pytest.raises(OptionError, match="no results to check"):
        problems([], max_thief=0.5)


def test_a_column_that_is_not_there_is_an_error_even_beside_one_that_is():
    with pytest.raises(OptionError, match=r"no results of 'quen'.*did you mean 'queen'"):
        problems([result(accuracy=0.1)], max_thief=0.5, columns=["queen", "quen"])


@pytest.mark.parametrize("bound", [50, -0.1, 1.01, float("nan"), float("inf")])
def test_bounds_are_shares_not_percent(bound):
    """A gate of 50 would let everything through."""
    with pytest.raises(OptionError, match="max_thief must be a number from 0 to 1"):
        problems([result(accuracy=0.1)], max_thief=bound)
    with pytest.raises(OptionError, match="min_benign must be a number from 0 to 1"):
        problems([result(accuracy=0.1)], max_thief=0.5, min_benign=bound)


# As a command


@pytest.fixture
def gate(tmp_path):
    def run(*words: object, **changes: object) -> tuple[int, str]:
        write_result(tmp_path / "digits8" / "queen" / "knockoff-direct-s0.json", result(**changes))
        done = CliRunner().invoke(cli.app, ["bench", "check", str(tmp_path), *map(str, words)])
        return done.exit_code, done.stdout

    return run


def test_the_exit_code_says_it(gate):
    assert gate("--max-thief", 0.7) == (0, "passed\n")
    code, shown = gate("--max-thief", 0.5)
    assert code == 1
    assert shown.splitlines() == [
        "queen, knockoff, direct, seed 0: the thief reaches 60.0%, allowed are 50.0%", "failed",
    ]  # fmt: skip
    assert gate("--max-thief", 0.7, "--min-benign", 0.95)[0] == 1
    assert gate("--max-thief", 0.7, flags=("it is flagged",))[0] == 1
    assert gate("--max-thief", 0.7, "--allow-flags", flags=("it is flagged",))[0] == 0
    assert gate("--max-thief", 0.7, "--defense", "queen")[0] == 0


def test_json_says_the_same(gate):
    code, shown = gate("--max-thief", 0.5, "--json")
    assert code == 1
    assert json.loads(shown) == {
        "passed": False,
        "problems": ["queen, knockoff, direct, seed 0: the thief reaches 60.0%, allowed are 50.0%"],
    }
    code, shown = gate("--max-thief", 0.7, "--json")
    assert (code, json.loads(shown)) == (0, {"passed": True, "problems": []})


def test_a_flag_that_a_measurement_explains_is_no_problem():
    flagged = result(accuracy=0.1, flags=("odd",))
    assert problems([flagged], max_thief=0.5) != []
    assert problems([{**flagged, "explained": {"odd": "measured"}}], max_thief=0.5) == []
