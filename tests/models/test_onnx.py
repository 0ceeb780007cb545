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
from sklearn.linear_model import LogisticRegression

import queen
from queen.core.split import find_split
from queen.errors import BundleModelError, DtypeError, HeadError, OptionError, ShapeError
from queen.models import as_module
from queen.models.graph import Graph
from queen.models.onnx import OnnxModel
from tests.models.conftest import cancer
from tests.support.guards import held_out, train_set, trained
from tests.support.onnx_models import ENDINGS, make_onnx, one_answer, zip_rows

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


@pytest.mark.parametrize("ending", ["softmax", "hidden softmax"])
def test_rows_of_dictionaries_are_read_where_they_are_tensors_still(ending, quick, unseen):
    names = [f"digit {k}" for k in range(10)]
    file, (x, y) = zip_rows(make_onnx(ending), names), train_set()
    labels = np.array(names)[y.numpy()]
    guard = queen.protect(file, (x.numpy(), labels), calibration=unseen[:300], **quick)
    assert guard.bundle.class_names == tuple(names)
    answers = guard.fresh(observe=True).answer(unseen[300:310], client="a").probabilities
    expected = logits_of(torch.from_numpy(unseen[300:310])).softmax(1).numpy()
    assert np.abs(answers - expected).max() < 1e-3
    assert as_module(file, output="rows").gives == as_module(make_onnx(ending)).gives
    assert as_module(zip_rows(make_onnx(ending), list(range(10)))).class_names is None


def test_one_answer_of_two_classes_becomes_two_logits(tmp_path, quick):
    x, y = cancer()
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    known = LogisticRegression().fit(x[:300], y[:300])
    weight, bias = known.coef_[0], known.intercept_[0]
    for last in ("Sigmoid", ""):
        guard = queen.protect(one_answer(weight, bias, last=last), (x[:300], y[:300]), calibration=x[300:450], **quick)
        assert "features and logits" in guard.report["model"]
        answers = guard.fresh(observe=True).answer(x[450:], client="a").probabilities
        assert np.abs(answers - known.predict_proba(x[450:])).max() < 1e-5
    guard.save(tmp_path / "b")
    assert np.array_equal(queen.load(tmp_path / "b", observe=True).answer(x[450:], client="a").probabilities, answers)


@pytest.mark.parametrize("gives", ["logits", "probabilities"])
def test_one_answer_that_may_be_anything_must_be_named(gives):
    weight, x = np.ones(4) / 4, torch.rand(6, 4)
    file = one_answer(weight, 0.0, last="Abs")
    with pytest.raises(HeadError, match="gives='logits'"):
        find_split(as_module(file), x)
    second = as_module(file, gives=gives)(x).softmax(1)[:, 1]
    assert torch.allclose(second, x.mean(1) if gives == "probabilities" else x.mean(1).sigmoid(), atol=1e-6)


def test_operations_of_other_domains_are_not_taken_for_those_of_the_same_name():
    ending = Graph(one_answer(np.ones(4), 0.0, domain="strangers")).ending("y", single=True)
    assert (ending.logits, ending.head, ending.squashed) == ("y", None, False)


def test_columns_of_whole_numbers_are_looked_at_if_told_to():
    file = make_onnx("hidden softmax", dtype=TensorProto.INT64)
    assert as_module(file).columns == 0  # they may be token ids
    module = as_module(file, columns=64)
    assert (module.columns, module.takes_rows) == (64, True)
    with pytest.raises(OptionError, match="columns must be 0 or"):
        as_module(file, columns=3)


def test_what_is_called_probabilities_must_be():
    with pytest.raises(HeadError, match=r"do not add up to 1: .*gives='logits'"):
        as_module(make_onnx("gemm"), gives="probabilities")(held_out()[0][:5])


def test_weights_outside_the_folder_are_refused(tmp_path):
    model = onnx.load_from_string(make_onnx())
    (tmp_path / "in").mkdir()
    onnx.save_model(model, tmp_path / "in/m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    text = (tmp_path / "in/m.onnx").read_bytes().replace(b"m.data", b"../m.d")
    (tmp_path / "in/m.onnx").write_bytes(text)
    with pytest.raises(OptionError, match="leads elsewhere"):
        as_module(tmp_path / "in/m.onnx")


def test_a_stored_file_reads_no_other_files(tmp_path):
    onnx.save_model(
        onnx.load_from_string(make_onnx()),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w",
        size_threshold=0,
    )
    outside = OnnxModel((tmp_path / "m.onnx").read_bytes(), ["u", "y"], 10, "features", features=32)
    with pytest.raises(OptionError, match="weights inside"):
        outside(held_out()[0][:3])


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
