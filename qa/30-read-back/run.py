"""Goal 30 as a program; see README.md."""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository, whose scenarios this uses

from qa.sentinel.read_back import ATTACKERS, Options, control, run
from qa.serving.scenario import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--victim", default="demo")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--attackers", nargs="+", choices=ATTACKERS, default=tuple(ATTACKERS))
    own, others = parser.parse_known_args()
    options = Options(**vars(own))
    main("30 read back", partial(run, options=options), partial(control, options=options), others)
