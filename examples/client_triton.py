"""Ask a served model with Triton's client: pip install 'tritonclient[http]' numpy.

After `make serve`: KEY=the-key-it-printed python examples/client_triton.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException


def main() -> None:
    """Send the rows of a request file as raw bytes and print the best class of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request", type=Path, nargs="?", default=Path("build/serve/digit.json"))
    parser.add_argument("--server", default="127.0.0.1:8000")
    parser.add_argument("--model", default="digits")
    options = parser.parse_args()

    given = json.loads(options.request.read_text())["inputs"][0]
    images = np.array(given["data"], np.float32).reshape(given["shape"])
    tensor = InferInput("input", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    with InferenceServerClient(options.server) as client:
        try:
            headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
            result = client.infer(options.model, [tensor], headers=headers)
        except InferenceServerException as error:  # a wrong key, a mistake in the request, or a refusal
            sys.exit(f"no answer: {error}")
    for row in result.as_numpy("probabilities"):
        print(f"class {row.argmax()} with probability {row.max():.4f}")


if __name__ == "__main__":
    main()
