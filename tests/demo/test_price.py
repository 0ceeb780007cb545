"""The demo's last step, with short trainings."""

from __future__ import annotations

from queen.demo.price import price_demo, price_tables
from queen.fit.price import UNFINISHED
from queen.price.curve import read_curve
from queen.price.stored import stored_curve
from tests.support.prices import QUICK_PRICE


def test_the_demos_guard_gets_a_price_and_the_results_tell_it(demo, tmp_path):
    priced = price_demo(demo, tmp_path, pricing=QUICK_PRICE, progress=False)
    assert stored_curve(priced.guard.bundle) == read_curve(priced.results["price"])
    assert priced.guard.bundle.identity == demo.guard.bundle.identity
    assert not (tmp_path / UNFINISHED).exists()
    [table] = price_tables(priced.results)
    assert len(table.rows) == len(priced.results["price"]["curve"])
    assert "one client can buy a copy" in table.notes[0]
    assert price_tables(demo.results) == []
