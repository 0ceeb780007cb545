from __future__ import annotations

import pytest
from scipy.stats import beta

from queen.bench.studies.detectors import STUDY, Detectors, measure, to_markdown, upper_limit
from queen.errors import OptionError


@pytest.mark.parametrize(("hits", "trials"), [(0, 100), (1, 100), (7, 20), (19, 20)])
def test_the_limit_is_that_of_clopper_and_pearson(hits, trials):
    assert upper_limit(hits, trials) == pytest.approx(beta.ppf(0.95, hits + 1, trials - hits))
    assert upper_limit(trials, trials) == 1


def test_the_limit_covers_no_hits_as_the_rule_says():
    """No hit in n trials has probability 1 - level at the limit."""
    assert (1 - upper_limit(0, 50)) ** 50 == pytest.approx(0.05)


def test_more_images_than_there_are_are_refused(context):
    with pytest.raises(OptionError, match="images must be from 1 to the 300 test images, got 301"):
        measure(context, Detectors(defenses=("seat",), images=301))


def test_unknown_queries_are_refused(context):
    with pytest.raises(OptionError, match="did you mean 'knockoff'"):
        STUDY.needs(context.spec, Detectors(queries=("knockof",)))


@pytest.mark.slow
def test_alarms_and_honest_answers_are_counted(context):
    parameters = Detectors(
        defenses=("mmd", "quick-sentinel"), queries=("knockoff",), alpha=0.05, clients=4, images=100, seeds=(0, 1)
    )
    result = measure(context, parameters)
    for row in result["rows"].values():
        assert 0 <= row["accused"] <= 4
        assert row["upper"] == upper_limit(row["accused"], 4)
        for run in row["attacks"]["knockoff"]:
            alarm = run["alarm"] or result["budget"] + 1
            assert run["honest"] <= alarm - 1  # a spent budget is refused too
    shown = to_markdown({**result, "config": {"parameters": vars(parameters)}})
    assert "| mmd |" in shown
