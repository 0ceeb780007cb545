from __future__ import annotations

import json

from tools.studies import CIFAR, cifar_detectors, in_present_form


def test_an_earlier_result_is_shown_with_its_own_figures():
    earlier = json.loads((CIFAR / "detectors.json").read_text())
    shown = cifar_detectors()
    assert earlier["rows"]
    for name, row in in_present_form(earlier)["rows"].items():
        assert row["attacks"]["knockoff"]
        assert f"| {name} | " in shown
        assert f" {row['benign']['mixed']['accused']} (" in shown
    assert "| mixed | 1000 |" in shown


def test_a_present_result_is_left_as_it_is():
    present = {"covers": {"knockoff": 0}, "rows": {}}
    assert in_present_form(present) is present
