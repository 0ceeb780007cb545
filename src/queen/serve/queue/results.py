"""What becomes of the requests of a batch: each gets its rows or an error, and all are woken together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from queen.ledger import Judgement
from queen.refusal import explain
from queen.serve.queue.request_queue import PendingRequest
from queen.serve.refusal import refuse
from queen.serve.types import ServeError

NOT_RECORDED = "the ledger cannot record this request, so it gets no answer; try again"

Result = tuple[PendingRequest, NDArray[np.float32] | ServeError]


def split_results(
    requests: list[PendingRequest],
    answers: NDArray[np.float32],
    refused: NDArray[np.bool_],
    judgement: Judgement,
    *,
    openly: bool,
) -> list[Result]:
    """The batch's rows, split by request; one with a failed or refused row gets an error for all of its rows.

    Where it may be answered in part, or is itself a part, its refused rows are NaN. `openly`: accused clients may know
    that they are.
    """
    results: list[Result] = []
    broken: NDArray[np.bool_] = np.isnan(answers.sum(axis=1))
    masks = [mask.tolist() for mask in (judgement.failed, broken, refused)]
    start = 0
    for request in requests:
        rows = slice(start, start + request.query.rows)
        start = rows.stop
        is_failed, is_broken, is_refused = (True in mask[rows] for mask in masks)
        if is_failed:
            results.append((request, ServeError(503, NOT_RECORDED, retry_after=1)))
        elif is_broken:
            results.append((request, ServeError(500, "the model gave no number for an answer")))
        elif is_refused:
            why = explain(judgement, rows.start, masks[2][rows], openly=openly)
            if request.whole is not None:
                before = request.whole.refusal
                request.whole.refusal = why if before is None else before.followed_by(why)
            elif not request.query.partial:
                results.append((request, refuse(why, masks[2][rows])))
                continue
            results.append((request, np.where(refused[rows, None], np.float32(np.nan), answers[rows])))
        else:
            results.append((request, answers[rows]))
    return results


def fail(requests: list[PendingRequest], error: ServeError) -> None:
    """Wake requests with one error for all of them."""
    finish([(request, error) for request in requests])


def finish(results: Sequence[Result], then: Callable[[], None] = lambda: None) -> None:
    """Wake the requests with their answers or errors, all in one visit to their event loop."""
    for request, result in results:
        if request.whole is not None and isinstance(result, ServeError):
            request.whole.failed = True

    def wake() -> None:
        for request, result in results:
            if request.answer.done():  # the client went away
                continue
            if isinstance(result, ServeError):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)
        then()

    if results:
        try:
            results[0][0].loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is gone, and with it everybody who waited
            return
