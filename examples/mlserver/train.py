"""Train the digits network (64 -> 32 -> 10) and write weights.npz, train.npz and held_out.npz: train.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

folder = Path(sys.argv[1])
data = load_digits()
x = torch.tensor(data.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)
y = torch.tensor(data.target)
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimiser = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(200):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x[:600]), y[:600]).backward()
    optimiser.step()
layers = {"w1": model[1].weight, "b1": model[1].bias, "w2": model[3].weight, "b2": model[3].bias}
np.savez(folder / "weights.npz", **{name: tensor.detach().numpy() for name, tensor in layers.items()})
np.savez(folder / "train.npz", x=x[:600].numpy(), y=y[:600].numpy())
np.savez(folder / "held_out.npz", x=x[600:1500].numpy())
