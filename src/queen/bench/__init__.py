"""Attacks against defenses, measured: a spec in YAML names the cells, every cell becomes one result file.

`spec` and `protectee` say what is attacked, `run`, `cell` and `trial` attack it, `evaluate` does so for a user's own
model; `datasets/` loads images, `render/` makes tables and pages, `studies/` are the paper's other experiments.
Commands, the demo and `tools/` import this package; the server never does.
"""

from queen.bench.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
