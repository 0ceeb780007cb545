"""Two clients of examples/fastapi_app.py: alice has digits to read, mallory sends noise to copy the model.

python examples/app_clients.py [127.0.0.1:8000]
"""

import http.client
import json
import sys

import torch

from queen.bench.datasets import digits


def ask(images: torch.Tensor, key: str) -> tuple[int, dict]:
    """Status and content of the application's answer to some images."""
    connection = http.client.HTTPConnection(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000", timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/predict", json.dumps({"images": images.squeeze(1).tolist()}), headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


x, _ = digits()
status, content = ask(x[1500:1510], "key-of-alice")
print(f"alice    {status} {content.get('digits', content)}")
status, answered = 200, -1
while status == 200 and answered < 100:
    answered += 1
    status, content = ask(torch.rand(1, 1, 8, 8), "key-of-mallory")
print(f"mallory  {status} after {answered} answers: {content.get('error')}")
