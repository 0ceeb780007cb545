"""Goal 25 as a program; see README.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose tests and scenarios this uses

from qa.serving.scenario import main
from qa.serving.update import control, run

if __name__ == "__main__":
    main("25 model update", run, control)
