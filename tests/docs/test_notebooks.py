"""The notebooks run from top to bottom, and what is stored of them is fit to be shown."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.paths import ROOT
from tools.notebooks import FOLDER, run_notebook, to_markdown

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 60_000


def outputs(cells) -> list[str]:
    """What the code cells print, pictures left out."""
    return ["".join(one.get("text", "")) for cell in cells for one in cell.get("outputs", [])]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = run_notebook(path, tmp_path)
    stored = json.loads(path.read_text())
    assert [without_figures(text) for text in outputs(notebook["cells"])] == [
        without_figures(text) for text in outputs(stored["cells"])
    ], "run python -m tools.notebooks"


def without_figures(text: str) -> str:
    """The words of an output; figures differ a little from machine to machine."""
    return re.sub(r"\b[0-9a-f]{12}\b|None|[\d.,]+%?", "#", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_small_whole_and_says_nothing_of_the_machine(path):
    text = path.read_text()
    assert len(text) < MOST_BYTES
    cells = json.loads(text)["cells"]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    for output in (one for cell in cells for one in cell.get("outputs", [])):
        assert output["output_type"] in ("stream", "display_data")
        assert output.get("name", "stdout") == "stdout"
    assert [one for one in outputs(cells) if re.search(r"(?<![\w.])/\w+/", one)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_becomes_a_page_with_code_output_and_pictures(path):
    text, pictures = to_markdown(path)
    assert text.startswith("# ")
    assert text.count("```python\n") == sum(c["cell_type"] == "code" for c in json.loads(path.read_text())["cells"])
    assert "```text\n" in text
    for name, picture in pictures.items():
        assert re.search(rf"!\[\w[^]]+\]\({re.escape(name)}\)", text)  # with words for who cannot see it
        assert picture.startswith(b"\x89PNG")
