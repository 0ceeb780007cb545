"""KServe's model server with the digits network, which does what a file beside its weights says: `python -m ...`.

The weights are read again whenever their file changes, as servers do that poll a repository.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import kserve
import numpy as np

from examples.upstream.kserve_model import Digits, main


class Moody(Digits):
    """The example's model, and ways to fail: the first word of `mode` beside the weights is the way."""

    changed = 0.0

    def predict(self, payload: kserve.InferRequest, headers: Any = None, response_headers: Any = None) -> Any:
        now = os.stat(self.weights).st_mtime_ns
        if now != self.changed:
            self.changed = now
            self.load()
        response = super().predict(payload, headers, response_headers)
        mode, _, argument = Path(self.weights).with_name("mode").read_text().partition(" ")
        by_name = {output.name: output for output in response.outputs}
        if mode == "slow":
            time.sleep(float(argument))
        elif mode == "error":
            raise ValueError("a secret of the upstream: /srv/model.onnx on 10.1.2.3")
        elif mode in ("nan", "poison"):
            logits = by_name["logits"].as_numpy().copy()
            logits[np.isfinite(_first(payload)) if mode == "nan" else _first(payload) == float(argument)] = np.nan
            by_name["logits"].set_data_from_numpy(logits, binary_data=True)
        elif mode == "fewer":
            for output in response.outputs:
                values = output.as_numpy()[:-1]
                output._shape = list(values.shape)
                output.set_data_from_numpy(values, binary_data=payload.from_grpc)
        elif mode == "narrow":
            output = by_name["features"]
            values = output.as_numpy()[:, :-1].copy()
            output._shape = list(values.shape)
            output.set_data_from_numpy(values, binary_data=payload.from_grpc)
        elif mode == "names":
            response.outputs = [by_name["logits"]]
        elif mode == "shape":
            by_name["features"]._shape = [1, 2, 3]
        elif mode == "shuffled":
            values = by_name["features"].as_numpy()[:, ::-1].copy()
            by_name["features"].set_data_from_numpy(values, binary_data=payload.from_grpc)
        elif mode == "unready" or (mode == "refuse" and (_first(payload) == float(argument)).any()):
            raise kserve.errors.ModelNotReady(self.name)
        return response


def _first(payload: kserve.InferRequest) -> Any:
    """The first number of every row."""
    x = payload.inputs[0].as_numpy()
    return x.reshape(len(x), -1)[:, 0]


if __name__ == "__main__":
    main(Moody)
