from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import queen.demo.adaptive as module
import queen.demo.thieves
from queen.demo.report import html_report
from queen.demo.table import ADAPTIVE_HEADER, adaptive_markdown, adaptive_notes, adaptive_rows
from queen.progress import Progress
from queen.training import predict
from tests.demo.conftest import quick

NAMES = {
    *(f"{name}{kind}" for name in ("plain", "look-alike selection", "binarised") for kind in ("", ", knn too")),
    "warm-up 100", "remap 100 labels", "100 own labels alone",
    *(f"cover {r}:1{kind}" for r in (1, 3) for kind in ("", ", central", ", jittered copies")),
    *(f"{n} accounts{kind}" for n in (1, 50) for kind in ("", ", pooled")),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(demo) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        patch.setattr(queen.demo.thieves, "EPOCHS", 1)
        patch.setattr(queen.demo.thieves, "MIN_STEPS", 3)
        patch.setattr(module, "WARM_UP", 100)
        patch.setattr(module, "LOOK_ALIKES", 50)
        patch.setattr(module, "RATIOS", {1: 100, 3: 60})
        patch.setattr(module, "ACCOUNTS", (1, 50))
        original = predict(demo.guard.bundle.split.model, demo.images.test[0])
        return module.try_adaptive(demo.guard, demo.images, original, (0,), Progress(shown=False))


@pytest.mark.slow
def test_every_attacker_reports_what_it_got(found):
    assert set(found) == NAMES
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for one in found.values():
        assert {"honest_answers", "thief_accuracy", "accounts", "alarm_at", "seeds"} <= set(one)
        assert 0 <= one["honest_answers"] <= one["attack_queries"] <= one["queries"]
        assert one["thief_accuracy"] == max(one["thief_all"], one["thief_honest_only"])
        assert one["seeds"] == [0]


def test_pooled_accounts_get_no_more_than_one(found):
    assert found["50 accounts, pooled"]["honest_answers"] <= 1.1 * found["1 accounts, pooled"]["honest_answers"]
    assert found["50 accounts"]["honest_answers"] > 2 * found["1 accounts"]["honest_answers"]
    assert found["50 accounts"]["accounts"] == 50


def test_cover_delays_the_alarm_and_its_answers_are_counted_apart(found):
    assert found["cover 1:1"]["honest_answers"] >= found["plain"]["honest_answers"]
    assert found["cover 3:1"]["honest_cover"] >= 3 * (found["cover 3:1"]["honest_answers"] - 1)
    assert found["plain"]["honest_cover"] == 0


def test_labels_of_ones_own_are_trained_on_alone_too(found):
    assert found["100 own labels alone"]["queries"] == 0
    assert found["remap 100 labels"]["honest_answers"] == found["plain"]["honest_answers"]


def test_the_table_shows_them_all_and_so_does_the_report(found, demo):
    results = demo.results | {"adaptive": found}
    table = list(adaptive_rows(results))
    assert [row[0] for row in table] == list(found)
    assert {len(row) for row in table} == {len(ADAPTIVE_HEADER)}
    assert adaptive_markdown(results).count("| plain | 1 | 300 |") == 1
    page = html_report(replace(demo, results=results))
    assert all(name in page for name in found)
    assert "Attackers who know the sentinel" in page
    assert "Attackers who know the sentinel" not in html_report(demo)


def test_a_collapsed_adaptive_thief_has_a_star_and_a_note(found, demo):
    flagged = found | {"plain": found["plain"] | {"flags": ["1 of 1 direct thieves collapsed to one class"]}}
    results = demo.results | {"adaptive": flagged}
    assert next(iter(adaptive_rows(results)))[-1].endswith("*")
    assert any(note.startswith("* plain: 1 of 1 direct") for note in adaptive_notes(results))


def test_the_most_usual_images_have_the_lowest_energy(demo):
    x = demo.images.test[0][:20]
    with torch.inference_mode():
        logits = demo.guard.bundle.split.model(x)
    assert torch.allclose(module._energy(demo.guard, x), -logits.exp().sum(1).log(), atol=1e-4)
