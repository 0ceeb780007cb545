"""The reference students on scikit-learn's digits, with short trainings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from queen.errors import OptionError
from queen.price import measure
from queen.price.measure import Pricing, measure_curve, sizes
from queen.price.students import Jury, Pool, Student, choose_networks, teach
from queen.progress import Progress
from queen.recipe import Recipe
from queen.training import Schedule, probabilities
from queen.zoo import build
from tests.support.guards import held_out, images, train_set, trained
from tests.support.prices import QUICK_PRICE

SHORT = Schedule(epochs=1, batch=32, lr=0.05, min_steps=40)


def digits(*, flat: bool = False) -> tuple[list[Pool], Jury]:
    """400 training images, 300 held-out ones, and 200 to judge on."""
    model, shaped = trained("mlp" if flat else "cnn"), (lambda x: x) if flat else images
    x, y = held_out()
    pools = [
        Pool(name, shaped(part).numpy(), probabilities(model, shaped(part)).numpy())
        for name, part in (("held-out", x[:300]), ("training", train_set()[0][:400]))
    ]
    named = probabilities(model, shaped(x[300:500])).argmax(1).numpy()
    return pools, Jury(shaped(x[300:500]).numpy(), named, y[300:500].numpy())


def measured(pricing: Pricing = QUICK_PRICE, *, flat: bool = False):
    pools, jury = digits(flat=flat)
    options = {"own": None, "digits": None, "device": "cpu", "show": Progress(False)}
    return measure_curve(pools, jury, pricing=pricing, **options)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [(30, [30]), (45, [30]), (46, [30, 46]), (867, [30, 100, 300, 867]), (2500, [30, 100, 300, 1000, 2500])],
)
def test_sizes_go_up_by_three_and_end_with_the_whole_pool(pool, expected):
    assert sizes(pool) == expected


def test_too_few_images_are_an_error():
    with pytest.raises(OptionError, match=r"at least 30 images .* got 29"):
        sizes(29)


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
def test_the_curve_has_every_size_of_every_pool_and_rises(flat):
    curve = measured(flat=flat)
    rows = {(row.images, row.label_only): [] for row in curve.rows}
    for row in curve.rows:
        rows[row.images, row.label_only].append(row)
        assert 0 <= row.low <= row.agreement <= row.high <= 1
        assert row.accuracy is not None
    assert {kind: [row.answers for row in of] for kind, of in rows.items()} == {
        (name, label_only): [30, 100, 300] for name in ("held-out", "training") for label_only in (False, True)
    }
    assert curve.agreement_at(300) > curve.agreement_at(30) > 0.15  # chance is a tenth
    assert set(curve.networks) == ({"mlp", "linear"} if flat else {"small_cnn", "mlp"})
    assert curve.judged == 200


@pytest.mark.slow
def test_it_is_the_same_again_and_in_several_processes():
    once = measured()
    assert measured() == once
    assert measured(replace(QUICK_PRICE, jobs=2)) == once


def test_other_seeds_ask_for_other_images():
    pools, jury = digits()
    students = [
        Student("mlp", choose_networks((1, 8, 8), 10, None)["mlp"], "held-out", 30, False, seed) for seed in range(2)
    ]
    figures = [teach(student, pools[0], jury, SHORT, "cpu") for student in students]
    assert figures[0] != figures[1]
    assert figures[0] == teach(students[0], pools[0], jury, SHORT, "cpu")


def test_without_labels_there_is_no_accuracy():
    pools, jury = digits()
    student = Student("mlp", choose_networks((1, 8, 8), 10, None)["mlp"], "held-out", 30, True, 0)
    assert teach(student, pools[0], replace(jury, labels=None), SHORT, "cpu")["accuracy"] is None


@pytest.mark.parametrize("answers", [30, 300])
def test_students_take_1500_steps_however_few_answers_they_have(answers, monkeypatch):
    pools, jury = digits(flat=True)
    steps, step = [], torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *rest: steps.append(1) or step(self, *rest))
    recipe = choose_networks((64,), 10, None)["linear"]
    student = Student("linear", recipe, "held-out", answers, False, 0)
    teach(student, pools[0], jury, Pricing().schedule((64,)), "cpu")
    assert len(steps) >= 1500


def test_label_only_students_never_see_more_than_the_class():
    pools, jury = digits()
    hard = np.eye(10, dtype=np.float32)[pools[0].answers.argmax(1)]
    student = Student("mlp", choose_networks((1, 8, 8), 10, None)["mlp"], "held-out", 100, True, 0)
    assert teach(student, pools[0], jury, SHORT, "cpu") == teach(
        student, replace(pools[0], answers=hard), jury, SHORT, "cpu"
    )


def test_the_models_own_network_is_a_student_if_the_zoo_has_it():
    own = Recipe("queen.zoo:build", {"name": "vgg11_bn", "classes": 10})
    assert choose_networks((3, 32, 32), 10, own) == {"vgg11_bn": own, **_small(3)}
    assert set(choose_networks((3, 32, 32), 10, Recipe("my:net"))) == {"small_cnn", "mlp"}
    assert list(choose_networks((1, 28, 28), 10, build("small_cnn", classes=10).recipe)) == ["small_cnn", "mlp"]


def _small(channels: int) -> dict[str, Recipe]:
    return {"small_cnn": choose_networks((channels, 32, 32), 10, None)["small_cnn"]}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 5, 9), (17,), (4, 6), (3, 2, 2)])
def test_every_shape_has_two_networks_that_take_it(shape):
    networks = choose_networks(shape, 5, None)
    assert len(networks) == 2
    for recipe in networks.values():
        assert recipe.build()(torch.rand(3, *shape)).shape == (3, 5)


def test_only_photographs_are_mirrored_unless_somebody_says_so():
    assert Pricing().schedule((3, 32, 32)).augment
    assert not Pricing().schedule((1, 28, 28)).augment
    assert not Pricing(augment=False).schedule((3, 32, 32)).augment
    assert Pricing(augment=True).schedule((1, 28, 28)).augment
    assert not Pricing(augment=True).schedule((64,)).augment


def test_many_answers_are_learned_in_larger_batches_and_never_in_fewer_steps():
    schedules = {answers: Pricing().schedule((3, 32, 32), answers) for answers in (30, 3000, 10_000, 50_000)}
    assert {answers: one.batch for answers, one in schedules.items()} == {30: 32, 3000: 32, 10_000: 128, 50_000: 128}
    for answers, schedule in schedules.items():
        epochs, per_epoch = schedule.plan(answers)
        assert epochs * per_epoch >= 1500


def test_augmented_images_are_passed_over_more_often_unless_somebody_says_how_often():
    assert Pricing().schedule((3, 32, 32), 3000).epochs == 60
    assert Pricing().schedule((1, 8, 8), 3000).epochs == Pricing(augment=False).schedule((3, 32, 32)).epochs == 12
    assert Pricing(augment=True).schedule((1, 8, 8)).epochs == 60
    assert Pricing(epochs=3).schedule((3, 32, 32)).epochs == Pricing(epochs=3).schedule((64,)).epochs == 3


@pytest.mark.parametrize("wrong", [{"seeds": ()}, {"jobs": 0}, {"steps": 0}, {"batch": 0}, {"epochs": 0}])
def test_a_pricing_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(OptionError, match="must be"):
        Pricing(**wrong)


def test_a_training_that_failed_is_repeated_at_a_lower_rate(monkeypatch):
    pools, jury = digits(flat=True)
    student = Student("linear", choose_networks((64,), 10, None)["linear"], "held-out", 100, False, 0)
    diverging = replace(SHORT, lr=1e30, clip=None)
    rates = []
    learn = measure.teach.__globals__["train"]

    def train(network, x, targets, schedule, generator):
        rates.append(schedule.lr)
        return learn(network, x, targets, replace(schedule, lr=1e30 if len(rates) == 1 else 0.05), generator)

    monkeypatch.setitem(measure.teach.__globals__, "train", train)
    assert teach(student, pools[0], jury, diverging, "cpu")["agreement"] > 0.3
    assert rates == pytest.approx([1e30, 1e29])


KILLED = """
import sys
from dataclasses import replace
from tests.price.test_measure import QUICK_PRICE, measured
from queen.price import measure

