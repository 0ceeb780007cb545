"""Train a digit classifier and put a bundle around it: python examples/protect_digits.py [FOLDER]"""

import sys

import torch

import queen
from queen.bench.datasets import digits
from queen.training import Schedule, train
from queen.zoo import build

x, y = digits()  # scikit-learn's: 1,797 images (1, 8, 8) from 0 to 1
generator = torch.Generator().manual_seed(0)
model = train(build("small_cnn", classes=10), x[:1200], y[:1200], Schedule(epochs=30), generator)

guard = queen.protect(model, (x[:1200], y[:1200]), calibration=x[1200:])  # images that did not train the model
guard.save(sys.argv[1] if len(sys.argv) > 1 else "digits")
