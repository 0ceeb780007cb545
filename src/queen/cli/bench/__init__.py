"""Commands of the benchmark: `runs` computes results, `results` prints, draws, browses and checks them."""

# `queen bench --help` lists the commands in the order in which they are defined.
# isort: off
from queen.cli.bench import runs  # noqa: F401
from queen.cli.bench import results  # noqa: F401
