"""Classifiers with the methods of scikit-learn: guarded directly, and asked for again by a bundle."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import queen
from queen.core.split import find_split
from queen.errors import BundleModelError, DtypeError, LabelError, ModelError, OptionError, ShapeError
from queen.models import as_module
from queen.models.outside import OutsideModel
from queen.recipe import Recipe
from queen.serve.types import TensorSpec, describe
from tests.models.conftest import cancer


def test_decisions_are_taken_where_their_softmax_is_the_probabilities(known, unseen):
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(*known)
    module = as_module(estimator)
    features, logits = find_split(module, torch.from_numpy(unseen[:9]).double())(torch.from_numpy(unseen[:9]).double())
    assert (module.gives, module.scores) == ("logits", None)
    assert np.abs(logits.softmax(1).numpy() - estimator.predict_proba(unseen[:9].astype(float))).max() < 1e-9
    assert torch.equal(features[:, :10], logits)
    assert features.shape == (9, 74)


@pytest.mark.parametrize("estimator", [LogisticRegression(max_iter=5000), SVC()], ids=["logistic", "svc"])
def test_one_decision_of_two_classes_becomes_two_logits(estimator):
    x, y = cancer()
    estimator.fit(x[:300], y[:300])
    logits = as_module(estimator)(torch.from_numpy(x[300:310]))
    assert np.allclose((logits[:, 1] - logits[:, 0]).numpy(), estimator.decision_function(x[300:310]))
    assert np.array_equal(logits.argmax(1).numpy(), estimator.predict(x[300:310]))


def test_probabilities_come_back_from_their_logarithms(known, unseen):
    forest = RandomForestClassifier(20, random_state=0).fit(*known)
    module, x = as_module(forest), torch.from_numpy(unseen[:50]).double()
    logits = module(x)
    assert module.gives == "probabilities"
    assert np.abs(logits.softmax(1).numpy() - forest.predict_proba(unseen[:50])).sum(1).max() < 2e-3
    assert logits.logsumexp(1).abs().max() < 1e-9  # so energy says nothing
    assert "energy" not in module.scores


@pytest.mark.slow
def test_a_forest_is_protected_asked_stored_and_given_again(known, unseen, quick, tmp_path):
    forest = RandomForestClassifier(20, random_state=0).fit(*known)
    guard = queen.protect(forest, known, calibration=unseen[:300], **quick)
    assert guard.bundle.sentinel.scores == ("distance", "confidence", "knn")
    assert "RandomForestClassifier: probabilities alone" in guard.report["model"]
    asked = unseen[300:310]
    reply = guard.answer(asked, client="a")
    assert np.array_equal(reply.probabilities.argmax(1), forest.predict(asked))
    guard.save(tmp_path / "b")
    with pytest.raises(BundleModelError, match=r"model=estimator\), the fitted RandomForestClassifier"):
        queen.load(tmp_path / "b")
    loaded = queen.load(tmp_path / "b", model=forest)
    assert np.array_equal(loaded.answer(asked, client="a").probabilities, reply.probabilities)
    assert not [file for file in (tmp_path / "b").iterdir() if b"sklearn" in file.read_bytes()[:2]]
    other = RandomForestClassifier(20, random_state=1).fit(*known)
    with pytest.raises(BundleModelError, match="another model"):
        queen.load(tmp_path / "b", model=other)


def test_settings_of_a_user_are_kept(known, unseen, quick):
    forest = RandomForestClassifier(5, random_state=0).fit(*known)
    chosen = queen.options.Sentinel(scores=("knn",))
    guard = queen.protect(forest, known, calibration=unseen[:300], sentinel=chosen, **quick)
    assert guard.bundle.sentinel == chosen


def test_classes_of_other_names_are_understood(quick):
    x, y = cancer()
    names = np.array(["malignant", "benign"])[y]
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[:300], names[:300])
    guard = queen.protect(estimator, (x[:300], names[:300]), calibration=(x[300:], names[300:]), **quick)
    assert guard.bundle.class_names == ("benign", "malignant")
    answers = guard.fresh(observe=True).answer(x[:50], client="a").probabilities
    assert (np.array(guard.bundle.class_names)[answers.argmax(1)] == names[:50]).mean() > 0.9
    with pytest.raises(LabelError, match=r"benign, malignant\), got 0"):
        queen.protect(estimator, (x[:300], y[:300]), **quick)


@pytest.mark.parametrize("kind", [float, bool, object], ids=["floats", "truths", "objects"])
def test_labels_of_every_kind_that_an_estimator_takes_are_understood(kind, quick):
    x, y = cancer()
    labels = np.array(["malignant", "benign"])[y].astype(object) if kind is object else y.astype(kind)
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[:300], labels[:300])
    guard = queen.protect(estimator, (x[:300], labels[:300]), calibration=x[300:], **quick)
    assert guard.bundle.class_names == tuple(map(str, estimator.classes_))
    assert not queen.check(estimator, (x[:300], labels[:300])).stops
    with pytest.raises(LabelError, match="fitted with"):
        queen.protect(estimator, (x[:300], y[:300] + 7), **quick)


def test_whole_numbers_of_a_table_are_no_token_ids(known, unseen, quick):
    x, asked = ((part * 16).astype(np.int64) - 8 for part in (known[0], unseen))
    forest = RandomForestClassifier(20, random_state=0).fit(x, known[1])
    guard = queen.protect(forest, (x, known[1]), calibration=asked[:300], **quick)
    reply = guard.answer(asked[300:310], client="a")
    assert np.array_equal(reply.probabilities.argmax(1), forest.predict(asked[300:310]))
    with pytest.raises(ShapeError, match=r"\(n, 64\)"):
        guard.answer(asked[300:310, :60], client="a")
    assert describe(guard.bundle, "table").inputs == (TensorSpec("input", "INT64", (-1, 64)),)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: make_pipeline(StandardScaler(), one)], ids=["", "pipe"])
def test_decisions_of_pairs_of_classes_are_refused_with_the_way_out(wrap, known):
    x, y = known[0][known[1] < 3], known[1][known[1] < 3]  # of three classes there are three pairs
    model = wrap(SVC(decision_function_shape="ovo")).fit(x, y)
    with pytest.raises(DtypeError, match="decision_function_shape='ovr' of SVC"):
        as_module(model)
    with pytest.raises(DtypeError, match="decision_function_shape"):
        as_module(SVC(decision_function_shape="ovo").fit(*known))


def test_a_table_with_named_columns_is_asked_by_name():
    pandas = pytest.importorskip("pandas")
    x, y = cancer()
    table = pandas.DataFrame(x[:300], columns=[f"column {i}" for i in range(x.shape[1])])
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, y[:300])
    as_module(estimator)(torch.from_numpy(x[300:310]))  # a warning of scikit-learn is an error here


def test_tables_are_refused_since_their_columns_may_be_in_another_order(quick):
    pandas = pytest.importorskip("pandas")
    x, y = cancer()
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[:300], y[:300])
    table, labels = pandas.DataFrame(x), pandas.Series(y)  # labels have no order that could be wrong
    guard = queen.protect(estimator, (x[:300], labels[:300]), **quick)
    for attempt in (
        lambda: queen.protect(estimator, (table[:300], y[:300]), **quick),
        lambda: queen.protect(estimator, (x[:300], y[:300]), calibration=table[300:], **quick),
        lambda: guard.answer(table[300:310], client="a"),
    ):
        with pytest.raises(DtypeError, match=r"to_numpy\(\), with the columns in the order"):
            attempt()


def test_the_columns_that_the_guard_looks_at_are_in_standard_deviations(quick):
    x, y = cancer()
    x = np.c_[x, np.full(len(x), 7.0)]  # one that never varies
    estimator = RandomForestClassifier(5, random_state=0).fit(x[:300], y[:300])
    module = as_module(estimator)
    guard = queen.protect(module, (x[:300], y[:300]), calibration=x[300:], **quick)
    features, _ = guard.bundle.split(torch.from_numpy(x[:300]))
    columns = features[:, 2:].numpy()
    assert np.abs(columns.mean(0)).max() < 0.3  # but for what lies beyond ten deviations
    assert np.abs(columns).max() <= 10
    assert (columns[:, -1] == 0).all()
    assert (module.centre == 0).all()  # the caller's own is left alone
    assert as_module(estimator, columns=0).head.in_features == 2
    with pytest.raises(OptionError, match="columns must be 0 or"):
        as_module(estimator, columns=3)


def test_two_classes_without_columns_have_no_neighbours():
    x, y = cancer()
    estimator = LogisticRegression(max_iter=5000).fit(x[:300], y[:300])
    assert as_module(estimator, columns=0).scores == ("energy", "distance")
    assert as_module(estimator).scores is None


def test_a_sentinel_is_not_said_to_catch_noise_that_a_model_answers_all_alike(known, unseen, quick, tmp_path):
    estimator = make_pipeline(StandardScaler(), SVC()).fit(*known)  # far from all it knows, its decision is one
    guard = queen.protect(as_module(estimator, columns=0), known, calibration=unseen[:300], **quick)
    low, high = unseen[:300].min(0), unseen[:300].max(0)
    noise = np.random.default_rng(0).uniform(low, high, (60, 64)).astype(np.float32)
    assert not guard.answer(noise, client="a").alarmed.any()
    assert guard.report["alarm_after"]["0:1"]["caught"] == 0
    assert "0% of such thieves" in guard.weakness
    guard.save(tmp_path / "b")
    assert queen.load(tmp_path / "b", model=as_module(estimator, columns=0)).weakness == guard.weakness
    seen = queen.protect(estimator, known, calibration=unseen[:300], **quick)  # its columns tell noise apart
    assert seen.report["alarm_after"]["0:1"]["caught"] == 1


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (LinearRegression(), "regressor"),
        (LogisticRegression(), "fit"),
        (IsolationForest(), "fit"),
        ("multi", "several outputs"),
        (object(), "as_module"),
        (lambda x: x, "classes="),
        (3, "ONNX Runtime session"),
    ],
)
def test_what_is_no_fitted_classifier_is_refused(model, says, known):
    x, y = known[0][:50], known[1][:50]
    if model == "multi":
        model = MultiOutputClassifier(LogisticRegression(max_iter=5)).fit(x, np.c_[y, y])
    elif isinstance(model, LinearRegression):
        model.fit(x, y)
    with pytest.raises(DtypeError, match=says):
        as_module(model)


def test_words_for_classes_that_a_model_does_not_know_are_refused_with_the_way_out(known):
    x, y = known
    estimator = LogisticRegression(max_iter=300).fit(x, y)
    with pytest.raises(LabelError, match="fitted with"):
        queen.protect(LogisticRegression(max_iter=300).fit(x, y.astype(str)), (x, y), progress=False)
    with pytest.raises(DtypeError, match=r"numpy\.unique"):
        queen.protect(estimator, (x, y.astype(str)), progress=False)
    [found] = queen.check(estimator, (scipy.sparse.csr_array(x), y))
    assert (found.got, found.fix) == ("csr_array", "give x.toarray()")


def test_a_function_of_arrays_is_a_model_too(known, unseen, quick, tmp_path):
    forest = RandomForestClassifier(5, random_state=0).fit(*known)
    module = as_module(forest.predict_proba, classes=10, columns=64)
    guard = queen.protect(module, known, calibration=unseen[:300], **quick)
    asked = unseen[300:310]
    reply = guard.answer(asked, client="a")
    assert np.array_equal(reply.probabilities.argmax(1), forest.predict(asked))
    guard.save(tmp_path / "b")
    with pytest.raises(BundleModelError, match="function"):
        queen.load(tmp_path / "b")
    again = queen.load(
        tmp_path / "b", model=as_module(forest.predict_proba, classes=10, columns=64, gives="probabilities")
    )
    assert np.array_equal(again.answer(asked, client="a").probabilities, reply.probabilities)


class StrangeError(Exception):
    """As CatBoost's: of no other kind."""


