"""tritonclient.grpc."""

from __future__ import annotations

import queue
from functools import partial
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.support.clients.shared import Array, Job, Report, bearer, read_job


def tensor(images: Array) -> list[InferInput]:
    made = InferInput("input", list(images.shape), "FP32")
    made.set_data_from_numpy(images)
    return [made]


def main() -> None:
    job, report = read_job(), Report()
    with InferenceServerClient(f"127.0.0.1:{job.grpc}") as client:
        report.facts = facts(client, job)
        ask = partial(client.infer, job.model, headers=job.bearer, client_timeout=30)
        answers(client, ask, job, report)
        mistakes(client, ask, job, report)
        headers, parameters = bearer(job.poor), {"partial": True}
        result = client.infer(job.model, tensor(job.images), headers=headers, parameters=parameters)
        report.part("binary", result.as_numpy("probabilities"), result.as_numpy("refused"))
    report.print()


def facts(client: InferenceServerClient, job: Job) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(job.model),
        "version_ready": client.is_model_ready(job.model, "1"),
        "server": client.get_server_metadata(as_json=True),
        "model": client.get_model_metadata(job.model, headers=job.bearer, as_json=True),
    }


def answers(client: InferenceServerClient, ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for form, result in {
        "binary": ask(tensor(x)),
        "asked for": ask(tensor(x), outputs=[InferRequestedOutput("probabilities")]),
        "by version": ask(tensor(x), model_version="1"),
        "with an id": ask(tensor(x), request_id="seven", priority=1, timeout=10**6, parameters={"colour": "blue"}),
    }.items():
        report.answer(form, result.as_numpy("probabilities"))
        report.facts[f"id {form}"] = result.get_response().id
    report.answer(
        "row by row", np.concatenate([ask(tensor(x[i : i + 1])).as_numpy("probabilities") for i in range(len(x))])
    )
    report.answer("with a callback", _called_back(client, job))
    best = [InferRequestedOutput("probabilities", class_count=3)]
    report.best("binary", ask(tensor(x), outputs=best).as_numpy("probabilities"))


def _called_back(client: InferenceServerClient, job: Job) -> Array:
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def note(result: Any, error: Any) -> None:
        results.put((result, error))

    client.async_infer(job.model, tensor(job.images), note, headers=job.bearer)
    result, error = results.get(timeout=30)
    if error is not None:
        raise error
    return result.as_numpy("probabilities")


def mistakes(client: InferenceServerClient, ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for of, call in {
        "no key": lambda: client.infer(job.model, tensor(x)),
        "bad key": lambda: client.infer(job.model, tensor(x), headers=job.bad_bearer),
        "metadata without key": lambda: client.get_model_metadata(job.model),
        "other model": lambda: client.infer("other", tensor(x), headers=job.bearer),
        "wrong shape": lambda: ask(tensor(x[:, :, :4])),
        "not finite": lambda: ask(tensor(np.full_like(x, np.nan))),
        "compressed": lambda: ask(tensor(x), compression_algorithm="gzip"),
        "load a model": lambda: client.load_model("other"),
        "refused": lambda: client.infer(job.model, tensor(job.noise), headers=bearer(job.thief)),
    }.items():
        report.attempt(of, call, InferenceServerException)
    report.answer("after all mistakes", ask(tensor(x)).as_numpy("probabilities"))


if __name__ == "__main__":
    main()
