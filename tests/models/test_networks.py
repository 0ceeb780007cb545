"""Torch modules that need a word first: compiled ones, those that return probabilities, Hugging Face's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import queen
from queen.core.split import find_split
from queen.errors import DtypeError, HeadError, OptionError, ProtectionWarning
from queen.models import as_module
from tests.support.guards import held_out, train_set, trained

transformers = pytest.importorskip("transformers")


class Cooled(nn.Module):
    """Answers with probabilities that are not the softmax of its last layer."""

    def __init__(self):
        super().__init__()
        self.network = trained("mlp")

    def forward(self, x):
        return (self.network(x) / 3).softmax(1)


@pytest.mark.slow
@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)], ids=["softmax", "log softmax"])
def test_a_model_that_returns_softmax_is_split_at_its_logits(last, quick, tmp_path):
    model, x = nn.Sequential(trained("mlp"), last), held_out()[0]
    split = find_split(model, x[:5])
    assert split.softmax
    with torch.no_grad():
        assert torch.allclose(split(x)[1], trained("mlp").eval()(x), atol=1e-5)
    guard = queen.protect(model, train_set(), calibration=x[:300], **quick)
    assert "probabilities" in guard.report["model"]
    plain = queen.protect(trained("mlp"), train_set(), calibration=x[:300], **quick)
    asked = x[300:320]
    expected = plain.answer(asked, client="a").probabilities
    assert torch.equal(guard.answer(asked, client="a").probabilities, expected)
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b", model=nn.Sequential(trained("mlp"), last))
    assert loaded.bundle.split.softmax
    assert torch.equal(loaded.answer(asked, client="a").probabilities, expected)


def test_other_probabilities_are_refused_with_the_way_out(quick):
    x, (known, y) = held_out()[0], train_set()
    with pytest.raises(HeadError, match="gives='probabilities'"):
        queen.protect(Cooled(), (known, y))
    module = as_module(Cooled(), gives="probabilities", classes=10, columns=64)
    guard = queen.protect(module, (known, y), calibration=x[:300], **quick)
    with torch.no_grad():
        answers = guard.fresh(observe=True).answer(x[300:310], client="a").probabilities
        assert (answers - Cooled().eval()(x[300:310])).abs().sum(1).max() < 2e-3
    with pytest.raises(OptionError, match="classes="):
        as_module(Cooled(), gives="probabilities")


def test_sigmoids_in_place_of_logits_are_warned_of(quick):
    model = as_module(nn.Sequential(trained("mlp"), nn.Sigmoid()), gives="logits", classes=10)
    with pytest.warns(ProtectionWarning, match="before the sigmoids"):
        guard = queen.protect(model, train_set(), policy="paper", **quick)
    assert any("sigmoids" in warning for warning in guard.report["warnings"])


def test_a_wrapped_network_with_a_recipe_needs_no_factory(quick, tmp_path):
    x = held_out()[0].view(-1, 1, 8, 8)
    module = as_module(queen.zoo.build("small_cnn", classes=10, width=2), gives="logits", classes=10)
    guard = queen.protect(module, (train_set()[0].view(-1, 1, 8, 8), train_set()[1]), min_agreement=0, **quick)
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    asked = x[:5]
    assert torch.equal(loaded.answer(asked, client="a").probabilities, guard.answer(asked, client="a").probabilities)


def compiled() -> nn.Module:
    """A factory that compiles what it makes."""
    return torch.compile(trained("mlp"), backend="eager")


def test_a_factory_may_compile(quick, tmp_path):
    factory = f"{__name__}:compiled"
    guard = queen.protect(compiled(), train_set(), policy="paper", factory=factory, **quick)
    guard.save(tmp_path / "b")
    asked = held_out()[0][:5]
    for again in (queen.load(tmp_path / "b"), queen.load(tmp_path / "b", model=factory)):
        assert torch.equal(again.answer(asked, client="a").probabilities, guard.answer(asked, client="a").probabilities)


def test_a_scripted_module_is_guarded_by_its_answers(quick, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would have it exported
        model = as_module(torch.jit.script(trained("mlp").eval()), gives="logits", classes=10)
    guard = queen.protect(model, train_set(), policy="paper", **quick)
    guard.save(tmp_path / "b")
    loaded, asked = queen.load(tmp_path / "b", model=model), held_out()[0][:5]
    assert torch.equal(loaded.answer(asked, client="a").probabilities, guard.answer(asked, client="a").probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "in place"])
def test_a_compiled_model_is_guarded_as_the_original(how, quick, tmp_path):
    model, x = trained("mlp").eval(), held_out()[0]
    compiled = model
    if how == "function":
        compiled = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    compiled(x[:4])
    guard = queen.protect(compiled, train_set(), calibration=x[:300], **quick)
    assert "compiled" in guard.report["model"]
    expected = queen.protect(trained("mlp"), train_set(), calibration=x[:300], **quick)
    assert guard.bundle.identity == expected.bundle.identity
    guard.save(tmp_path / "b")
    for given in (compiled, trained("mlp")):
        assert queen.load(tmp_path / "b", model=given).bundle.identity == guard.bundle.identity
    if how == "in place":
        assert model._compiled_call_impl is not None  # the caller's own stays compiled


TEXT = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
VIT = {
    "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip


def test_an_image_classifier_of_hugging_face_needs_no_factory(quick, tmp_path):
    torch.manual_seed(0)
    names = {k: f"digit {k}" for k in range(10)}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT, id2label=names))
    x, y = train_set()
    x = x.view(-1, 1, 8, 8)
    guard = queen.protect(model, (x[:300], y[:300]), min_agreement=0, **quick)
    assert guard.bundle.class_names == tuple(names.values())
    guard.save(tmp_path / "b")
    loaded = queen.load(tmp_path / "b")
    assert type(loaded.bundle.split.model) is type(model)
    assert torch.equal(loaded.answer(x[:5], client="a").probabilities, guard.answer(x[:5], client="a").probabilities)


def test_a_text_classifier_of_hugging_face_takes_arrays_by_name(quick, tmp_path):
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(**TEXT, num_labels=3)
    model = transformers.DistilBertForSequenceClassification(config)
    rng = np.random.default_rng(0)
    x = {"input_ids": rng.integers(1, 50, (90, 7)), "attention_mask": np.ones((90, 7), int)}
    guard = queen.protect(model, (x, np.arange(90) % 3), min_agreement=0, **quick)
    assert guard.bundle.class_names is None
    reply = guard.answer({name: part[:4] for name, part in x.items()}, client="a")
    assert isinstance(reply.probabilities, np.ndarray)
    guard.save(tmp_path / "b")
    assert queen.load(tmp_path / "b").bundle.identity == guard.bundle.identity


def test_a_pipeline_is_told_to_give_its_network():
    class Pipeline:
        """Stands for `transformers.pipelines`' own, which want a tokenizer from the network."""

    Pipeline.__module__ = "transformers.pipelines.text_classification"
    with pytest.raises(DtypeError, match=r"pipeline\.model"):
        as_module(Pipeline())
