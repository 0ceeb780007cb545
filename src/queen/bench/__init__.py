"""Attacks against defenses, measured: one spec, one result a cell, tables and plots from results alone."""

from queen.bench.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
