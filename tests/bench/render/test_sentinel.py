"""The sentinel's tables: nobody who was caught now and then is said to be never caught."""

from __future__ import annotations

from queen.bench.render.sentinel import tolerance_markdown


def alarm(median: float | None, caught: float) -> dict[str, float | None]:
    return {"median": median, "p95": None, "caught": caught, "orders": 100}


def test_a_share_stands_where_fewer_than_half_of_the_thieves_are_caught():
    by_margin = {"0": alarm(12, 1), "0.1": alarm(40, 0.6), "0.2": alarm(None, 0.33), "0.3": alarm(None, 0)}
    ways = ("plain", "1:1", "3:1", "10:1")
    thieves = {margin: dict.fromkeys(ways, times) for margin, times in by_margin.items()}
    evidence = {"queries": 4400, "victims": {"v": {"facts": {"about": "a victim"}, "thieves": {"pool": thieves}}}}
    honest = {"clients": 100, "queries": 2000, "accused": dict.fromkeys(by_margin, 0)}
    shown = tolerance_markdown({"victims": {"v": {"unchanged": honest}}}, evidence)
    assert shown.count("| 12 / 40 / 33 % / never |") == 4
    assert "the share caught within 4,400 queries" in shown
