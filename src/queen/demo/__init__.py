"""`queen demo`: train, protect and attack a small digit classifier, then say plainly what happened."""

from queen.demo.run import Demo, run_demo

__all__ = ["Demo", "run_demo"]
