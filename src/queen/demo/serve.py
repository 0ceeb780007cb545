"""`make serve`: the demo's bundle behind the server, with a key and lines to paste."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from queen.errors import QueenError
from queen.fit.files import read_query
from queen.guard import load
from queen.serve.access.key_store import open_keys
from queen.serve.run import Ports, serve
from queen.serve.service import Service
from queen.serve.settings import Settings, read_settings

BUNDLE, IMAGE, HOME = Path("build/demo/bundle"), Path("build/demo/digit.png"), Path("build/serve")


def main() -> None:
    """Make keys and a request, print how to use them, and serve."""
    try:
        settings = read_settings({"bundle": BUNDLE, "home": HOME, "name": "digits", "log_format": "text"})
        keys = open_keys(settings.home, settings.ledger_url)
        for old in {one.name for one in keys.keys().values() if one.active}:
            keys.revoke(old)  # those of earlier runs, which nobody can read any more
        key, _ = keys.add("demo")
        admin, _ = keys.add("demo-admin", admin=True)
        keys.close()
        write_request(HOME / "digit.json")
        serve(settings, on_start=lambda service, ports: print_usage(service, ports, key, admin))
    except QueenError as error:
        sys.exit(f"error: {error}")


def write_request(path: Path) -> None:
    """The demo's digit as a request of the protocol."""
    x = read_query(IMAGE, load(BUNDLE).bundle)
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.flatten().tolist()}
    path.write_text(json.dumps({"inputs": [tensor]}) + "\n")


def print_usage(service: Service, ports: Ports, key: str, admin: str) -> None:
    """Lines to paste: a request with curl and one from Python, and where the dashboard is."""
    settings: Settings = service.settings
    address = f"http://{settings.host}:{ports.rest}"
    sys.stdout.write(f"""
{service.spec.name} is served under policy {service.guard.policy.name}. In another terminal:

curl -s -H 'Authorization: Bearer {key}' {address}/v2/models/{service.spec.name}/infer -d @{HOME}/digit.json

or in Python (pip install 'tritonclient[http]' numpy):

import json, numpy, tritonclient.http as triton
image = numpy.array(json.load(open("{HOME}/digit.json"))["inputs"][0]["data"], "float32").reshape(1, 1, 28, 28)
client = triton.InferenceServerClient("{settings.host}:{ports.rest}")
tensor = triton.InferInput("input", image.shape, "FP32")
tensor.set_data_from_numpy(image)
answer = client.infer("{service.spec.name}", [tensor], headers={{"Authorization": "Bearer {key}"}})
print(answer.as_numpy("probabilities"))

dashboard  {address}/dashboard
its key    {admin}

Ctrl-C stops it.
""")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
