"""The digits network behind LitServe, to compare with: `python benchmarks/serve/lit.py BUNDLE PORT`.

It takes the same requests as `queen serve` does and answers with the model's probabilities, batching as many requests
as wait, up to 64.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from torch import Tensor

import queen


class Digits(litserve.LitAPI):
    """The model inside a bundle, unprotected."""

    def setup(self, device: str) -> None:
        """Load it."""
        torch.set_num_threads(1)
        self._model = queen.load(sys.argv[1]).bundle.split.model

    def decode_request(self, request) -> Tensor:  # type: ignore[no-untyped-def]  # LitServe would check the annotation
        """Numbers of the only input."""
        [given] = request["inputs"]
        return torch.tensor(given["data"]).reshape(given["shape"])

    def batch(self, inputs: list[Tensor]) -> Tensor:
        """Requests together."""
        return torch.cat(inputs)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Tensor:
        """Probabilities (n, K)."""
        return self._model(x).softmax(1)

    def unbatch(self, output: Tensor) -> list[Tensor]:
        """Answers apart."""
        return list(output)

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        """As JSON numbers."""
        return {"outputs": [{"name": "probabilities", "shape": [1, len(output)], "data": output.tolist()}]}


if __name__ == "__main__":
    api = Digits(max_batch_size=64, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