def test_models_that_take_no_noise_are_protected_too(quick, tmp_path):
    """Their probe and their thieves are made of numbers that there are."""
    rng = np.random.default_rng(0)
    codes, numbers = rng.integers(0, 5, 900), rng.standard_normal((900, 6))
    y = (numbers[:, 0] + codes > 2).astype(int)
    x = np.c_[numbers + 3 * codes[:, None], codes]
    encoder = ColumnTransformer([("codes", OneHotEncoder(), [6])], remainder=StandardScaler())
    estimator = make_pipeline(encoder, LogisticRegression()).fit(x[:500], y[:500])
    found = queen.check(estimator, (x[:500], y[:500]), calibration=x[500:800])
    assert not found.stops
    guard = queen.protect(estimator, (x[:500], y[:500]), calibration=x[500:800], **quick)
    assert "logits alone; they and its 7 columns" in guard.report["model"]
    assert guard.report["foreign"] == "noise beside codes that there are"
    assert guard.report["alarm_after"]["0:1"]["caught"] == 1
    answers = guard.fresh(observe=True).answer(x[800:], client="a").probabilities
    assert np.abs(answers - estimator.predict_proba(x[800:])).max() < 1e-6
    guard.save(tmp_path / "b")
    assert queen.load(tmp_path / "b", model=estimator).bundle.identity == guard.bundle.identity
    wrong = x[500:800].copy()
    wrong[7, 6] = 9.0
    for attempt in (
        lambda: queen.protect(estimator, (x[:500], y[:500]), calibration=wrong, **quick),
        lambda: queen.protect(estimator, (np.r_[x[:500], wrong], y[:800]), **quick),
    ):
        with pytest.raises(
            ModelError, match=r"the data \((calibration|features)\) that the model can run on, got some"
        ):
            attempt()
    [found] = queen.check(estimator, (x[:500], y[:500]), calibration=wrong)
    assert (found.what, found.stops) == ("calibration", True)


