"""A small classifier on KServe's model server that gives features and logits: what a guard needs of an upstream.

    python examples/upstream/kserve_model.py --weights digits.npz --http_port 8080 --grpc_port 8081

The network is 64 -> 32 -> 10 in numpy. What matters is `predict`: it returns two outputs, what goes into the last layer
and what comes out of it. Nobody but the guard should be able to reach this server: who can asks it directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kserve
import numpy as np
from kserve.model_server import parser
from numpy.typing import NDArray


class Digits(kserve.Model):
    """Images (n, 1, 8, 8) in, features (n, 32) and logits (n, 10) out."""

    def __init__(self, name: str, weights: Path) -> None:
        super().__init__(name)
        self.weights = weights
        self.layers: dict[str, NDArray[np.float32]] = {}

    def load(self) -> bool:
        """Read the weights."""
        with np.load(self.weights) as file:
            self.layers = {layer: file[layer] for layer in file.files}
        self.ready = True
        return self.ready

    def run(self, x: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The network: features and logits."""
        w = self.layers
        features = np.maximum(x.reshape(len(x), -1).astype(np.float32) @ w["w1"].T + w["b1"], 0)
        return features, features @ w["w2"].T + w["b2"]

    def predict(
        self, payload: kserve.InferRequest, headers: Any = None, response_headers: Any = None
    ) -> kserve.InferResponse:
        """Answer one request with both outputs."""
        features, logits = self.run(payload.inputs[0].as_numpy())
        outputs = []
        for name, values in (("features", features), ("logits", logits)):
            output = kserve.InferOutput(name, list(values.shape), "FP32")
            output.set_data_from_numpy(values, binary_data=payload.from_grpc or payload.use_binary_outputs)
            outputs.append(output)
        return kserve.InferResponse(payload.id, self.name, outputs)

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs, for the model's metadata."""
        return [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, for the model's metadata."""
        return [
            {"name": "features", "datatype": "FP32", "shape": [-1, 32]},
            {"name": "logits", "datatype": "FP32", "shape": [-1, 10]},
        ]


def main(kind: type[Digits] = Digits) -> None:
    """Serve until SIGTERM."""
    parser.add_argument("--weights", type=Path, required=True, help=".npz with w1, b1, w2 and b2")
    options = parser.parse_args()
    model = kind("digits", options.weights)
    model.load()
    kserve.ModelServer(
        http_port=options.http_port, grpc_port=options.grpc_port, workers=1, grace_period=1, timeout_keep_alive=65
    ).start([model])


if __name__ == "__main__":
    main()
