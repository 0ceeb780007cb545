"""Goal 23 as a program; see README.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose tests and scenarios this uses

from qa.serving.going_back import control, run
from qa.serving.scenario import main

if __name__ == "__main__":
    main("23 going back in time", run, control)
