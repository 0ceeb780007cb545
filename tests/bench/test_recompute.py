"""Goal 33 without its images: what it makes again, what its checks notice, and that it says what is missing."""

import pytest

from qa.rerun.recompute import CELLS, judge, run, small_spec
from queen.bench.run import write_result
from tests.support.benchmarks import result


def judged(tmp_path, believed: float, recovered: float, right: float = 1.0) -> list[str]:
    """The names of the checks that fail for such thieves."""
    results = {}
    for (column, attack), accuracy in zip(CELLS, (0.5, believed, recovered), strict=True):
        one = result(column, attack, accuracy=accuracy)
        one |= {"believed": {"label_right": right}, "answers": {"label_kept": 1.0}}
        results[column, attack] = one
        write_result(tmp_path / "digits8" / column / f"knockoff-{attack}-s0.json", one)
    return [check.name for check in judge(results, tmp_path) if not check.holds]


@pytest.mark.parametrize("quick", [True, False])
def test_it_makes_the_three_cells_of_the_matrix(quick):
    assert [(cell.column, cell.attack) for cell in small_spec(quick=quick).cells()] == list(CELLS)
    assert {cell.defense for cell in small_spec(quick=quick, defended=False).cells()} == {"none"}


def test_what_the_matrix_says_passes_and_its_opposite_does_not(tmp_path):
    assert judged(tmp_path, 0.3, 0.45) == []
    assert judged(tmp_path, 0.5, 0.5) == ["ModelGuard-W hurts who believes it", "pBayes gets most of that back"]
    assert judged(tmp_path, 0.3, 0.35) == ["pBayes gets most of that back"]
    assert judged(tmp_path, 0.3, 0.45, right=0.9) == ["and loses no labels"]


def test_without_images_it_is_skipped_and_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("QUEEN_DATA", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"needs published images.*cifar10"):
        run(tmp_path, quick=True)
