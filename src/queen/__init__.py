"""QUEEN: answers every client of a classifier so that nobody can steal the model through its answers."""

from queen.core.certify import certify
from queen.fit.calibrate import calibrate
from queen.fit.check import check
from queen.fit.protect import protect
from queen.guard import Guard, load
from queen.types import Verdict

__version__ = "0.1.0"
__all__ = ["Guard", "Verdict", "calibrate", "certify", "check", "load", "protect"]
