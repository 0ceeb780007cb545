"""Attacks against defenses, measured: a spec in YAML names the cells, every cell becomes one result file.

`spec` and `protectee` say what is attacked, `run` and `trials/` attack it, `plan` says what that will take, `evaluate`
does so for a user's own model; `datasets/` loads images, `render/` makes tables and pages, `speed/` compares times,
`studies/` are the paper's other experiments. Commands, the demo and `tools/` import this package, the server never.
"""

from queen.bench.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
