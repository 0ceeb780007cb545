"""KServe's InferenceGRPCClient."""

from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

from tests.support.clients.shared import Array, Job, Report, bearer, read_job


def request(job: Job, images: Array, *, raw: bool = True, **options: object) -> InferRequest:
    """With raw bytes, or with numbers in the message's typed fields."""
    if not raw:
        return InferRequest(
            job.model, [InferInput("input", list(images.shape), "FP32", images.ravel().tolist())], **options
        )
    tensor = InferInput("input", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images, binary_data=True)
    return InferRequest(job.model, [tensor], **options)


async def main() -> None:
    logging.disable()  # the client logs each error that it raises
    job, report = read_job(), Report()
    metadata = tuple(job.bearer.items())
    async with InferenceGRPCClient(f"127.0.0.1:{job.grpc}", timeout=30) as client:
        report.facts = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready(job.model),
        }
        x = job.images
        for form, asked in {
            "binary": request(job, x),
            "typed": request(job, x, raw=False),
            "with an id": request(job, x, request_id="seven"),
        }.items():
            result = await client.infer(asked, headers=metadata)
            report.answer(form, result.get_output_by_name("probabilities").as_numpy())
            report.facts[f"id {form}"] = result.id
        await mistakes(client, metadata, job, report)
        asked = request(job, x, parameters={"partial": True})
        result = await client.infer(asked, headers=tuple(bearer(job.poor).items()))
        report.part("binary", *(result.get_output_by_name(name).as_numpy() for name in ("probabilities", "refused")))
    report.print()


async def mistakes(
    client: InferenceGRPCClient, metadata: tuple[tuple[str, str], ...], job: Job, report: Report
) -> None:
    x = job.images
    for of, call in {
        "no key": client.infer(request(job, x)),
        "bad key": client.infer(request(job, x), headers=tuple(job.bad_bearer.items())),
        "other model": client.is_model_ready("other"),
        "wrong shape": client.infer(request(job, x[:, :, :4]), headers=metadata),
        "not finite": client.infer(request(job, np.full_like(x, np.nan)), headers=metadata),
        "refused": client.infer(request(job, job.noise), headers=tuple(bearer(job.thief).items())),
    }.items():
        try:
            await call
        except grpc.RpcError as problem:
            report.error(of, problem, problem.code())


if __name__ == "__main__":
    asyncio.run(main())
