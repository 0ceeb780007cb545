"""Lines of code per package: without blank lines, comments, docstrings and generated files.

`python tools/code_lines.py [FOLDER ...]` counts below the folders (default: src).
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """How many lines of a Python file hold code."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main(folders: list[str]) -> None:
    """Print one line per package and the sum."""
    for folder in folders or ["src"]:
        packages: Counter[str] = Counter()
        for path in sorted(Path(folder).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                packages[str(path.parent)] += code_lines(path.read_text())
        for package, lines in packages.items():
            print(f"{lines:7,} {package}")
        print(f"{packages.total():7,} {folder} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
