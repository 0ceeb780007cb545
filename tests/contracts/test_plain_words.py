"""Sentences that tired people did not understand stay gone: from documents, code, dashboard and reports."""

from __future__ import annotations

import re

import pytest

from tests.contracts.test_docs import ROOT, tracked

PUZZLES = (
    "every benign client is ever accused with probability at most",
    "a benign client is ever accused with probability at most",
    "0 of 100 one predicted class",
    "agreement is the direct thief's with the victim",
    "What one denies the next never hears of",
    "then it is the last one in X-Forwarded-For that is none",
    "Replicas that do not start within ten minutes are one, too",
    "Nobody deletes anything while none does",
    "bounds only how soon a false alarm comes, not whether",
    "never a weight on its groups",
    "Theorem 2 as printed and made sound",
    "of what class",
)
KEPT = (  # what was measured, printed or released stays
    "results/", "CHANGELOG.md", "tests/sentinel/test_statement.py", "tests/contracts/test_plain_words.py",
)  # fmt: skip
PAPERS = ("src/queen/core/", "tests/", "docs/paper.md", "docs/studies.md", "CHANGELOG.md")  # readers of its formulas
TEXTS = {".md", ".py", ".js", ".html", ".css", ".yaml", ".toml", ".sh", ".json", ".ipynb", ".svg"}


def texts() -> dict[str, str]:
    """Every text of the repository on one line, without the quotes and line ends that divide a string in code."""
    files = {path.relative_to(ROOT).as_posix(): path for path in tracked() if path.suffix in TEXTS}
    return {
        name: re.sub(r"[\s\"*#]+|\bf\"", " ", path.read_text(errors="replace")).casefold()
        for name, path in files.items()
        if not name.startswith(KEPT)
    }


@pytest.fixture(scope="module")
def words() -> dict[str, str]:
    return texts()


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_a_sentence_that_nobody_understood_is_gone(puzzle, words):
    assert len(words) > 300
    assert [name for name, text in words.items() if puzzle.casefold() in text] == []


def test_operators_meet_no_letter_of_the_paper(words):
    readers = {name: text for name, text in words.items() if not name.startswith(PAPERS)}
    named = [name for name, text in readers.items() if re.search(r"\beta_hat\b", text)]
    assert named == ["src/queen/cli/certify.py"]  # which gives it another name
