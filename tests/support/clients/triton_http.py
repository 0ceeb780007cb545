"""tritonclient.http: blocking, over REST."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.support.clients.shared import Array, Job, Report, bearer, read_job


def tensor(images: Array, *, binary: bool = True) -> list[InferInput]:
    made = InferInput("input", list(images.shape), "FP32")
    made.set_data_from_numpy(images, binary_data=binary)
    return [made]


def wanted(*, binary: bool, best: int = 0) -> list[InferRequestedOutput]:
    return [InferRequestedOutput("probabilities", binary_data=binary, class_count=best)]


def main() -> None:
    job, report = read_job(), Report()
    with InferenceServerClient(f"127.0.0.1:{job.rest}", concurrency=4) as client:
        report.facts = facts(client, job)

        def ask(tensors: list[InferInput], **options: Any) -> Any:
            return client.infer(job.model, tensors, headers=job.bearer, **options)  # which writes into the headers

        answers(client, ask, job, report)
        mistakes(client, ask, job, report)
        for form, binary in (("binary", True), ("json", False)):
            options = {"outputs": wanted(binary=binary), "parameters": {"partial": True}}
            result = client.infer(job.model, tensor(job.images), headers=bearer(job.poor), **options)
            report.part(form, result.as_numpy("probabilities"), result.as_numpy("refused"))
    report.print()


def facts(client: InferenceServerClient, job: Job) -> dict[str, Any]:
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(job.model),
        "version_ready": client.is_model_ready(job.model, "1"),
        "other_ready": client.is_model_ready("other"),
        "server": client.get_server_metadata(),
        "model": client.get_model_metadata(job.model, headers=job.bearer),
    }


def answers(client: InferenceServerClient, ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for form, result in {
        "binary": ask(tensor(x)),
        "json": ask(tensor(x, binary=False), outputs=wanted(binary=False)),
        "binary in, json out": ask(tensor(x), outputs=wanted(binary=False)),
        "json in, binary out": ask(tensor(x, binary=False), outputs=wanted(binary=True)),
        "gzip": ask(tensor(x), request_compression_algorithm="gzip", response_compression_algorithm="gzip"),
        "deflate": ask(tensor(x, binary=False), request_compression_algorithm="deflate"),
        "by version": ask(tensor(x), model_version="1"),
        "with an id": ask(tensor(x), request_id="seven", priority=1, timeout=10**6, parameters={"colour": "blue"}),
    }.items():
        report.answer(form, result.as_numpy("probabilities"))
        report.facts[f"id {form}"] = result.get_response().get("id")
    report.answer(
        "row by row", np.concatenate([ask(tensor(x[i : i + 1])).as_numpy("probabilities") for i in range(len(x))])
    )
    pending = [client.async_infer(job.model, tensor(x[i : i + 1]), headers=job.bearer) for i in range(len(x))]
    report.answer("at once", np.concatenate([one.get_result().as_numpy("probabilities") for one in pending]))
    for form, binary in (("binary", True), ("json", False)):
        report.best(form, ask(tensor(x), outputs=wanted(binary=binary, best=3)).as_numpy("probabilities"))


def mistakes(client: InferenceServerClient, ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for of, call in {
        "no key": lambda: client.infer(job.model, tensor(x)),
        "bad key": lambda: client.infer(job.model, tensor(x), headers=job.bad_bearer),
        "metadata without key": lambda: client.get_model_metadata(job.model),
        "other model": lambda: client.infer("other", tensor(x), headers=job.bearer),
        "wrong shape": lambda: ask(tensor(x[:, :, :4])),
        "not finite": lambda: ask(tensor(np.full_like(x, np.nan))),
        "refused": lambda: client.infer(job.model, tensor(job.noise), headers=bearer(job.thief)),
    }.items():
        report.attempt(of, call, InferenceServerException)


if __name__ == "__main__":
    main()
