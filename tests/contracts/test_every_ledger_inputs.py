"""What every ledger must refuse: rows, limits, owners and clients that are not what they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from queen.errors import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LabelError,
    LimitsError,
    NotFiniteError,
    QueenError,
    ShapeError,
)
from queen.ledger.rows import make_rows
from queen.options import Limits
from tests.support.ledgers import BAD_CLIENTS, LEDGERS, records_and_coverage

every_ledger = pytest.mark.parametrize("make", LEDGERS.values(), ids=LEDGERS)


GOOD = np.array([[0.5, 0.5], [-0.5, 0.5]])
BAD_ROWS = {
    "labels of two dimensions": ([[0], [0]], GOOD, ShapeError),
    "points of three numbers": ([0, 0], np.zeros((2, 3)), ShapeError),
    "points of one dimension": ([0, 0], np.zeros(2), ShapeError),
    "more points than labels": ([0], GOOD, ShapeError),
    "labels that are no array": (0, GOOD, ShapeError),
    "no rows": (np.empty(0, int), np.empty((0, 2)), EmptyBatchError),
    "float labels": ([0.0, 1.0], GOOD, DtypeError),
    "bool labels": ([True, False], GOOD, DtypeError),
    "text labels": (["0", "1"], GOOD, DtypeError),
    "integer points": ([0, 0], np.zeros((2, 2), int), DtypeError),
    "complex points": ([0, 0], GOOD.astype(complex), DtypeError),
    "points that are objects": ([0, 0], GOOD.astype(object), DtypeError),
    "NaN": ([0, 0], np.array([[0.1, 0.1], [0.2, np.nan]]), NotFiniteError),
    "infinity": ([0, 0], np.array([[0.1, 0.1], [-np.inf, 0.2]]), NotFiniteError),
    "a negative label": ([0, -1], GOOD, LabelError),
    "a label beyond 32 bits": ([0, 2**31], GOOD, LabelError),
    "a label beyond 64 bits": (np.array([0, 2**64 - 1], np.uint64), GOOD, LabelError),
}


@every_ledger
@pytest.mark.parametrize(("labels", "points", "error"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused_and_change_nothing(make, labels, points, error):
    ledger = make()
    ledger.judge("a", [0], np.array([[0.0, 0.0]]), Limits())
    before = records_and_coverage(ledger, "a")
    with pytest.raises(error):
        ledger.judge("a", labels, points, Limits())
    with pytest.raises(error):
        ledger.judge("b", labels, points, Limits())
    assert records_and_coverage(ledger, "a") == before
    assert list(ledger.clients()) == ["a"]


@every_ledger
@pytest.mark.parametrize(
    ("limits", "error"),
    [(Limits(radius=(0.1, 0.1)), LabelError), (0.02, LimitsError), (None, LimitsError)],
    ids=["too few radii", "a number", "None"],
)
def test_bad_limits_are_refused_and_change_nothing(make, limits, error):
    ledger = make()
    with pytest.raises(error):
        ledger.judge("a", [0, 2], GOOD, limits)
    assert list(ledger.clients()) == []


@every_ledger
@pytest.mark.parametrize("client", BAD_CLIENTS, ids=lambda c: ascii(c)[:12])
def test_bad_clients_are_refused_and_change_nothing(make, client):
    ledger = make()
    with pytest.raises(ClientError):
        ledger.judge(client, [0, 0], GOOD, Limits())
    with pytest.raises(ClientError):
        ledger.judge_rows(make_rows(("good", client), [0, 0], [0, 0], GOOD, Limits()))
    with pytest.raises(ClientError):
        ledger.coverage(client)
    with pytest.raises(ClientError):
        ledger.records(client)
    assert list(ledger.clients()) == []


@every_ledger
@pytest.mark.parametrize(
    ("clients", "owner"),
    [(("a", "b"), [0, 2]), (("a", "b"), [-1, 0]), (("a", "b"), [0]), (("a", "b"), [0, 0, 0]), (("a", "b"), [[0, 1]]),
     (("a", "b"), [0.0, 1.5]), ((), None)],
    ids=["too high", "negative", "too few", "too many", "two dimensions", "not integer", "no client at all"],
)  # fmt: skip
def test_rows_without_a_proper_owner_are_refused(make, clients, owner):
    ledger = make()
    with pytest.raises(QueenError):
        ledger.judge_rows(make_rows(clients, owner, [0, 0], GOOD, Limits()))
    assert list(ledger.clients()) == []


@every_ledger
@pytest.mark.parametrize(
    ("labels", "points", "error"),
    [
        ([], [], EmptyBatchError),
        ([0, 0], [[0.1, 0.1], [0.2]], DtypeError),
        ([0], torch.tensor([[0.1, 0.1]], requires_grad=True), DtypeError),
        ([0], torch.tensor([[0.1, 0.1]], dtype=torch.bfloat16), DtypeError),
    ],
    ids=["nothing", "ragged", "with a gradient", "bfloat16"],
)
def test_what_is_no_array_of_points_is_refused(make, labels, points, error):
    ledger = make()
    with pytest.raises(error):
        ledger.judge("a", labels, points, Limits())
    ledger.close()
