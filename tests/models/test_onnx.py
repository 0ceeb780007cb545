"""ONNX models: their features and logits are found, checked, stored and found again."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import onnx
import onnxruntime as runtime
import pytest
import torch
from onnx import TensorProto

import queen
from queen.core.split import find_split
from queen.errors import BundleModelError, DtypeError, OptionError, ShapeError
from queen.models import as_module
from tests.support.guards import held_out, train_set, trained
from tests.support.onnx_models import ENDINGS, make_onnx

READABLE = ["gemm", "gemm scaled", "matmul", "matmul turned", "identity", "softmax", "log softmax"]


def logits_of(x):
    with torch.no_grad():
        return trained("mlp").eval()(x)


@pytest.mark.parametrize("ending", READABLE)
def test_features_and_logits_of_every_ending_whose_layer_can_be_read(ending):
    module, x = as_module(make_onnx(ending)), held_out()[0][:20]
    split = find_split(module, x)
    features, logits = split(x)
    assert (module.gives, split.head_name, features.shape) == ("features", "head", (20, 32))
    assert torch.allclose(logits, logits_of(x), atol=1e-5)
    assert torch.allclose(split.head_of(features), logits, atol=1e-5)
    assert module.scores is None
    assert torch.equal(module.head.weight, trained("mlp")[3].weight) or ending == "gemm scaled"


@pytest.mark.parametrize(("ending", "gives"), [("hidden weights", "logits"), ("hidden softmax", "probabilities")])
def test_what_cannot_be_read_is_answered_from_its_answers(ending, gives):
    module, x = as_module(make_onnx(ending)), held_out()[0][:20]
    features, logits = find_split(module, x)(x)
    assert module.gives == gives
    assert torch.equal(features[:, :10], logits)
    assert torch.equal(features[:, 10:], x)  # the columns, before anything is known of them
    assert (logits.softmax(1) - logits_of(x).softmax(1)).abs().sum(1).max() < 2e-3
    with pytest.raises(OptionError, match="constant weights"):
        as_module(make_onnx(ending), gives="features")


@pytest.mark.parametrize("gives", ["logits", "probabilities"])
def test_less_may_be_taken_than_there_is(gives):
    module, x = as_module(make_onnx("softmax"), gives=gives), held_out()[0][:5]
    features, logits = find_split(module, x)(x)
    assert (module.gives, features.shape) == (gives, (5, 74))
    assert (logits.softmax(1) - logits_of(x).softmax(1)).abs().sum(1).max() < 2e-3


@pytest.mark.parametrize("rows", [1, 7])
def test_a_file_for_batches_of_one_size_takes_all(rows):
    x = held_out()[0][:20]
    assert torch.allclose(as_module(make_onnx(rows=rows))(x), logits_of(x), atol=1e-5)


def test_weights_in_files_beside_it_are_taken_along(tmp_path):
    model = onnx.load_from_string(make_onnx("matmul"))
    onnx.save_model(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
        convert_attribute=True,
    )
    module, x = as_module(tmp_path / "m.onnx"), held_out()[0][:5]
    (tmp_path / "m.data").unlink()
    assert module.gives == "features"
    assert torch.allclose(module(x), logits_of(x), atol=1e-5)
    with pytest.raises(OptionError, match=r"m\.data"):
        as_module(tmp_path / "m.onnx")


def test_weights_outside_the_folder_are_refused(tmp_path):
    model = onnx.load_from_string(make_onnx())
    (tmp_path / "in").mkdir()
    onnx.save_model(model, tmp_path / "in/m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    text = (tmp_path / "in/m.onnx").read_bytes().replace(b"m.data", b"../m.d")
    (tmp_path / "in/m.onnx").write_bytes(text)
    with pytest.raises(OptionError, match="leads elsewhere"):
        as_module(tmp_path / "in/m.onnx")


def test_a_session_lends_its_file_and_is_left_alone(tmp_path):
    (tmp_path / "m.onnx").write_bytes(make_onnx())
    x = held_out()[0][:5]
    for session in (runtime.InferenceSession(make_onnx()), runtime.InferenceSession(tmp_path / "m.onnx")):
        module = as_module(session)
        assert torch.allclose(module(x), torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), atol=1e-6)
        assert [one.name for one in session.get_outputs()] == ["y"]


def test_a_copy_runs_by_itself():
    module, x = as_module(make_onnx()), held_out()[0][:5]
    expected = module(x)
    copied = copy.deepcopy(module)
    copied.load_state_dict(module.state_dict())
    assert torch.equal(copied(x), expected)


def test_a_bundle_holds_the_file(tmp_path, quick, unseen):
    guard = queen.protect(as_module(make_onnx()), train_set(), calibration=unseen[:300], **quick)
    guard.save(tmp_path / "bundle")
    loaded = queen.load(tmp_path / "bundle")
    asked = unseen[300:310]
    assert np.array_equal(loaded.answer(asked, client="a").probabilities, guard.answer(asked, client="a").probabilities)
    assert "features and logits" in "\n".join(queen.bundle.report.Report(**guard.report).lines())
    assert repr(loaded).startswith("<Guard of a ONNX with 10 classes")
    again = queen.load(tmp_path / "bundle", model=runtime.InferenceSession(make_onnx()))
    assert again.bundle.identity == guard.bundle.identity
    with pytest.raises(BundleModelError):
        queen.load(tmp_path / "bundle", model=make_onnx("hidden weights"))


def test_a_session_is_protected_directly(quick, known, unseen):
    guard = queen.protect(runtime.InferenceSession(make_onnx("softmax")), known, calibration=unseen[:300], **quick)
    reply = guard.answer(unseen[300:310], client="a")
    expected = logits_of(torch.from_numpy(unseen[300:310])).softmax(1).numpy()
    assert np.abs(reply.probabilities - expected).max() <= 0.01  # two decimals


@pytest.mark.parametrize("dtype", [TensorProto.UINT8, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_inputs_come_in_the_precision_that_the_file_wants(dtype):
    x = (held_out()[0][:4] * 16).round()
    module = as_module(make_onnx(dtype=dtype))
    given = x.to(torch.uint8) if dtype in (TensorProto.UINT8, TensorProto.INT64) else x
    assert torch.allclose(module(given), logits_of(x), atol=1e-3)
    with pytest.raises(ShapeError, match="takes 'x' as"):
        find_split(module, x if given.dtype == torch.uint8 else x.byte())


@pytest.mark.parametrize("damage", ["", "text", "cut", "flipped"])
def test_a_damaged_file_is_an_error_of_one_line(damage, tmp_path):
    file = make_onnx()
    damaged = {"": b"", "text": b"no model", "cut": file[:400], "flipped": b"\xff" + file[1:]}[damage]
    with pytest.raises(OptionError, match="ONNX"):
        as_module(damaged)


def test_missing_files_and_outputs_are_named(tmp_path):
    with pytest.raises(OptionError, match=r"none\.onnx"):
        as_module(tmp_path / "none.onnx")
    with pytest.raises(OptionError, match="its outputs are y"):
        as_module(make_onnx(), output="z")


def test_no_warning_is_printed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ending in ENDINGS:
            as_module(make_onnx(ending))(held_out()[0][:3])


def test_a_session_that_does_not_know_its_file_is_refused():
    session = runtime.InferenceSession(make_onnx())
    session._model_bytes = None
    with pytest.raises(DtypeError, match="path of the file"):
        as_module(session)
