"""The same answers on a GPU; skipped where there is none (CI never has one)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from queen.cache import Cache
from queen.defenses import DEFENSES
from queen.errors import RefusedError
from queen.training import Schedule
from tests.support.defenses import F64, MAPS, MODULES, all_kinds, generator, small_victim
from tests.support.detectors import DETECTORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("classes", [2, 10, 30])
@pytest.mark.parametrize("name", MAPS)
def test_maps_give_the_same_on_cuda(name, classes, dtype):
    y = all_kinds(classes, dtype=dtype)[:-8]  # where classes tie, rounding decides
    got = MAPS[name](y.cuda())
    assert got.is_cuda
    same = (got.cpu() - MAPS[name](y)).abs().amax(1) <= (1e-6 if dtype == torch.float32 else 1e-9)
    # With two classes all candidates of MAD on one side of p turn the gradient alike: there, too, rounding decides.
    assert same.double().mean() >= (0.9 if (name, classes) == ("mad", 2) else 1)


@pytest.mark.parametrize("name", MODULES)
def test_endpoints_answer_on_cuda(name, tmp_path):
    victim = small_victim(cache=Cache(tmp_path), schedule=Schedule(epochs=1))
    x, y = (part.cuda() for part in victim.train)
    victim = replace(victim, model=victim.model.cuda(), train=(x, y))
    for _ in range(2):  # the second time from the cache
        endpoint = MODULES[name].DEFENSE.start(victim, generator())
        answers = endpoint.client("a")(x[:30])
        assert answers.is_cuda
        assert torch.equal(answers, endpoint.simulate(victim.clean(x[:30]), x[:30], generator())[0])


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_accuse_at_the_same_query_on_cuda(name):
    victim = small_victim()
    x, y = victim.train
    victim = replace(victim, train=(x[:600], y[:600]), calibration=(x[600:], y[600:]))
    variants = (x[:20].repeat(15, 1, 1, 1) + 0.1 * torch.rand(300, 1, 8, 8, generator=generator())).clamp(0, 1)

    def refused(place: str) -> list[bool]:
        train, calibration = ((a.to(place), b.to(place)) for a, b in (victim.train, victim.calibration))
        there = replace(victim, model=victim.model.to(place), train=train, calibration=calibration)
        endpoint = DEFENSES[name].start(there, generator(), alpha=0.05, clients=19, life=len(calibration[1]) // 2)
        try:
            assert endpoint.client("a")(variants.to(place)).device.type == place
        except RefusedError as refusal:
            return refusal.reply.refused.tolist()
        return [False] * len(variants)

    assert refused("cuda") == refused("cpu")