def test_rows_tell_what_an_estimator_calls_probabilities_where_noise_does_not():
    x, y = np.abs(cancer()[0]) + 1, cancer()[1]
    estimator = make_pipeline(FunctionTransformer(np.log), StandardScaler(), LogisticRegression()).fit(x[:300], y[:300])
    module = as_module(estimator)
    assert module.gives is None
    module(torch.from_numpy(x[300:304]))
    assert module.gives == "logits"


def test_whatever_a_library_raises_is_about_the_input(known, unseen, quick):
    def strange(x):
        if x.min() < 0:
            raise StrangeError("nothing below 0")
        return forest.predict_proba(x)

    forest = RandomForestClassifier(5, random_state=0).fit(*known)
    estimator = FromPixels(forest, strange)
    for module in (as_module(estimator), as_module(strange, classes=10)):
        assert not queen.check(module, known).stops
        guard = queen.protect(module, known, policy="paper", **quick)
        with pytest.raises(ModelError, match="nothing below 0"):
            guard.answer(unseen[:5] - 2, client="a")
        with pytest.raises(ShapeError, match="nothing below 0"):
            queen.protect(module, (known[0] - 2, known[1]), **quick)


class FromPixels:
    """A fitted classifier that takes no numbers below 0, and has decisions, too."""

    def __init__(self, forest, predict_proba):
        self.classes_, self.n_features_in_ = forest.classes_, forest.n_features_in_
        self.predict_proba = self.decision_function = predict_proba
        self.fit = self.predict = None


def test_a_recipe_cannot_build_an_estimator():
    with pytest.raises(BundleModelError, match="pickle"):
        Recipe("queen.models.estimator:missing", {"kind": "SVC", "package": "sklearn", "version": "1"}).build()


def test_a_model_needs_two_classes():
    with pytest.raises(OptionError, match="at least 2"):
        OutsideModel(1, "logits")
