"""Tables: who stands where, means and spreads, marks, and every format well-formed."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from queen.attacks import ATTACKS, QUERIES
from queen.bench.render.table import (
    BEST,
    BEST_ADAPTIVE,
    METRICS,
    Entry,
    Row,
    Table,
    tables,
    to_json,
    to_latex,
    to_markdown,
)
from queen.defenses import DEFENSES
from queen.errors import OptionError
from tests.support.benchmarks import result

HARD = "a_b & 5% #1 {x} $y$ |z| ^~"


def only(results, metric="accuracy") -> Table:
    (table,) = tables(results, metric)
    return table


def row(table: Table, name: str, query: str = "knockoff") -> Row:
    (found,) = [one for one in table.rows if (one.name, one.query) == (name, query)]
    return found


# Layout


def test_defenses_queries_and_attacks_come_in_the_order_of_the_registries():
    results = [
        result(column, name, query=query)
        for column in reversed(DEFENSES)
        for name, attack in reversed(ATTACKS.items())
        for query in reversed(attack.queries)
    ]
    table = only(results)
    assert table.columns == tuple(DEFENSES)
    for query in QUERIES:
        names = [one.name for one in table.rows if one.query == query]
        published = [n for n, a in ATTACKS.items() if query in a.queries and not a.adaptive]
        adaptive = [n for n, a in ATTACKS.items() if query in a.queries and a.adaptive]
        assert names == [*published, BEST, *([*adaptive, BEST_ADAPTIVE] if adaptive else [])]
    assert list(dict.fromkeys(one.query for one in table.rows)) == ["", *QUERIES]
    assert all(len(one.entries) == len(DEFENSES) for one in table.rows)


def test_own_columns_come_last_by_name():
    table = only([result(name) for name in ("zeta", "queen", "alpha", "none")])
    assert table.columns == ("none", "queen", "alpha", "zeta")


def test_benign_clients_come_first():
    table = only([result(benign=0.9), result("none", benign=1.0)])
    first, second = table.rows[:2]
    assert (first.query, first.name, first.texts()) == ("", "benign accuracy, one client", ["95.0", "85.0"])
    assert (second.query, second.name, second.texts()) == ("", "benign accuracy, many clients", ["100.0", "90.0"])


def test_every_protectee_has_a_table_of_its_own():
    found = tables([result(protectee="b"), result(protectee="a"), result("none", protectee="b")])
    assert [table.protectee for table in found] == ["b", "a"]
    assert [table.columns for table in found] == [("none", "queen"), ("queen",)]


def test_a_cell_that_was_not_run_is_empty():
    table = only([result("none"), result("queen", "label_only")])
    assert row(table, "direct").texts() == ["50.0", ""]
    assert row(table, "label_only").texts() == ["", "50.0"]
    assert row(table, BEST).texts() == ["50.0", "50.0"]


@pytest.mark.parametrize(("metric", "text"), [*zip(METRICS, ["50.0", "60.0", "25.0", "35.0"], strict=True)])
def test_every_metric_is_the_one_asked_for(metric, text):
    table = only([result()], metric)
    assert row(table, "direct").texts() == [text]
    assert metric.replace("_", " ") in table.notes[0]


def test_an_unknown_metric_names_the_known_ones():
    with pytest.raises(OptionError, match="no metric 'acc'; known: accuracy, best_accuracy, agreement"):
        tables([result()], "acc")


# Numbers


def test_means_and_spreads_are_over_seeds():
    values = [0.5, 0.6, 0.85]
    table = only([result(seed=i, accuracy=value, benign=value) for i, value in enumerate(values)])
    (entry,) = row(table, "direct").entries
    assert entry.mean == pytest.approx(statistics.mean(values))
    assert entry.text() == f"65.0±{100 * statistics.stdev(values):.1f}"
    assert entry.values == tuple(values)
    assert row(table, "benign accuracy, many clients", "").texts() == [entry.text()]
    assert "seeds [0, 1, 2]" in table.notes[0]


def test_utility_is_counted_once_a_seed_however_many_attacks_there_are():
    results = [result(attack=attack, seed=seed, benign=0.8 + seed / 10)
               for attack in ("direct", "label_only", "ddae") for seed in (0, 1)]  # fmt: skip
    (entry,) = row(only(results), "benign accuracy, many clients", "").entries
    assert entry.values == pytest.approx((0.8, 0.9))


def test_the_max_row_is_the_best_attacker_of_its_query_and_kind():
    results = [
        result(attack="direct", accuracy=0.3),
        result(attack="pbayes", accuracy=0.7, knows=("prior",)),
        result(attack="sanitiser", accuracy=0.9),
        result(attack="many_accounts", accuracy=0.2),
        result(attack="direct", accuracy=0.4, query="jbda_tr"),
        result("none", accuracy=0.99),
    ]
    table = only(results)
    assert row(table, BEST).texts() == ["99.0", "70.0"]
    assert row(table, BEST_ADAPTIVE).texts() == ["", "90.0"]
    assert row(table, BEST, "jbda_tr").texts() == ["", "40.0"]


def test_flags_are_marked_on_their_cell_and_on_a_max_that_rests_on_it():
    collapsed = "the thief collapsed to one class"
    results = [
        result(accuracy=0.1, flags=(collapsed,)),
        result(attack="label_only", accuracy=0.6),
        result("rounding", accuracy=0.7, flags=("one", "two", "labels (90% of them)")),
        result("rounding", "label_only", accuracy=0.6, flags=("labels (80% of them)",)),
    ]
    table = only(results)
    assert row(table, "direct").texts() == ["70.0*", "10.0*"]
    assert row(table, "label_only").texts() == ["60.0*", "60.0"]
    assert row(table, BEST).texts() == ["70.0*", "60.0"]
    assert f"* {collapsed}: 1 of 4 runs." in table.notes
    assert "* two: 1 of 4 runs." in table.notes
    assert "* labels: 2 of 4 runs." in table.notes  # a note counts; each result has its own figures


def test_a_run_without_thief_is_a_dash_and_no_zero():
    table = only([result(accuracy=None, flags=("no thief: nothing was answered",)), result(attack="label_only")])
    assert row(table, "direct").texts() == ["-*"]
    assert row(table, BEST).texts() == ["50.0"]
    assert row(only([result(accuracy=None)]), BEST).texts() == [""]
    assert Entry(()).text() == "-"


def test_thieves_of_one_seed_in_three_count_for_that_seed_alone():
    table = only([result(accuracy=None), result(seed=1, accuracy=0.4)])
    assert row(table, "direct").texts() == ["40.0"]


def test_special_knowledge_is_marked_and_explained():
    results = [result(attack="pbayes", knows=("prior",)), result(attack="cover_1", knows=("benign",)), result()]
    table = only(results)
    names = [one.name for one in table.rows]
    assert {"pbayes°", "cover_1†", "direct"} <= set(names)
    assert sum(note.startswith("°") for note in table.notes) == sum(note.startswith("†") for note in table.notes) == 1
    assert not any(note.startswith(("°", "†", "*")) for note in only([result()]).notes)


def test_notes_say_budget_victim_chance_and_sources():
    trained = result(config={"protectee": {}})
    first, second = only([trained]).notes
    assert all(word in first for word in ("200 test images", "300 queries", "95.0 %", "13.0 %"))
    assert "scikit-learn digits" in second
    assert "from scratch" in second
    for other in (result(), result(config={"protectee": {"weights": "a file"}})):  # a user's own, or brought along
        assert "from scratch" not in only([other]).notes[1]


# Formats


def results_of_every_kind():
    return [
        result("none", seed=0), result("none", seed=1, accuracy=0.7), result(HARD, "pbayes", knows=("prior",)),
        result(HARD, "cover_1", knows=("benign",), flags=("50% of it",)), result(accuracy=None, flags=("x_y",)),
        result("none", query="jbda_tr"),
    ]  # fmt: skip


def test_json_holds_every_number():
    table = only(results_of_every_kind())
    found = json.loads(json.dumps(to_json(table), allow_nan=False))
    assert found["columns"] == list(table.columns)
    assert (found["protectee"], found["metric"], found["notes"]) == ("digits8", "accuracy", list(table.notes))
    (direct,) = [one for one in found["rows"] if (one["query"], one["name"]) == ("knockoff", "direct")]
    assert direct["values"]["none"] == {"mean": pytest.approx(0.6), "runs": [0.5, 0.7], "flags": []}
    assert direct["values"]["queen"] == {"mean": None, "runs": [], "flags": ["x_y"]}
    assert HARD not in direct["values"]


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


def test_markdown_has_as_many_cells_in_every_line():
    table = only(results_of_every_kind())
    text = to_markdown(table)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(table.rows)
    assert {len(cells(line)) for line in lines} == {2 + len(table.columns)}
    assert set("".join(cells(lines[1]))) <= set(" -")
    notes = [line[2:] for line in text.splitlines() if line.startswith("- ")]
    assert notes == ["\\" * note.startswith("*") + note for note in table.notes]  # a star begins no list
    assert text.endswith("\n")


def test_latex_is_balanced_and_escaped():
    table = only(results_of_every_kind())
    text = to_latex(table)
    body, notes = text.split(r"\end{tabular}")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert all(text.count(rule) == 1 for rule in (r"\toprule", r"\bottomrule"))
    assert text.count(r"\midrule") == 3  # benign clients and two query strategies
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(table.rows)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {1 + len(table.columns)}
    content = "\n".join(lines)
    bare = re.sub(r"\$\^?\\(pm|circ|dagger|ast|sim|wedge)\$", "", content)
    bare = re.sub(r"\\text\w+\{\}", "", bare)
    assert not re.findall(r"(?<!\\)[_%#$^~{}]", bare)
    assert not set(content) & set("±°†*")  # as symbols, in any encoding
    assert all(line.startswith("% ") for line in notes.strip().splitlines())
    assert f"{{ll{'r' * len(table.columns)}}}" in body


def test_latex_of_plain_names_is_plain():
    lines = to_latex(only([result("modelguard_w")])).splitlines()
    assert lines[2] == r"query & attack & modelguard\_w \\"
    assert r"knockoff & direct & 50.0 \\" in lines


def test_explained_flags_are_not_marked_but_counted():
    explained = {**result(flags=("odd",)), "explained": {"odd": "measured"}}
    [shown] = tables([explained])
    text = to_markdown(shown)
    assert "50.0*" not in text
    assert "The flags of 1 runs are explained" in text
    assert "50.0*" in to_markdown(tables([result(flags=("odd",))])[0])