teach, taught = measure.teach, []

def teach_some(*args):
    if len(taught) == 7:
        print("enough", flush=True)
        sys.stdin.read()
    taught.append(1)
    return teach(*args)

measure.teach = teach_some
measured(replace(QUICK_PRICE, folder=sys.argv[1]))
"""


@pytest.mark.slow
def test_what_was_killed_goes_on_where_it_stopped(tmp_path, monkeypatch):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout.readline() == "enough\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(list(tmp_path.glob("student-*.json"))) == 7
    taught, teach_one = [], measure.teach
    monkeypatch.setattr(measure, "teach", lambda *args: taught.append(1) or teach_one(*args))
    resumed = measured(replace(QUICK_PRICE, folder=tmp_path))
    assert len(taught) == 2 * 3 * 2 * 2 * 2 - 7
    assert resumed == measured()


def test_other_answers_or_a_longer_training_are_not_taken_for_the_same(tmp_path):
    pools, jury = digits(flat=True)
    student = Student("linear", choose_networks((64,), 10, None)["linear"], "held-out", 30, False, 0)
    work = measure.Work({"held-out": pools[0]}, jury, QUICK_PRICE, "cpu", tmp_path)
    work.run(student)
    other = replace(pools[0], answers=pools[0].answers[:, ::-1].copy())
    for changed, whom in (
        (work, replace(student, label_only=True)),
        (replace(work, pools={"held-out": other}), student),
        (replace(work, pricing=replace(QUICK_PRICE, steps=41)), student),
        (replace(work, jury=replace(jury, labels=None)), student),
    ):
        files = set(tmp_path.glob("*.json"))
        changed.run(whom)
        assert len(set(tmp_path.glob("*.json")) - files) == 1
    files = set(tmp_path.glob("*.json"))
    work.run(student)
    assert set(tmp_path.glob("*.json")) == files
