"""Tables and lists as Markdown, for every document and every command that prints one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header, one line per row; bars inside a text are escaped."""
    lines = [[text.replace("|", "\\|") for text in line] for line in (header, ["---"] * len(header), *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_list(notes: Iterable[str]) -> str:
    """One line per note; a star that begins one is a mark of ours, not a list of Markdown's."""
    return "".join(f"- {chr(92) if note.startswith('*') else ''}{note}\n" for note in notes)
