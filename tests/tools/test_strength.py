"""What made the attackers stronger, from result files."""

from __future__ import annotations

import json

from queen.bench.spec import read_spec
from tools import strength
from tools.strength import few_table, plan_line


def test_a_thief_with_few_answers_is_a_row_with_the_mean_of_its_seeds(tmp_path, monkeypatch):
    rows = [
        {"answers": 1000, "steps": 20, "accuracies": [0.1, 0.2]},
        {"answers": 685, "steps": 20, "accuracies": [0.1, 0.1]},
        {"answers": 1000, "steps": 1500, "accuracies": [0.5, 0.4]},
        {"answers": 685, "steps": 1500, "accuracies": [0.3, 0.4]},
    ]
    found = tmp_path / "few.json"
    found.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(strength, "FEW", found)
    lines = few_table().splitlines()
    assert lines[0] == "| answers | 20 steps | 1,500 steps |"
    assert lines[2:4] == ["| 685 | 10.0% | 35.0% |", "| 1,000 | 15.0% | 45.0% |"]


def test_the_committed_plan_is_of_the_papers_matrix_and_was_shown_with_columns_that_have_results():
    report = json.loads(strength.PLAN.read_text())
    spec = read_spec(strength.RESULTS.parent / "benchmarks/paper/cifar10.yaml")
    shown = report["shown"]
    folder = strength.AFTER / "cifar10"
    assert set(shown["columns"]) <= {cell.column for cell in spec.cells()}
    assert sum(len(list((folder / column).glob("*-s0.json"))) for column in shown["columns"]) == shown["cells"]
    assert report["plan"]["cells"] == 13 * 12
    assert f"{report['plan']['minutes']:.0f} minutes" in plan_line()
    assert f"{shown['seconds'] / 60:.1f} minutes" in plan_line()
