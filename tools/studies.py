"""Results of studies at another size than the smoke test's: tables for docs/studies.md."""

from __future__ import annotations

from pathlib import Path

from queen.bench.studies import STUDIES
from queen.bench.studies.run import read_study_result

RESULTS = Path(__file__).parents[1] / "results"
# What was measured on which images, by the name of the folder after "studies-".
MEASURED = {
    "cifar10": ("detectors", "costs"),
    "cifar10-light": ("threshold", "radius"),
    "mnist": ("quartiles", "features"),
}


def study_figures(name: str, images: str = "") -> str:
    """The tables and sentences of one study, with certain images or with those of the smoke test."""
    folder = f"studies-{images}" if images else "studies"
    return STUDIES[name].to_markdown(read_study_result(name, RESULTS / folder))
