"""KServe's InferenceRESTClient, protocol v2."""

from __future__ import annotations

import asyncio

import numpy as np
from httpx import HTTPStatusError
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from tests.support.clients.shared import Array, Job, Report, bearer, read_job


def request(job: Job, images: Array, *, binary: bool, **options: object) -> InferRequest:
    tensor = InferInput("input", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images, binary_data=binary)
    return InferRequest(job.model, [tensor], **options)


async def main() -> None:
    job, report = read_job(), Report()
    address = f"http://127.0.0.1:{job.rest}"
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    report.facts = {
        "live": await client.is_server_live(address),
        "ready": await client.is_server_ready(address),
        "model_ready": await client.is_model_ready(address, job.model),
        "other_ready": await client.is_model_ready(address, "other"),
    }
    await answers(client, address, job, report)
    await mistakes(client, address, job, report)
    for form, binary in (("binary", True), ("json", False)):
        parameters = {"partial": True, "binary_data_output": binary}
        asked = request(job, job.images, binary=binary, parameters=parameters)
        result = await client.infer(address, asked, job.model, headers=bearer(job.poor))
        report.part(form, *(result.get_output_by_name(name).as_numpy() for name in ("probabilities", "refused")))
    await client.close()
    report.print()


async def answers(client: InferenceRESTClient, address: str, job: Job, report: Report) -> None:
    x = job.images
    for form, asked in {
        "binary": request(job, x, binary=True, parameters={"binary_data_output": True}),
        "json": request(job, x, binary=False),
        "binary in, json out": request(job, x, binary=True),
        "json in, binary out": request(
            job, x, binary=False, request_outputs=[RequestedOutput("probabilities", {"binary_data": True})]
        ),
        "with an id": request(job, x, binary=False, request_id="seven"),
    }.items():
        result = await client.infer(address, asked, job.model, headers=dict(job.bearer))
        report.answer(form, result.get_output_by_name("probabilities").as_numpy())
        report.facts[f"id {form}"] = result.id


async def mistakes(client: InferenceRESTClient, address: str, job: Job, report: Report) -> None:
    x = job.images
    asked = request(job, x, binary=True)
    for of, call in {
        "no key": client.infer(address, asked, job.model),
        "bad key": client.infer(address, asked, job.model, headers=job.bad_bearer),
        "other model": client.infer(address, asked, "other", headers=dict(job.bearer)),
        "wrong shape": client.infer(
            address, request(job, x[:, :, :4], binary=True), job.model, headers=dict(job.bearer)
        ),
        "not finite": client.infer(
            address, request(job, np.full_like(x, np.nan), binary=True), job.model, headers=dict(job.bearer)
        ),
        "refused": client.infer(address, request(job, job.noise, binary=True), job.model, headers=bearer(job.thief)),
    }.items():
        try:
            await call
        except HTTPStatusError as problem:
            report.error(of, problem, problem.response.status_code)


if __name__ == "__main__":
    asyncio.run(main())
