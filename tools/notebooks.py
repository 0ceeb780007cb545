"""The notebooks of docs/notebooks: `python -m tools.notebooks` runs them and stores what they print.

The site shows them as pages, code and output, which `to_markdown` writes.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
TIMEOUT = 300  # seconds for a cell; they take a few
Cell = dict[str, Any]


def run_notebook(path: Path, folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run in `folder`; raises where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=where, coalesce_streams=True)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return dict(notebook)


def to_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and the pictures that it shows, by file name."""
    pictures: dict[str, bytes] = {}
    cells: list[Cell] = json.loads(path.read_text())["cells"]
    parts = [part for cell in cells for part in _parts(cell, path.stem, pictures)]
    return "\n\n".join(parts) + "\n", pictures


def _parts(cell: Cell, name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield f"```python\n{text}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            picture = f"{name}-{len(pictures)}.png"
            pictures[picture] = base64.b64decode(data["image/png"])
            yield f"![{cell['metadata']['alt']}]({picture})"
        else:
            yield f"```text\n{''.join(output.get('text', data.get('text/plain', ''))).rstrip()}\n```"


def main() -> None:
    """Run all, one after the other, in the folder they lie in."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(nbformat.from_dict(run_notebook(path, Path(folder))), path)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
