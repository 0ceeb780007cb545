"""A KServe Transformer whose predictor is a guard: raw images come in, the guard's probabilities go out.

    KEY=... python examples/kserve_transformer.py --guard http://127.0.0.1:8000 --guard_model digits --http_port 8090

In an InferenceService this is the transformer's container and the guard its predictor; the model server behind the
guard is a service of its own that only the guard may reach. The transformer prepares inputs (here: pixels from 0 to 16
become numbers from 0 to 1) and hands on answers and errors as the guard gives them. Clients send their own keys, which
it passes on; whoever sends none asks with KEY, and all of those are one client of the guard.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import kserve
import numpy as np
from fastapi import HTTPException
from kserve.model_server import parser


class DigitsTransformer(kserve.Model):
    """Scales pixels and asks the guard for the client that asks it."""

    def __init__(self, name: str, guard: str, guard_model: str, key: str | None) -> None:
        super().__init__(name)
        self.url, self.key = f"{guard}/v2/models/{guard_model}/infer", key
        self.client = httpx.AsyncClient(timeout=10)
        self.ready = True

    async def preprocess(self, payload: kserve.InferRequest, headers: dict[str, str] | None = None) -> Any:
        """Pixels from 0 to 16 as numbers from 0 to 1."""
        pixels = payload.inputs[0].as_numpy().astype(np.float32) / 16
        data = {"name": "input", "datatype": "FP32", "shape": list(pixels.shape), "data": pixels.ravel().tolist()}
        return {"id": payload.id, "inputs": [data]}

    async def predict(self, payload: Any, headers: dict[str, str] | None = None, response_headers: Any = None) -> Any:
        """Ask the guard; what it refuses is refused here with the same status."""
        authorization = (headers or {}).get("authorization") or (f"Bearer {self.key}" if self.key else "")
        try:
            reply = await self.client.post(self.url, json=payload, headers={"Authorization": authorization})
        except httpx.HTTPError as error:
            raise HTTPException(503, "the guard cannot be asked; try again", {"Retry-After": "1"}) from error
        if reply.status_code != 200:
            waits = {"Retry-After": reply.headers["retry-after"]} if "retry-after" in reply.headers else None
            raise HTTPException(reply.status_code, reply.json()["error"], waits)
        return reply.json()

    async def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> kserve.InferResponse:
        """The guard's answer under this model's name."""
        outputs = [
            kserve.InferOutput(one["name"], one["shape"], one["datatype"], one["data"]) for one in result["outputs"]
        ]
        return kserve.InferResponse(result.get("id", ""), self.name, outputs)


if __name__ == "__main__":
    parser.add_argument("--guard", default="http://127.0.0.1:8000")
    parser.add_argument("--guard_model", default="digits")
    options = parser.parse_args()
    model = DigitsTransformer("digits-raw", options.guard, options.guard_model, os.environ.get("KEY"))
    server = kserve.ModelServer(http_port=options.http_port, enable_grpc=False, workers=1)
    server.start([model])
