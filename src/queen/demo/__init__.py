"""`queen demo`: train, protect and attack a small digit classifier, then say plainly what happened.

`demo.yaml` is a benchmark spec that `queen.bench` runs; what is here measures benign clients and makes the page.
`serve` puts the demo's bundle behind the server. Only the command line and `tools/pages.py` import this.
"""

from queen.demo.run import Demo, run_demo

__all__ = ["Demo", "run_demo"]
