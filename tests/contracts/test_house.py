"""The house rules: what a newcomer may rely on in every room of src and tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCE, TESTS = ROOT / "src" / "queen", ROOT / "tests"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
PACKAGES = sorted({path.parent for path in MODULES})
MOST_MODULES = 16
OWN_FOLDERS = {"contracts", "reference", "support"}  # of tests, with nothing to mirror
CLOCKS = r"(perf_counter|monotonic|process_time|time\.time)\(\)"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_is_small_and_says_what_it_is(package):
    assert len({*package.glob("*.py")} - {package / "__init__.py"}) <= MOST_MODULES
    assert ast.get_docstring(tree_of(package / "__init__.py"))


def test_every_class_has_a_name_of_its_own():
    classes = [node.name for path in MODULES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_the_words_of_the_package_are_read_in_a_minute():
    assert len((SOURCE / "types.py").read_text().splitlines()) < 120


def only_passes_on(tree: ast.Module) -> bool:
    """Whether a module has nothing of its own: imports, a docstring and `__all__`."""

    def is_own(node: ast.stmt) -> bool:
        names = [getattr(target, "id", "") for target in getattr(node, "targets", [])]
        return not (isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) or names == ["__all__"])

    return not any(map(is_own, tree.body))


def test_no_module_only_passes_names_on():
    modules = [path for path in MODULES if path.name not in ("__init__.py", "__main__.py", "types.py")]
    assert [name_of(path) for path in modules if only_passes_on(tree_of(path))] == []
    assert only_passes_on(ast.parse('"""A shim."""\nfrom queen.core import split\n__all__ = ["split"]'))


def test_tests_mirror_the_source():
    folders = [path.parent.relative_to(TESTS) for path in TESTS.rglob("__init__.py") if path.parent != TESTS]
    mirrored = [path for path in folders if path.parts[0] not in OWN_FOLDERS]
    assert [str(path) for path in mirrored if not ((SOURCE / path).is_dir() or (ROOT / path).is_dir())] == []


def imported(tree: ast.Module) -> set[str]:
    """Full names of what is imported anywhere in a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_no_test_module_imports_another():
    """What two of them need is in tests/support."""
    wrong = {
        name_of(path): sorted(name for name in imported(tree_of(path)) if re.match(r"tests\b.*\.test_", name))
        for path in TESTS.rglob("*.py")
    }
    assert {name: names for name, names in wrong.items() if names} == {}


def asserts_a_clock(text: str) -> bool:
    """Whether a line compares a time that has passed, or one that was measured before, with a limit."""
    timed = re.findall(rf"(\w+) = .*{CLOCKS} - ", text)
    lines = [line for line in text.splitlines() if re.match(r"\s*assert\b", line)]
    compared = [rf"{CLOCKS} - \w+(\[.*?\])? *[<>]", *(rf"\b{name} *[<>]|[<>]=? *{name}\b" for name, _ in timed)]
    return any(re.search(pattern, line) for pattern in compared for line in lines)


def test_no_test_asserts_a_clock():
    """A busy machine is slow: times are measured by benchmarks/ and qa/, and tests wait for conditions."""
    tests = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert [name_of(path) for path in tests if asserts_a_clock(path.read_text())] == []
    assert asserts_a_clock("start = time.monotonic()\n    assert time.monotonic() - start < 5\n")
    assert asserts_a_clock("took = time.perf_counter() - start\nassert took < 1\n")
    assert not asserts_a_clock("    assert time.monotonic() < deadline\n")
