"""Goal 33 as a program; see README.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose scenarios this uses

from qa.rerun.recompute import control, run
from qa.serving.scenario import main

if __name__ == "__main__":
    main("33 recompute", run, control)
