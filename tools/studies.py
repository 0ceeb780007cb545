"""Results of studies at another size than the smoke test's: tables for docs/studies.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queen.bench.studies import STUDIES
from queen.bench.studies.run import read_study_result

RESULTS = Path(__file__).parents[1] / "results"
CIFAR, LIGHT, MNIST = RESULTS / "studies-cifar10", RESULTS / "studies-cifar10-light", RESULTS / "studies-mnist"
Result = Mapping[str, Any]


def cifar_detectors() -> str:
    """The study `detectors` on CIFAR-10."""
    return STUDIES["detectors"].to_markdown(in_present_form(read_study_result("detectors", CIFAR)))


def light_study(name: str) -> str:
    """A study with the images of CIFAR-10 and a small network."""
    return STUDIES[name].to_markdown(read_study_result(name, LIGHT))


def mnist_study(name: str) -> str:
    """A study on MNIST in full."""
    return STUDIES[name].to_markdown(read_study_result(name, MNIST))


def in_present_form(result: Result) -> Result:
    """A result from before the study had cover traffic and several kinds of clients, as one of today would say it."""
    if "covers" in result:
        return result
    parameters, life = result["config"]["parameters"], result["life"]
    sizes = {"clients": parameters["clients"], "queries": [life, life]}
    rows = {
        name: {
            "attacks": row["attacks"],
            "benign": {"mixed": {"accused": row["accused"], "upper": row["upper"], **sizes}},
        }
        for name, row in result["rows"].items()
    }
    return {**result, "rows": rows, "covers": dict.fromkeys(parameters["queries"], 0)}
