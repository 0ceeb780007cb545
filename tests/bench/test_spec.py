"""A spec says what to run, and a mistake in it says the key and the nearest one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import PUBLISHED_WIDTHS, Sizes
from queen.bench.naming import as_json
from queen.bench.parsing import SpecError, read_yaml
from queen.bench.spec import ImageSet, make_spec, read_spec
from queen.defenses import DEFENSES
from queen.training import Schedule
from tests.support.benchmarks import content, tiny_spec
from tests.support.detectors import DETECTORS
from tests.support.paths import ROOT

COMMITTED = sorted((ROOT / "benchmarks").glob("*.yaml"))
EVERYTHING = {
    "defenses": {"none": {}, "label_only": {}, "queen": {"radius": 0.1}},
    "matrix": [{"queries": list(QUERIES), "attacks": list(ATTACKS)}],
    "seeds": [0, 1],
}


# Mistakes

TYPOS = {
    "spec": ({"budgett": 3}, "budgett", "budget"),
    "spec, far off": ({"defences": {}}, "defences", "defenses"),
    "protectee": ({"protectee__trian": 3}, "trian", "train"),
    "image set": ({"protectee__data__splitt": "all"}, "splitt", "split"),
    "pool": ({"protectee__pool__sise": 8}, "sise", "size"),
    "test as a set": ({"protectee__test": {"sett": "digits"}}, "sett", "set"),
    "outliers": ({"protectee__outliers": {"set": "digits", "margn": 1}}, "margn", "margin"),
    "victim's schedule": ({"protectee__schedule__epoch": 3}, "epoch", "epochs"),
    "thief": ({"thief__networks": {}}, "networks", "network"),
    "thief's schedule": ({"thief__schedule__momentun": 0.5}, "momentun", "momentum"),
    "sizes": ({"sizes__jbda_seed": 3}, "jbda_seed", "jbda_seeds"),
    "utility": ({"utility__client": 3}, "client", "clients"),
    "defense": ({"defenses": {"quen": {}}}, "quen", "queen"),
    "defense in a list": ({"defenses": ["none", "rounding_"]}, "rounding_", "rounding"),
    "defense behind a column": ({"defenses": {"mine": {"defense": "modelgard_w"}}}, "modelgard_w", "modelguard_w"),
    "option": ({"defenses": {"queen": {"radus": 1}}}, "radus", "radius"),
    "option of a column": ({"defenses": {"mine": {"defense": "queen", "treshold": 1}}}, "treshold", "threshold"),
    "block": ({"matrix": [{"query": "knockoff", "attacks": "direct"}]}, "query", "queries"),
    "attack": ({"matrix": [{"queries": "knockoff", "attacks": ["dirct"]}]}, "dirct", "direct"),
    "query": ({"matrix": [{"queries": "knockof", "attacks": "direct"}]}, "knockof", "knockoff"),
    "defense in matrix": (
        {"matrix": [{"queries": "knockoff", "attacks": "direct", "defenses": ["label_onl"]}]}, "label_onl", "label_only"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "typo", "meant"), TYPOS.values(), ids=TYPOS)
def test_a_typo_is_named_with_the_nearest_known_word(changes, typo, meant):
    with pytest.raises(SpecError, match=f"'{typo}'.*; known: .*; did you mean '{meant}'\\?$") as refused:
        make_spec(content(**changes), "smoke.yaml")
    assert str(refused.value).startswith("smoke.yaml: ")
    assert "\n" not in str(refused.value)


def test_a_defense_of_the_matrix_must_be_a_column_of_this_spec():
    matrix = [{"queries": "knockoff", "attacks": "direct", "defenses": ["queen"]}]
    with pytest.raises(SpecError, match="defense in matrix 'queen' is not known; known: none, label_only"):
        tiny_spec(matrix=matrix)


WRONG = {
    "no mapping at all": (3, "expected keys and values, got int"),
    "nothing": (None, "expected keys and values, got NoneType"),
    "a list": ([], "expected keys and values, got list"),
    "budget is text": (content(budget="many"), "budget: expected int, got 'many'"),
    "budget is a fraction": (content(budget=1.5), "budget: expected int, got 1.5"),
    "budget is a truth value": (content(budget=True), "budget: expected int, got True"),
    "name is a number": (content(name=3), "name: expected str, got 3"),
    "protectee is text": (content(protectee="cifar10"), "protectee: expected keys and values, got str"),
    "test is text": (content(protectee__test="all"), "protectee: test: expected ImageSet or int, got 'all'"),
    "pool is a number": (content(protectee__pool=3), "protectee: pool: expected ImageSet or str, got 3"),
    "pool is an unknown word": (
        content(protectee__pool="bengin"),
        "pool must be .*'benign'.* got 'bengin'",
    ),
    "pool without images": (
        content(protectee__pool="benign", protectee__benign=0),
        "pool must be .*above 0",
    ),
    "data is text": (content(protectee__data="digits"), "protectee: data: expected keys and values, got str"),
    "rate is text": (content(thief__schedule__lr="fast"), "thief: schedule: lr: expected float, got 'fast'"),
    "augment is a number": (content(thief__schedule__augment=1), "schedule: augment: expected bool, got 1"),
    "a seed is text": (content(seeds=[0, "one"]), "seeds: expected int, got 'one'"),
    "mirror is text": (content(sizes__mirror="no"), "sizes: mirror: expected bool, got 'no'"),
    "defenses is a number": (content(defenses=3), "defenses: expected names, got 3"),
    "options are a number": (content(defenses={"queen": 3}), "'queen'"),
    "options are a list": (content(defenses={"queen": ["radius"]}), "'queen'"),
    "options are text": (content(defenses={"queen": "radius"}), "'queen'"),
    "a list of mappings": (content(defenses=["none", {"queen": {"radius": 1}}]), "defenses: expected names"),
    "matrix is a number": (content(matrix=3), "matrix: expected keys and values, got int"),
    "no such decay": (content(thief__schedule__decay="cosine"), "schedule: no decay 'cosine'; known: linear, step"),
    "no epochs": (content(thief__schedule__epochs=0), "schedule: epochs must be a whole number of at least 1, got 0"),
}


@pytest.mark.parametrize(("made", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_is_named_with_its_place(made, message):
    with pytest.raises(SpecError, match=message) as refused:
        make_spec(made, "smoke.yaml")
    assert str(refused.value).startswith("smoke.yaml")


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "/tmp/x", ".cache", "", "a\\b", "a|b", "a&b", "a\nb"])
def test_names_that_make_no_folder_of_their_own_are_refused(name):
    """Results go to OUT/protectee/column, and come back in tables."""
    with pytest.raises(SpecError, match="letters"):
        tiny_spec(protectee__name=name)
    with pytest.raises(SpecError, match="letters"):
        tiny_spec(defenses={name: {"defense": "none"}})
    assert tiny_spec(protectee__name="my-model 2.0 (small)").protectee.name == "my-model 2.0 (small)"


MISSING = ["name", "protectee", "thief", "budget", "defenses", "matrix", "protectee__name", "protectee__data"]
MISSING += ["protectee__train", "protectee__calibration", "protectee__test", "protectee__pool", "protectee__data__set"]


@pytest.mark.parametrize("path", MISSING)
def test_a_missing_key_is_named(path):
    with pytest.raises(SpecError, match=f"key '{path.split('__')[-1]}' is missing"):
        make_spec(content(**{path: None}))


@pytest.mark.parametrize("version", [0, 2, "1", "next", [1]])
def test_another_version_is_refused_whatever_else_it_says(version):
    for changes in ({}, {"something_new": 1}):
        with pytest.raises(SpecError, match=r"is of version .*; this program reads version 1"):
            tiny_spec(version=version, **changes)


def test_the_version_may_be_left_out():
    assert tiny_spec(version=None) == tiny_spec()


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read spec '.*nowhere.yaml': No such file"):
        read_spec(tmp_path / "nowhere.yaml")
    with pytest.raises(SpecError, match="cannot read spec"):
        read_spec(tmp_path)
    for text in (b"a: [1, 2", b"a: b: c", b"\xff\xfe\x00", b"{{"):
        (tmp_path / "bad.yaml").write_bytes(text)
        with pytest.raises(SpecError) as refused:
            read_spec(tmp_path / "bad.yaml")
        assert "bad.yaml" in str(refused.value)
        assert "\n" not in str(refused.value)
    (tmp_path / "code.yaml").write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(SpecError, match="is not YAML"):
        read_spec(tmp_path / "code.yaml")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
places = st.sampled_from(
    ["name", "protectee", "protectee__data", "protectee__test", "protectee__network", "protectee__schedule", "thief",
     "thief__schedule__clip", "budget", "seeds", "sizes", "sizes__generator_widths", "utility", "defenses",
     "defenses__none", "matrix", "version"]
)  # fmt: skip


@given(places, json_values)
def test_anything_anywhere_is_a_spec_or_a_spec_error(place, value):
    try:
        spec = make_spec(content(**{place: value}))
    except SpecError:
        pass  # anything else is a failure
    else:
        assert list(spec.cells()) == list(make_spec(json.loads(json.dumps(as_json(spec)))).cells())


# Meaning


def test_defenses_may_be_a_list_of_names():
    listed, mapped = tiny_spec(defenses=["none", "queen"]), tiny_spec(defenses={"none": None, "queen": {}})
    assert listed == mapped
    assert [cell.hash for cell in listed.cells()] == [cell.hash for cell in mapped.cells()]


def test_single_words_stand_for_lists_of_one():
    matrix = [{"queries": "knockoff", "attacks": "direct"}]
    assert tiny_spec(matrix=matrix, seeds=3).seeds == (3,)
    assert tiny_spec(matrix=matrix) == tiny_spec(matrix=[{"queries": ["knockoff"], "attacks": ["direct"]}])


def test_a_column_may_be_another_method_with_options():
    columns = {"queen": {}, "wide": {"defense": "queen", "radius": 0.3}, "narrow": {"defense": "queen", "radius": 0.1}}
    cells = [cell for cell in tiny_spec(defenses=columns).cells() if cell.attack == "direct"]
    assert [cell.column for cell in cells] == ["queen", "wide", "narrow"]
    assert {cell.defense for cell in cells} == {"queen"}
    assert [cell.options["radius"] for cell in cells] == [0.02, 0.3, 0.1]
    assert all(
        cell.options.keys() == DEFENSES["queen"].options.keys() for cell in cells
    )  # a default changed is noticed
    assert [cell.path.parts[1] for cell in cells] == ["queen", "wide", "narrow"]
    assert len({cell.hash for cell in cells}) == 3
    assert all("defense" not in cell.options for cell in cells)


def test_whole_numbers_stand_for_fractions_and_nested_types_are_built():
    spec = tiny_spec(thief__schedule__lr=1, protectee__test={"set": "digits", "split": "test"})
    assert isinstance(spec.thief.schedule.lr, float)
    assert spec.protectee.test == ImageSet(set="digits", split="test")
    assert tiny_spec(sizes__generator_widths=[16, 8]).sizes.generator_widths == (16, 8)
    assert tiny_spec(thief__schedule__clip=None).thief.schedule.clip == 2.0
    without = content()
    without["thief"]["schedule"]["clip"] = None
    assert make_spec(without).thief.schedule.clip is None


def test_cells_are_all_that_go_together_each_once():
    twice = {**EVERYTHING, "matrix": EVERYTHING["matrix"] * 2}
    cells = list(tiny_spec(**twice).cells())
    expected = {
        (column, query, name, seed)
        for column in EVERYTHING["defenses"]
        for name, attack in ATTACKS.items()
        for query in attack.queries
        for seed in (0, 1)
    }
    found = [(cell.column, cell.query, cell.attack, cell.seed) for cell in cells]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len({cell.path for cell in cells}) == len({cell.hash for cell in cells}) == len(cells)
    assert any(query == "jbda_tr" for _, query, _, _ in found)
    assert cells[0].path == Path("digits8/none/knockoff-direct-s0.json")


def test_a_block_may_be_about_some_defenses_only():
    blocks = [
        {"queries": "knockoff", "attacks": "direct"},
        {"queries": "knockoff", "attacks": "label_only", "defenses": ["label_only"]},
    ]
    cells = [(cell.column, cell.attack) for cell in tiny_spec(matrix=blocks).cells()]
    assert cells == [("none", "direct"), ("label_only", "direct"), ("label_only", "label_only")]


def test_a_block_may_have_a_budget_of_its_own_and_others_do_not_notice():
    blocks = [{"queries": "knockoff", "attacks": "direct"}, {"queries": "jbda_tr", "attacks": "direct", "budget": 70}]
    cells = list(tiny_spec(matrix=blocks).cells())
    assert [(cell.query, cell.budget) for cell in cells] == [("knockoff", 300)] * 2 + [("jbda_tr", 70)] * 2
    assert [cell.config["budget"] for cell in cells] == [300, 300, 70, 70]
    assert [cell.hash for cell in cells[:2]] == hashes(matrix=blocks[:1])
    assert [cell.hash for cell in cells[2:]] == hashes(budget=70, matrix=[{"queries": "jbda_tr", "attacks": "direct"}])


def test_a_block_may_have_seeds_of_its_own_and_others_do_not_notice():
    blocks = [
        {"queries": "knockoff", "attacks": "direct"},
        {"queries": "jbda_tr", "attacks": "direct", "seeds": [0, 4]},
    ]
    cells = list(tiny_spec(defenses=["none"], matrix=blocks).cells())
    assert [(cell.query, cell.seed) for cell in cells] == [("knockoff", 0), ("jbda_tr", 0), ("jbda_tr", 4)]
    assert cells[2].hash != cells[1].hash
    [plain] = tiny_spec(defenses=["none"], matrix=[{"queries": "jbda_tr", "attacks": "direct"}]).cells()
    assert cells[1].hash == plain.hash


def test_one_query_strategy_has_one_budget():
    blocks = [
        {"queries": "knockoff", "attacks": "direct"},
        {"queries": "knockoff", "attacks": "label_only", "budget": 299},
    ]
    with pytest.raises(SpecError, match="'knockoff' has budgets of 300 and 299 queries"):
        tiny_spec(matrix=blocks)
    assert tiny_spec(matrix=[{**block, "budget": 300} for block in blocks])


@pytest.mark.parametrize(
    "changes", [{"budget": 0}, {"matrix": [{"queries": "knockoff", "attacks": "direct", "budget": 0}]}]
)
def test_a_budget_buys_something(changes):
    with pytest.raises(SpecError, match="budget must be at least 1 query, got 0"):
        tiny_spec(**changes)


# The hash


def hashes(**changes: Any) -> list[str]:
    return [cell.hash for cell in tiny_spec(**changes).cells()]


CHANGES: dict[str, Any] = {
    "protectee__name": "other", "protectee__train": 901, "protectee__calibration": 401, "protectee__benign": 99,
    "protectee__test": 199, "protectee__data__split": "train", "protectee__data__size": 8, "protectee__pool__count": 5,
    "protectee__pool__margin": 1, "protectee__outliers": {"set": "photo_patches"}, "protectee__outlier_weight": 0.5,
    "protectee__network__width": 9, "protectee__schedule__lr": 0.2, "protectee__seed": 1, "thief__network__width": 4,
    "thief__schedule__augment": True, "budget": 301, "sizes__table": 7, "sizes__generator_widths": [3],
    "utility__clients": 4, "utility__queries": 21, "protectee__weights": "victim.safetensors",
    "protectee__victim_per_seed": True, "protectee__schedule__record": False, "thief__schedule__record": False,
}  # fmt: skip


@pytest.mark.parametrize("path", CHANGES)
def test_everything_that_a_result_depends_on_changes_every_hash(path):
    before, after = hashes(), hashes(**{path: CHANGES[path]})
    assert len(before) == len(after) == 4
    assert not set(before) & set(after)


def test_what_was_added_later_does_not_change_a_hash_where_it_has_its_default():
    assert hashes(protectee__victim_per_seed=False) == hashes()
    said = as_json(tiny_spec().protectee)
    assert not {"weights", "victim_per_seed"} & set(said)
    assert hashes(thief__schedule__record=True, protectee__schedule__record=True) == hashes()
    assert as_json(Schedule(record=False)) == as_json(Schedule()) | {"record": False}
    assert {"outliers", "outlier_weight"} <= set(said)  # older than the first results


def test_victims_vary_with_seeds_on_request_only():
    assert tiny_spec().for_seed(3) == tiny_spec()
    varied = tiny_spec(protectee__seed=5, protectee__victim_per_seed=True)
    assert varied.for_seed(3) == tiny_spec(protectee__seed=8)
    with pytest.raises(SpecError, match=r"weights are those of one victim, got 'a\.pt' and victim_per_seed"):
        tiny_spec(protectee__weights="a.pt", protectee__victim_per_seed=True)


def test_seed_attack_query_defense_and_options_change_the_hash_and_names_do_not():
    assert not set(hashes()) & set(hashes(seeds=[1]))
    jbda = [{"queries": "jbda_tr", "attacks": ["direct", "label_only"]}]
    assert not set(hashes()) & set(hashes(matrix=jbda))
    assert len(set(hashes())) == 4  # two defenses, two attacks
    assert not set(hashes(defenses={"rounding": {}})) & set(hashes(defenses={"rounding": {"decimals": 2}}))
    assert hashes(name="another name of the spec") == hashes()


def test_an_option_that_came_later_changes_the_hash_only_where_it_is_not_at_its_default():
    before = hashes(defenses={"queen": {}})
    for name in DEFENSES["queen"].added:
        assert hashes(defenses={"queen": {name: DEFENSES["queen"].options[name]}}) == before
    changed = {"absolute_radius": 0.1, "shadow_kind": "network", "draw": 3, "keep_label": True}
    assert set(changed) == DEFENSES["queen"].added
    each = [hashes(defenses={"queen": {name: value}}) for name, value in changed.items()]
    assert len({tuple(found) for found in (before, *each)}) == 5


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@settings(max_examples=8)
@given(st.integers(0, 2**32))
def test_the_order_of_keys_does_not_matter(number):
    made = content(**EVERYTHING)
    spec, other = make_spec(made), make_spec(shuffled(made, random.Random(number)))
    assert {cell.path: cell.hash for cell in spec.cells()} == {cell.path: cell.hash for cell in other.cells()}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_spec_survives_json_and_yaml(path):
    spec = read_spec(path)
    before = {cell.path: cell.hash for cell in spec.cells()}
    for again in (json.loads(json.dumps(as_json(spec))), yaml.safe_load(yaml.safe_dump(as_json(spec)))):
        assert {cell.path: cell.hash for cell in make_spec(again).cells()} == before
    sent = make_spec(json.loads(json.dumps(as_json(spec))))
    assert [cell.path for cell in sent.cells()] == list(before)  # workers know a cell by its number


# Sizes, and the committed specs


def test_reduced_sizes_are_those_that_differ_from_the_published_ones():
    published = Sizes()
    assert tiny_spec(sizes=None).reduced_sizes() == {}
    spec = tiny_spec(sizes={"table": 7, "views": published.views, "generator_widths": [128, 64]})
    assert spec.reduced_sizes() == {
        "table": (7, published.table),
        "generator_widths": ((128, 64), PUBLISHED_WIDTHS),
    }
    assert spec.reduced_sizes(10) == {"table": (7, published.table)}
    assert spec.reduced_sizes(100)["generator_widths"] == ((128, 64), (1024, 512))
    assert tiny_spec(sizes=None).reduced_sizes(100) == {}


def test_widths_by_number_of_classes_leave_the_hashes_of_older_results_alone():
    """They did not say widths, and had those for ten classes."""
    assert all("generator_widths" not in cell.config["sizes"] for cell in tiny_spec().cells())


def test_the_committed_specs_are_there_and_parse():
    assert {"smoke.yaml", "cifar10.yaml"} <= {path.name for path in COMMITTED}
    for path in COMMITTED:
        cells = list(read_spec(path).cells())
        assert cells
        assert len({cell.path for cell in cells}) == len(cells)


def test_the_smoke_matrix_holds_every_defense_and_every_attack():
    cells = list(read_spec(ROOT / "benchmarks" / "smoke.yaml").cells())
    assert {cell.defense for cell in cells} == set(DEFENSES)
    assert {cell.attack for cell in cells} == set(ATTACKS)
    assert {cell.query for cell in cells} == set(QUERIES) - {"data_free"}  # which needs millions of queries
    assert {cell.query for cell in read_spec(ROOT / "benchmarks" / "data-free.yaml").cells()} == {"data_free"}
    paper = {(c.query, c.attack) for c in cells if c.query in ("knockoff", "jbda_tr")}
    published = {(query, attack) for query, attack in paper if not ATTACKS[attack].adaptive}
    others = [defense for defense in DEFENSES if defense not in DETECTORS]
    assert {(c.column, c.query, c.attack) for c in cells} >= {(d, *pair) for d in others for pair in published}
    once = {(d, query, "direct") for d in DETECTORS for query in ("knockoff", "jbda_tr")}
    assert {(c.column, c.query, c.attack) for c in cells if c.column in DETECTORS} == once


def test_cells_can_be_selected_by_column_query_and_attack():
    spec = tiny_spec()
    assert spec.select() == list(spec.cells())
    chosen = spec.select(columns=["none"], queries=["knockoff"], attacks=["label_only"])
    assert [(cell.column, cell.attack) for cell in chosen] == [("none", "label_only")]
    with pytest.raises(SpecError, match="column 'noen' is not known; known: none, label_only; did you mean 'none'"):
        spec.select(columns=["noen"])


def test_cells_can_be_selected_by_seed():
    spec = tiny_spec(seeds=[0, 3])
    assert spec.select(seeds=[3]) == [cell for cell in spec.cells() if cell.seed == 3] != []
    with pytest.raises(SpecError, match="seed '1' is not known; known: 0, 3"):
        spec.select(seeds=[1])


def test_a_name_of_another_part_of_the_matrix_is_refused():
    matrix = [{"queries": "knockoff", "attacks": "direct"}, {"queries": "jbda_tr", "attacks": "label_only"}]
    with pytest.raises(SpecError, match="attack 'label_only' is not known; known: direct"):
        tiny_spec(matrix=matrix).select(queries=["knockoff"], attacks=["label_only"])


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_spec_that_ships_is_a_spec(path):
    if "studies" in path.parts:
        assert read_spec(path.parent / read_yaml(path)["base"]).name
    else:
        assert list(read_spec(path).cells())
