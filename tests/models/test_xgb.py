"""xgboost classifiers travel inside a bundle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

xgboost = pytest.importorskip("xgboost")

import queen  # noqa: E402
from queen.errors import BundleModelError, DtypeError, ShapeError  # noqa: E402
from queen.models import as_module  # noqa: E402
from tests.models.conftest import cancer  # noqa: E402


def trees(x, y, **options):
    return xgboost.XGBClassifier(n_estimators=8, max_depth=3, n_jobs=1, **options).fit(x, y)


def test_margins_are_logits_of_many_and_of_two_classes(known, unseen):
    for (x, y), asked in ((known, unseen[:20]), ((cancer()[0][:300], cancer()[1][:300]), cancer()[0][300:320])):
        model = trees(x, y)
        logits = as_module(model)(torch.from_numpy(asked))
        assert np.abs(logits.softmax(1).numpy() - model.predict_proba(asked)).max() < 1e-6


def test_a_classifier_stopped_early_ends_at_its_best_tree_and_a_booster_at_its_last(known, unseen):
    model = xgboost.XGBClassifier(n_estimators=60, learning_rate=1.0, early_stopping_rounds=2, n_jobs=1)
    model.fit(*known, eval_set=[(unseen[:100], np.zeros(100))], verbose=False)
    booster, asked = model.get_booster(), unseen[:20]
    assert model.best_iteration < booster.num_boosted_rounds() - 1
    for given, said in ((model, model.predict_proba(asked)), (booster, booster.predict(xgboost.DMatrix(asked)))):
        assert np.abs(as_module(given)(torch.from_numpy(asked)).softmax(1).numpy() - said).max() < 1e-6


@pytest.mark.parametrize("options", [{"missing": 0.0}, {"booster": "gblinear"}], ids=["missing", "linear"])
def test_a_classifier_answers_as_its_own_options_say_also_out_of_a_bundle(options, known, unseen, quick, tmp_path):
    model, asked = trees(*known, **options), unseen[300:320]
    queen.protect(model, known, calibration=unseen[:300], **quick).save(tmp_path / "b")
    answers = queen.load(tmp_path / "b", observe=True, digits=None).answer(asked, client="a").probabilities
    assert np.abs(answers - model.predict_proba(asked)).max() < 1e-5


def test_a_bundle_holds_the_trees(known, unseen, quick, tmp_path):
    model = trees(*known)
    guard = queen.protect(model, known, calibration=unseen[:300], **quick)
    guard.save(tmp_path / "b")
    loaded, asked = queen.load(tmp_path / "b"), unseen[300:310]
    reply = loaded.answer(asked, client="a")
    assert np.array_equal(reply.probabilities, guard.answer(asked, client="a").probabilities)
    assert np.array_equal(reply.probabilities.argmax(1), model.predict(asked))
    with pytest.raises(ShapeError, match=r"\(n, 64\)"):
        loaded.answer(asked[:, :60], client="a")
    with pytest.raises(BundleModelError, match="another model"):
        queen.load(tmp_path / "b", model=trees(known[0], known[1], random_state=1, subsample=0.5))


def test_what_does_not_classify_is_refused(known):
    with pytest.raises(DtypeError, match="reg:squarederror"):
        as_module(xgboost.XGBRegressor(n_estimators=2).fit(*known))
    with pytest.raises(DtypeError, match=r"fit\(x, y\) first"):
        as_module(xgboost.XGBClassifier())
    with pytest.raises(DtypeError, match=r"fit\(x, y\) first"):
        as_module(xgboost.Booster())
