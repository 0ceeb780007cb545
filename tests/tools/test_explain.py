"""The pictures of "How it works" come from real queries, and their caption from the result."""

from __future__ import annotations

import json

import pytest

from tools import explain


def test_the_committed_result_shows_what_the_page_says(tmp_path):
    found = json.loads(explain.RESULT.read_text())
    assert max(found["wealth"]["client"]) < found["bar"]
    assert max(found["wealth"]["thief"]) >= found["bar"]
    one = found["class"]
    assert set(one["verdicts"]) == set("ABCD")
    assert one["coverage"] == sorted(one["coverage"])
    assert one["coverage"][one["verdicts"].index("B") - 1] > one["threshold"]
    explain.draw(tmp_path)
    for name in explain.PICTURES:
        assert (tmp_path / f"how-it-works-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_caption_counts_queries_until_the_bar(tmp_path):
    wealth = {"client": [0.5, 1.25], "thief": [1, 10, 100], "thief with as much cover": [1, 2, 3, 10, 200]}
    (tmp_path / "digits.json").write_text(json.dumps({"bar": 100, "wealth": wealth}))
    text = explain.explained_lines(tmp_path / "digits.json")
    assert "with its query number 3;" in text
    assert "takes 5 queries, 3 of them photographs" in text
    assert "2 held-out digits, never exceeds 1.2" in text


@pytest.mark.long
def test_it_can_be_measured_again():
    found = explain.measure()
    assert max(found["wealth"]["client"]) < found["bar"] <= max(found["wealth"]["thief"])
