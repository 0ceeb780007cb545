"""The digits network for MLServer, with features and logits as outputs: what a guard needs of an upstream."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Digits(MLModel):
    """Images (n, 1, 8, 8) in, features (n, 32) and logits (n, 10) out; weights are those of `weights.npz`."""

    async def load(self) -> bool:
        """Read the weights."""
        with np.load(self.settings.parameters.uri) as file:
            self.layers = {layer: file[layer] for layer in file.files}
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request with both outputs."""
        x, w = NumpyCodec.decode_input(payload.inputs[0]), self.layers
        features = np.maximum(x.reshape(len(x), -1).astype(np.float32) @ w["w1"].T + w["b1"], 0)
        logits = features @ w["w2"].T + w["b2"]
        outputs = [NumpyCodec.encode_output(name, y) for name, y in (("features", features), ("logits", logits))]
        return InferenceResponse(id=payload.id, model_name=self.name, model_version=self.version, outputs=outputs)
