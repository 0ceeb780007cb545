from __future__ import annotations

import io
from functools import partial

from PIL import Image

from queen.demo.plot import COLOURS, IMAGE_COLOURS, draw_cost, draw_price
from queen.plots import shade
from tests.support.prices import curve_of


def test_the_cost_is_drawn_with_one_colour_a_policy(demo):
    picture = Image.open(io.BytesIO(draw_cost(demo.results["sentinel"]["cost"]))).convert("RGB")
    assert picture.size[0] > 900
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in picture.getcolors(1 << 20)}
    assert set(COLOURS.values()) <= colours


def test_for_a_dark_page_other_colours_on_a_dark_ground():
    rows = [(n, kind, False, 0.2, 0.3, 0.4) for kind in IMAGE_COLOURS for n in (30, 300)]
    cost = {name: {"queries": [100, 200], "right": [k, k], "answered": [k, k], "l1": [k, k]} for k, name in
            zip((0.2, 0.5, 0.9), COLOURS, strict=True)}  # fmt: skip
    for draw, used in (
        (partial(draw_cost, cost), COLOURS),
        (partial(draw_price, {"x": curve_of(rows)}), IMAGE_COLOURS),
    ):
        light, dark = (Image.open(io.BytesIO(draw(dark=dark))).convert("RGB") for dark in (False, True))
        assert light.size == dark.size
        assert (light.getpixel((0, 0)), dark.getpixel((0, 0))) == ((255, 255, 255), (0x1F, 0x1F, 0x26))
        assert not shown(dark) & set(COLOURS.values())
        assert {shade(colour, dark=True) for colour in used.values()} & shown(dark)


def shown(picture: Image.Image) -> set[str]:
    return {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in picture.getcolors(1 << 20)}


def test_other_figures_give_another_picture(demo):
    cost = demo.results["sentinel"]["cost"]
    assert draw_cost(cost) == draw_cost(cost)
    assert draw_cost(cost) != draw_cost({"paper": cost["sentinel"], "sentinel": cost["paper"]})


def test_a_price_is_drawn_with_one_colour_for_every_kind_of_images_and_one_panel_a_model():
    kinds = dict(zip(IMAGE_COLOURS, (1.0, 0.6, 0.3), strict=True))  # no line covers another
    rows = [(n, kind, False, 0, k * n / 350, k * n / 310) for kind, k in kinds.items() for n in (30, 100, 300)]
    one = Image.open(io.BytesIO(draw_price({"digits": curve_of(rows)}))).convert("RGB")
    colours = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in one.getcolors(1 << 20)}
    assert set(IMAGE_COLOURS.values()) <= colours
    two = Image.open(io.BytesIO(draw_price({"digits": curve_of(rows), "photos": curve_of(rows[:3])})))
    assert two.size[0] > 1.8 * one.size[0]
