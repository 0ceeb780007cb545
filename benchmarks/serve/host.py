"""A server of one checkout, for `against.py`: `python host.py CHECKOUT FOLDER MODEL SERVER`, with PYTHONPATH set to it.

Prints one line of JSON that says how to ask the server, and stops it when its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

checkout, folder, model, server = sys.argv[1:]
sys.path.insert(0, str(Path(checkout, "benchmarks", "serve")))

import run  # noqa: E402  (that of the checkout)

with contextlib.ExitStack() as stack:
    what = run.COMPARISONS[model]
    served = what.make(Path(folder), what.questions)
    started = stack.enter_context(run.start(server, served, Path(folder), what, stack))
    started.wait()
    facts = {"url": started.url, "keys": str(started.keys), "questions": str(served.questions)}
    print(json.dumps(facts | {"headers": served.headers, "body_size": served.body_size}), flush=True)
    sys.stdin.read()
