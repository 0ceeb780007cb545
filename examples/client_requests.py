"""Ask a served model in plain JSON: pip install requests.

After `make serve`: KEY=the-key-it-printed python examples/client_requests.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import requests


def main() -> None:
    """Post a request file and print the best class of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request", type=Path, nargs="?", default=Path("build/serve/digit.json"))
    parser.add_argument("--server", default="127.0.0.1:8000")
    parser.add_argument("--model", default="digits")
    options = parser.parse_args()

    answer = requests.post(
        f"http://{options.server}/v2/models/{options.model}/infer",
        json=json.loads(options.request.read_text()),
        headers={"Authorization": f"Bearer {os.environ['KEY']}"},
        timeout=30,
    )
    reply = answer.json()
    if not answer.ok:  # a wrong key, a mistake in the request, or a refusal
        sys.exit(f"no answer: {reply['error']}")
    output = reply["outputs"][0]
    rows, classes = output["shape"]
    for i in range(rows):
        row = output["data"][i * classes : (i + 1) * classes]
        print(f"class {row.index(max(row))} with probability {max(row):.4f}")


if __name__ == "__main__":
    main()
