"""Goal 31 as a program; see README.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose tests and scenarios this uses

from qa.serving.budgets import control, run
from qa.serving.scenario import main

if __name__ == "__main__":
    main("31 budgets", run, control)
