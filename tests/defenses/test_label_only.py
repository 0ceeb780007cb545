from __future__ import annotations

import torch

from queen.defenses import label_only


def test_all_the_mass_is_on_the_first_top_class():
    y = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [1 / 3, 1 / 3, 1 / 3]])
    assert label_only.perturb(y).tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
