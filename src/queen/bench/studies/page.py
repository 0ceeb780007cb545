"""docs/studies.md is filled from result files: `python -m queen.bench.studies.page`."""

from __future__ import annotations

from pathlib import Path

from queen.bench.checked import SpecError
from queen.bench.studies import STUDIES
from queen.bench.studies.run import read_study_result

PAGE, RESULTS = Path("docs/studies.md"), Path("results/studies")


def filled(text: str, results: Path) -> str:
    """The page with every study's figures between its markers."""
    for name, study in STUDIES.items():
        begin, end = f"<!-- study {name} -->", f"<!-- /study {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SpecError(f"expected one '{begin}' and one '{end}' in the page of studies")
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{study.tell(read_study_result(name, results))}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), RESULTS))
