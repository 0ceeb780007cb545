from __future__ import annotations

import io

from PIL import Image

from queen.demo.plot import COLOURS, draw_cost


def test_the_cost_is_drawn_with_one_colour_a_policy(demo):
    picture = Image.open(io.BytesIO(draw_cost(demo.results["sentinel"]["cost"]))).convert("RGB")
    assert picture.size[0] > 900
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in picture.getcolors(1 << 20)}
    assert set(COLOURS.values()) <= colours


def test_other_figures_give_another_picture(demo):
    cost = demo.results["sentinel"]["cost"]
    assert draw_cost(cost) == draw_cost(cost)
    assert draw_cost(cost) != draw_cost({"paper": cost["sentinel"], "sentinel": cost["paper"]})
