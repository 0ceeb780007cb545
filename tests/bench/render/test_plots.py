"""Pictures of results: real PNGs that show every defense, whatever is missing."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from queen.bench.render import plots
from queen.bench.render.leaderboard import make_leaderboard
from queen.bench.render.plots import draw_leaderboard, draw_matrix, draw_tradeoff
from queen.bench.render.table import tables
from tests.support.benchmarks import result

RESULTS = [
    result("none", accuracy=0.8), result("rounding", accuracy=0.7, flags=("flagged",)), result(benign=0.8),
    result(attack="sanitiser", accuracy=0.6, benign=0.8), result("none", query="jbda_tr", accuracy=0.9),
    result("mine", accuracy=None),
]  # fmt: skip


def draw(kind: str, results) -> bytes:
    if kind == "leaderboard":
        return draw_leaderboard(make_leaderboard(results, [("rounding", "knockoff", "pbayes", 0)], {}))
    (table,) = tables(results)
    return draw_matrix(table) if kind == "matrix" else draw_tradeoff(table, 0.13)


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """The figures behind the pictures."""
    figures: list[Figure] = []
    original = plots.png
    monkeypatch.setattr(plots, "png", lambda figure: figures.append(figure) or original(figure))
    return figures


@pytest.mark.parametrize("kind", ["matrix", "tradeoff", "leaderboard"])
def test_the_picture_is_a_png_that_is_not_blank_and_always_the_same(kind):
    first, second = (draw(kind, RESULTS) for _ in range(2))
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    assert first == second
    seen = pixels(first)
    assert min(seen.shape[:2]) > 200
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 50
    assert first != draw(kind, [*RESULTS[:2], result(accuracy=0.1)])


def test_the_trade_off_has_three_bars_for_every_defense(drawn):
    draw("tradeoff", RESULTS)
    (axis,) = drawn[0].axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["none", "rounding", "queen", "mine"]
    thieves, many, one = ([bar.get_width() for bar in bars] for bars in axis.containers)
    assert thieves == pytest.approx([90, 70, 50, np.nan], nan_ok=True)  # the best over all query strategies
    assert many == pytest.approx([90, 90, 80, 90])
    assert one == pytest.approx([85, 85, 75, 85])


def test_the_matrix_has_a_text_for_every_cell(drawn):
    draw("matrix", RESULTS)
    (axis,) = drawn[0].axes
    (table,) = tables(RESULTS)
    rows = [row for row in table.rows if row.query]
    assert [text.get_text() for text in axis.texts] == [text for row in rows for text in row.texts()]
    assert [label.get_text() for label in axis.get_xticklabels()] == list(table.columns)
    assert [label.get_text() for label in axis.get_yticklabels()] == [f"{row.query} {row.name}" for row in rows]


@pytest.mark.parametrize("kind", ["matrix", "tradeoff", "leaderboard"])
@pytest.mark.parametrize(
    "results",
    [
        [result(accuracy=None), result("none", accuracy=None)],
        [result("$x_1$", "a_b")],
        [result(attack="sanitiser"), result("none", "sanitiser")],
    ],
    ids=["no thief", "odd names", "adaptive only"],
)
def test_whatever_is_missing_there_is_a_picture(kind, results):
    assert pixels(draw(kind, results)).std() > 1


def test_the_leaderboard_has_a_point_for_every_defense_and_lines_at_chance_and_at_the_undefended_thief(drawn):
    draw("leaderboard", RESULTS)
    thief, lost, _ = drawn[0].axes
    assert [label.get_text() for label in thief.get_yticklabels()] == ["queen", "rounding", "none", "mine"]
    assert [text.get_text() for text in thief.texts] == ["60.0", "70.0", "90.0", "chance", "undefended", "50.0"]
    [paper] = [line for line in thief.lines if line.get_marker() == "s"]  # queen's, where the sanitiser is better
    assert (list(paper.get_xdata()), list(paper.get_ydata())) == ([50], [0])
    assert [text.get_text() for text in lost.texts] == ["20.0", "10.0", "10.0", "10.0"]  # of the victim's 95 %
    points = [line for line in thief.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "white" for line in points] == [False, True, False]  # a cell is missing
    dotted = [line.get_xdata()[0] for line in thief.lines if line.get_linestyle() == ":"]
    assert dotted == pytest.approx([13, 90])
    assert drawn[0].get_supxlabel() == (
        "Hollow: some of its attacks were not run yet. "
        "Square: the best of the paper's attackers, where others are better."
    )


def test_owners_of_the_encoder_have_a_mark_of_their_own(drawn):
    draw("leaderboard", [result(accuracy=0.2), result(attack="greybox_head", accuracy=0.9, knows=("encoder",))])
    thief = drawn[0].axes[0]
    [owner] = [line for line in thief.lines if line.get_marker() == "D"]
    assert list(owner.get_xdata()) == pytest.approx([90])
    assert [text.get_text() for text in thief.texts] == ["20.0", "chance"]
    assert drawn[0].get_supxlabel() == "Diamond: a thief that owns the victim's encoder."


def test_answers_farther_than_probabilities_can_be_do_not_squeeze_the_others(drawn):
    clients = [{"one_client": {"accuracy": 0.9, "l1": l1}, "many_clients": {"accuracy": 0.9}} for l1 in (0.5, 18.8)]
    draw("leaderboard", [result("rounding", utility=clients[0]), result("mine", accuracy=0.9, utility=clients[1])])
    distorted = drawn[0].axes[2]
    points = [line for line in distorted.lines if line.get_marker() in {"o", ">"}]
    assert [(line.get_marker(), line.get_xdata()[0]) for line in points] == [("o", 0.5), (">", 2.0)]
    assert [text.get_text() for text in distorted.texts] == ["0.500", "18.800"]
    assert distorted.get_xlim()[1] < 3
    assert "Triangle: farther than probabilities can be." in drawn[0].get_supxlabel()
