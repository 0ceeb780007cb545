from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import queen
from tests.support.commands import FACTORY, as_json, invoke, run
from tests.support.guards import fitted, queries, train_set, trained


def test_ask_returns_what_the_guard_answers(here):
    expected = queen.load("head").answer(train_set()[0][:1], client="cli")
    found = as_json("ask", "head", "one.npy")
    assert found["verdicts"] == [verdict.value for verdict in expected.verdicts]
    assert found["probabilities"] == expected.probabilities.tolist()
    assert found["labels"] == expected.probabilities.argmax(1).tolist()


def test_ask_a_batch_meets_every_verdict_and_explain_shows_the_honest_answer_beside(here, tmp_path):
    x = queries()
    np.save(tmp_path / "batch.npy", x.numpy())
    found = as_json("ask", "head", tmp_path / "batch.npy", "--explain")
    guard = queen.load("head")
    with torch.inference_mode():
        honest = guard.bundle.split(x)[1].softmax(1)
    assert torch.equal(torch.tensor(found["honest"]), honest)
    letters = np.array(found["verdicts"])
    assert set(letters) == set("ABCD")
    same = np.array([a == b for a, b in zip(found["honest"], found["probabilities"], strict=True)])
    assert same[(letters == "C") | (letters == "D")].all()
    assert not same[letters == "B"].any()
    assert same[letters == "A"].mean() < 0.05  # at the border of its class a feature has no room to walk
    assert "honest" not in as_json("ask", "head", tmp_path / "batch.npy")


def test_ask_in_words_names_classes_and_only_explain_tells_verdict_and_honest_answer(here, tmp_path):
    reply = fitted().answer(queries(), client="a")
    row = [verdict.value for verdict in reply.verdicts].index("A")
    np.save(tmp_path / "outside.npy", queries()[row].numpy())
    plain = run("ask", "head", tmp_path / "outside.npy").stdout
    explained = run("ask", "head", tmp_path / "outside.npy", "--explain").stdout
    found = as_json("ask", "head", tmp_path / "outside.npy", "--explain")
    best = found["labels"][0]
    assert f"digit {best}" in plain
    assert "verdict" not in plain
    assert "honest" not in plain
    assert "query 0, verdict A (outside)" in " ".join(explained.split())
    line = next(line for line in explained.splitlines() if line.startswith(f"digit {best}"))
    assert line.split()[2:] == [f"{found['probabilities'][0][best]:.4f}", f"{found['honest'][0][best]:.4f}"]
    assert line.split()[2] != line.split()[3]


def test_ask_with_an_image_equals_ask_with_its_pixels(here, tmp_path):
    np.save(tmp_path / "pixels.npy", np.asarray(Image.open("digit.png"), np.float32)[None] / 255)
    found = as_json("ask", "cnn", "digit.png")
    assert found == as_json("ask", "cnn", tmp_path / "pixels.npy")
    assert len(found["probabilities"]) == 1


def test_a_ledger_remembers_between_calls_and_for_each_client(here, tmp_path):
    x = queries()
    fresh = [verdict.value for verdict in fitted().answer(x, client="a").verdicts].index("C")
    np.save(tmp_path / "fresh.npy", x[fresh].numpy())

    def ask(*options: object) -> str:
        return as_json("ask", "head", tmp_path / "fresh.npy", *options)["verdicts"][0]

    ledger = ["--ledger", tmp_path / "ledger.sqlite"]
    assert [ask(*ledger), ask(*ledger, "--explain"), ask(*ledger)] == ["C", "D", "D"]
    assert ask(*ledger, "--client", "another") == "C"
    assert [ask(), ask()] == ["C", "C"]


def test_who_is_accused_gets_no_label_and_exit_code_1(here, tmp_path):
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).random((100, 64), np.float32))
    asked = invoke("ask", "watched", tmp_path / "noise.npy", "--client", "mallory", "--json")
    found = json.loads(asked.stdout)
    assert asked.exit_code == 1
    assert asked.stderr.startswith("refused: client 'mallory' gets no answer to ")
    assert 0 < sum(found["refused"]) < 100
    for answers in (found["labels"], found["probabilities"]):
        assert [answer is None for answer in answers] == found["refused"]


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_ledger_has_the_addresses_that_it_has_elsewhere(here, tmp_path, form):
    run("ask", "head", "one.npy", "--ledger", form.format(tmp_path / "ledger.sqlite"))
    assert as_json("clients", "--ledger", tmp_path / "ledger.sqlite")[0]["name"] == "cli"


@pytest.mark.slow
def test_class_names_with_square_brackets_are_shown_as_they_are(here, tmp_path):
    names = [f"[b]{k}" for k in range(10)]
    guard = queen.protect(trained("mlp"), train_set(), policy="paper", factory=FACTORY, class_names=names)
    guard.save(tmp_path / "b")
    assert "[b]0" in run("ask", tmp_path / "b", "one.npy").stdout
    assert "[b]9" in run("inspect", tmp_path / "b").stdout
