"""Ask a served model over gRPC with KServe's client: pip install kserve.

After `make serve`: KEY=the-key-it-printed python examples/client_kserve.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest


async def main() -> None:
    """Send the rows of a request file as raw bytes and print the best class of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request", type=Path, nargs="?", default=Path("build/serve/digit.json"))
    parser.add_argument("--server", default="127.0.0.1:8001")
    parser.add_argument("--model", default="digits")
    options = parser.parse_args()

    given = json.loads(options.request.read_text())["inputs"][0]
    images = np.array(given["data"], np.float32).reshape(given["shape"])
    tensor = InferInput("input", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    async with InferenceGRPCClient(options.server) as client:
        try:
            metadata = (("authorization", f"Bearer {os.environ['KEY']}"),)
            result = await client.infer(InferRequest(options.model, [tensor]), headers=metadata)
        except grpc.aio.AioRpcError as error:  # a wrong key, a mistake in the request, or a refusal
            sys.exit(f"no answer: {error.details()}")
    for row in result.get_output_by_name("probabilities").as_numpy():
        print(f"class {row.argmax()} with probability {row.max():.4f}")


if __name__ == "__main__":
    asyncio.run(main())
