"""`queen.check`: every mistake is found before anything is fitted, with the way out, and nothing is changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn
from torch.nn import functional as F

import queen
from queen.errors import QueenError
from queen.fit.findings import Finding
from tests.support.guards import held_out, images, train_set, trained


class Changed(nn.Module):
    """The trained MLP, whose answers are changed."""

    def __init__(self, change):
        super().__init__()
        self.network, self.change = trained("mlp"), change
        self.spare = nn.Linear(64, 10)

    def forward(self, x):
        answers = self.network(x)
        self.spare(x)  # the last layer that runs
        return self.change(answers)


class Remembering(nn.Module):
    """Answers that depend on how many queries there were."""

    def __init__(self):
        super().__init__()
        self.network, self.asked = trained("mlp"), 0

    def forward(self, x):
        self.asked += 1
        return self.network(x * (1 + 0.1 * self.asked))


class Squeezing(nn.Module):
    """A single query loses its dimension of the batch."""

    def __init__(self):
        super().__init__()
        self.network = trained("mlp")

    def forward(self, x):
        return self.network(x).squeeze()


class Batched(nn.Module):
    """Answers that depend on the other queries of a batch."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.norm(x))


class Dropping(nn.Module):
    """Features are dropped whatever the mode is."""

    def __init__(self):
        super().__init__()
        self.network = trained("mlp")

    def forward(self, x):
        return self.network[3](F.dropout(self.network[:3](x)))


def exported() -> nn.Module:
    return torch.export.export(good(), (train_set()[0][:2],)).module()


def good() -> nn.Module:
    return trained("mlp").eval()


def digits(change=lambda x, y: (x, y)):
    return change(*train_set())


WRONG = {
    "regressor": (lambda: LinearRegression().fit(*digits()), digits, "model", "classes", True),
    "not fitted": (LogisticRegression, digits, "model", "fit", True),
    "not a model": (object, digits, "model", "torch.nn.Module", True),
    "no parameters": (nn.ReLU, digits, "data", "parameters", True),
    "meta": (lambda: nn.Linear(64, 10, device="meta"), digits, "device", "meta", True),
    "one output": (lambda: nn.Linear(64, 1), digits, "model", "at least 2", True),
    "convolution": (lambda: nn.Sequential(nn.Unflatten(1, (10, 6))), digits, "data", "no parameters", True),
    "softmax": (lambda: nn.Sequential(good(), nn.Softmax(1)), digits, "answers", "probabilities", False),
    "sigmoid": (lambda: Changed(torch.sigmoid), digits, "answers", "before the sigmoid", True),
    "another head": (lambda: Changed(lambda z: z), digits, "head", "head='network.3'", True),
    "NaN": (lambda: Changed(torch.log), digits, "answers", "NaN", True),
    "random": (lambda: Changed(F.dropout), digits, "answers", "different ones", True),
    "dropout": (Dropping, digits, "answers", "different ones", True),
    "remembering": (Remembering, digits, "answers", "different ones", True),
    "squeezing": (Squeezing, digits, "answers", "squeeze()", False),
    "exported": (exported, digits, "model", "exported", True),
    "dict": (lambda: Changed(lambda z: {"answers": z}), digits, "model", "'logits' in a dict", True),
    "batch norm": (Batched, digits, "answers", "depends on its batch", False),
    "new norm": (lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)), digits, "BatchNorm", "seen", False),
    "training": (lambda: trained("mlp").train(), digits, "mode", "dropout", False),
    "compiled": (lambda: torch.compile(good(), backend="eager"), digits, "torch.compile", "original", False),
    "labels from 1": (good, lambda: digits(lambda x, y: (x, y + 1)), "labels", "y - 1", True),
    "negative labels": (good, lambda: digits(lambda x, y: (x, y - 1)), "labels", "-1", True),
    "one-hot": (good, lambda: digits(lambda x, y: (x, F.one_hot(y).float())), "labels", "argmax", True),
    "missing class": (good, lambda: digits(lambda x, y: (x[y < 9], y[y < 9])), "labels", "none of class 9", True),
    "one of a class": (good, lambda: digits(lambda x, y: (x[:16], y[:16])), "labels", "at least two images", True),
    "few of a class": (good, lambda: digits(lambda x, y: (x[:60], y[:60])), "labels", "at least 10", False),
    "fewer labels": (good, lambda: digits(lambda x, y: (x, y[:-1])), "data", "1199 labels", True),
    "no labels": (good, lambda: train_set()[0], "data", "as (x, y)", True),
    "no rows": (good, lambda: digits(lambda x, y: (x[:0], y[:0])), "data", "no images", True),
    "narrow": (good, lambda: digits(lambda x, y: (x[:, :60], y)), "data", "60", True),
    "other order": (good, lambda: digits(lambda x, y: (x, (y + 3) % 10)), "accuracy", "another order", True),
    "shuffled": (good, lambda: digits(lambda x, y: (x, y.sort().values)), "accuracy", "is this the trained", True),
    "bytes": (lambda: trained("cnn"), lambda: digits(lambda x, y: ((images(x) * 16).byte(), y)), "data", "255", True),
    "bright": (lambda: trained("cnn"), lambda: digits(lambda x, y: (images(x) * 255, y)), "pixels", "x / 255", False),
    "channels last": (
        lambda: trained("cnn"),
        lambda: digits(lambda x, y: (images(x).permute(0, 2, 3, 1), y)),
        "data",
        "transpose",
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_with_the_way_out(name):
    make, data, what, says, stops = WRONG[name]
    model, given = make(), data()
    found = [one for one in queen.check(model, given) if one.what == what and says.lower() in str(one).lower()]
    assert len(found) == 1
    assert found[0].stops == stops


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong[-1]])
def test_what_stops_is_refused_by_protect(name):
    make, data, *_ = WRONG[name]
    with pytest.raises((QueenError, RuntimeError)):
        queen.protect(make(), data(), progress=False)


