from __future__ import annotations

import torch

from queen.defenses import none
from tests.support.defenses import generator, small_victim


def test_no_defense_answers_what_the_model_says():
    victim = small_victim()
    x = victim.train[0][:20]
    with torch.no_grad():
        expected = victim.model(x).softmax(1)
    assert torch.allclose(none.DEFENSE.start(victim, generator()).client("a")(x), expected, atol=1e-6)
