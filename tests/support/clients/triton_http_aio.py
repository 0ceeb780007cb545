"""tritonclient.http.aio: on an event loop, over REST."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from tritonclient.http.aio import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from tests.support.clients.shared import Job, Report, bearer, read_job
from tests.support.clients.triton_http import tensor, wanted


async def main() -> None:
    job, report = read_job(), Report()
    async with InferenceServerClient(f"127.0.0.1:{job.rest}") as client:
        report.facts = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready(job.model),
            "version_ready": await client.is_model_ready(job.model, "1"),
            "other_ready": await client.is_model_ready("other"),
            "server": await client.get_server_metadata(),
            "model": await client.get_model_metadata(job.model, headers=job.bearer),
        }

        async def ask(tensors: list[InferInput], **options: Any) -> Any:
            return await client.infer(
                job.model, tensors, headers=job.bearer, **options
            )  # which writes into the headers

        await answers(ask, job, report)
        await mistakes(client, ask, job, report)
    report.print()


async def answers(ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for form, call in {
        "binary": ask(tensor(x)),
        "json": ask(tensor(x, binary=False), outputs=wanted(binary=False)),
        "gzip": ask(tensor(x), request_compression_algorithm="gzip", response_compression_algorithm="gzip"),
        "deflate": ask(tensor(x, binary=False), request_compression_algorithm="deflate"),
        "by version": ask(tensor(x), model_version="1"),
    }.items():
        report.answer(form, (await call).as_numpy("probabilities"))
    rows = await asyncio.gather(*(ask(tensor(x[i : i + 1])) for i in range(len(x))))
    report.answer("at once", np.concatenate([row.as_numpy("probabilities") for row in rows]))
    for form, binary in (("binary", True), ("json", False)):
        result = await ask(tensor(x), outputs=wanted(binary=binary, best=3))
        report.best(form, result.as_numpy("probabilities"))


async def mistakes(client: InferenceServerClient, ask: Any, job: Job, report: Report) -> None:
    x = job.images
    for of, call in {
        "no key": client.infer(job.model, tensor(x)),
        "bad key": client.infer(job.model, tensor(x), headers=job.bad_bearer),
        "metadata without key": client.get_model_metadata(job.model),
        "other model": client.infer("other", tensor(x), headers=job.bearer),
        "wrong shape": ask(tensor(x[:, :, :4])),
        "not finite": ask(tensor(np.full_like(x, np.nan))),
        "refused": client.infer(job.model, tensor(job.noise), headers=bearer(job.thief)),
    }.items():
        try:
            await call
        except InferenceServerException as problem:
            report.error(of, problem, problem.status())


if __name__ == "__main__":
    asyncio.run(main())