def test_nothing_is_wrong_with_a_good_model():
    found = queen.check(good(), digits(), calibration=held_out())
    assert found == []
    assert not found.stops
    assert "nothing is wrong" in str(found)


def test_arrays_and_estimators_are_checked_too():
    x, y = (t.numpy() for t in train_set())
    assert queen.check(LogisticRegression(max_iter=300).fit(x, y), (x, y)) == []


def test_too_few_calibration_images_are_counted_by_predicted_class():
    x, y = held_out()
    [found] = queen.check(good(), digits(), calibration=x[y != 3])
    assert (found.what, found.stops) == ("calibration", False)
    assert "class 3" in found.got
    [found] = queen.check(good(), digits(), calibration=x[:0])
    assert (found.what, found.got, found.stops) == ("calibration", "none", True)


def test_a_model_is_left_as_it_was():
    model = trained("mlp").train()
    model[0].eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    queen.check(model, digits())
    assert [layer.training for layer in model] == [False, True, True, True]
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_findings_print_one_a_line_and_what_stops_comes_first():
    found = queen.check(trained("mlp").train(), digits(lambda x, y: (x, y + 1)))
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["STOPS", "note"]
    assert repr(found) == str(found)
    assert "expected numbers from 0 to 9, got 1 to 10" in lines[0]


def test_an_error_of_another_form_is_passed_on_as_it_is():
    assert str(Finding.of("data", ValueError("the data\nholds no images"))) == "STOPS  data: the data holds no images"


def test_large_data_are_only_sampled():
    class Counted(torch.utils.data.Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, at):
            x, y = train_set()
            return x[at % len(x)].numpy(), np.int64(y[at % len(x)])

    assert queen.check(good(), Counted()) == []


def test_a_layer_that_was_named_wrongly_is_named_again():
    found = queen.check(good(), digits(), head="nothing")
    assert [(one.what, one.expected) for one in found if one.stops] == [("head", "layer 'nothing' to make the logits")]


@pytest.mark.parametrize(
    "given",
    [lambda x: x, lambda x: (x.numpy(), np.zeros(len(x), int)), lambda x: x.double(), lambda x: x.numpy()[::-1]],
    ids=["tensor", "pair", "doubles", "backwards"],
)
def test_calibration_images_that_trained_the_model_are_counted(given):
    new, trained_on = held_out()[0], digits()[0][:100]
    found = queen.check(good(), digits(), calibration=given(torch.cat([new, trained_on])))
    said = [one.got for one in found if one.expected == "images that did not train the model"]
    assert said == [f"100 of {len(new) + 100} that did"]
