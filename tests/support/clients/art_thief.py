"""ART's KnockoffNets through tritonclient: a thief that has images of its own and a key.

Reads one job a line (JSON) and answers each with a line: the stolen copy's accuracy, how much was asked, and refused.
"""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import torch
from art.attacks.extraction import KnockoffNets
from art.estimators.classification import BlackBoxClassifier, PyTorchClassifier
from torch import nn
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from tests.support.clients.shared import Array, bearer

SHAPE, CLASSES = (1, 8, 8), 10


class Oracle:
    """A served model as a function; a refused batch says nothing."""

    def __init__(self, client: InferenceServerClient, model: str, key: str) -> None:
        self._client, self._model, self._key = client, model, key
        self.asked = self.refused = 0

    def __call__(self, x: Array) -> Array:
        images = np.ascontiguousarray(x, np.float32)
        tensor = InferInput("input", list(images.shape), "FP32")
        tensor.set_data_from_numpy(images)
        self.asked += len(images)
        try:
            result = self._client.infer(self._model, [tensor], headers=bearer(self._key))
        except InferenceServerException as problem:
            if problem.status() != "429":
                raise
            self.refused += len(images)
            return np.full((len(images), CLASSES), 1 / CLASSES, np.float32)
        return result.as_numpy("probabilities")


def new_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def steal(oracle: Oracle, pool: Array, budget: int) -> PyTorchClassifier:
    """A copy made of the answers to `budget` images of the pool."""
    network = new_network()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    copy = PyTorchClassifier(network, nn.CrossEntropyLoss(), SHAPE, CLASSES, optimizer=optimizer, device_type="cpu")
    victim = BlackBoxClassifier(oracle, SHAPE, CLASSES, clip_values=(0.0, 1.0))
    attack = KnockoffNets(
        victim,
        batch_size_fit=32,
        batch_size_query=16,
        nb_epochs=15,
        nb_stolen=budget,
        use_probability=True,
        verbose=False,
    )
    return attack.extract(pool, None, thieved_classifier=copy)


def work(job: dict[str, object]) -> dict[str, object]:
    seed = int(job["seed"])
    torch.manual_seed(seed)  # ART draws from the global random states
    np.random.seed(seed)
    random.seed(seed)
    data = np.load(job["data"])
    with InferenceServerClient(f"127.0.0.1:{job['rest']}") as client:
        oracle = Oracle(client, "digits", str(job["key"]))
        copy = steal(oracle, data["pool"], int(job["budget"]))
    right = copy.predict(data["images"]).argmax(1) == data["labels"]
    return {"accuracy": float(right.mean()), "asked": oracle.asked, "refused": oracle.refused}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
