"""Training a network on hard or soft labels, and saying when a run is worthless.

`schedule` says how long and how fast, `train` does it, `augment` shifts and mirrors images, `outputs` reads what a
network says; `repeated_step` is why a GPU is busy: it records a step once and replays it.
"""

from __future__ import annotations

from queen.training.augment import augmented
from queen.training.outputs import collapsed, predict, probabilities
from queen.training.schedule import Schedule
from queen.training.train import ExtraLoss, one_thread, train

__all__ = ["ExtraLoss", "Schedule", "augmented", "collapsed", "one_thread", "predict", "probabilities", "train"]
