"""The sentinel's tables: nobody who was caught now and then is said to be never caught."""

from __future__ import annotations

from queen.bench.render.sentinel import odd_markdown, tolerance_markdown


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


def odd_victim(accused: int, usual_accused: int, *, has_bar: bool) -> dict[str, object]:
    """A victim with cascade clients and a class drift, of whom only the former need a remedy."""
    thieves = {"plain": alarm(20, 1), "3:1": alarm(None, 0.4)}
    remedy = {"accused": 3, "usual_accused": usual_accused, "thieves": thieves}
    remedies = {name: remedy for name in ("mixed", "own", "bar") if has_bar or name != "bar"}
    kinds = {
        name: {
            "clients": 100,
            "queries": 500,
            "margins": {margin: {"accused": number} for margin in ("0.2", "0.3", "0.5")},
            "remedies": remedies,
        }
        for name, number in (("cascade", accused), ("drift: classes", 0))
    }
    retry = {"clients": 100, "queries": 2000, "accused": 0}
    return {"about": "a victim", "thieves": thieves, "retry": retry, "kinds": kinds}


def test_odd_clients_have_one_number_for_each_victim_and_a_missing_remedy_is_said():
    victims = {"a": odd_victim(100, 0, has_bar=True), "b": odd_victim(99, 0, has_bar=False)}
    shown = odd_markdown({"queries": 4400, "victims": victims})
    assert "| cascade | 100 / 99 | 100 / 99 | 100 / 99 | 3 / 3 | 3 / 3 | 3 / none |  |" in shown
    assert "| cascade | 20 / 20 | 20 / 20 | 20 / none |  | 40 % / 40 % | 40 % / 40 % | 40 % / none |  |" in shown
    assert shown.count("| drift: classes |") == 1  # nobody needs a remedy, so it has no price
    assert "cascade, a victim: 500" in shown
    assert "nobody is accused under these calibrations.\n" in shown


def test_usual_clients_whom_a_remedy_gets_accused_are_named():
    shown = odd_markdown({"queries": 4400, "victims": {"a": odd_victim(100, 7, has_bar=True)}})
    assert "nobody is accused under these calibrations, except with cascade, mixed in: 7; cascade, alone: 7; " in shown
