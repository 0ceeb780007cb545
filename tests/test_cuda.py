"""The same on a GPU; skipped where there is none (CI never has one)."""

import pytest
import torch

import queen
from queen.core.mapping import MapRecipe
from queen.fit.shadows import ShadowRecipe
from queen.options import Limits
from queen.recipe import Recipe
from queen.sentinel.rounding import round_answers
from queen.zoo import build, seeded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def make_guard(device: str, kind: str = "head") -> queen.Guard:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    x = torch.randn(200, 3, 32, 32, generator=generator) + 2 * torch.randn(4, 3, 32, 32, generator=generator)[y]
    with seeded(torch.Generator().manual_seed(0)):
        model = build("vgg11_bn", classes=4, channels=3).eval().to(device)
    recipe = Recipe("queen.zoo:build", {"name": "small_cnn", "classes": 4, "channels": 3})
    return queen.protect(
        model,
        (x, y),
        calibration=(x, y),
        limits=Limits(radius=0.2),
        mapping=MapRecipe(epochs=20),
        shadows=ShadowRecipe(kind=kind, count=4, draw=2, networks=[recipe]),
        min_agreement=0,
        secret=bytes(32),
        progress=False,
    )


@pytest.mark.parametrize("kind", ["head", "network"])
def test_a_guard_fits_answers_saves_and_loads_on_cuda(kind, tmp_path):
    guard = make_guard("cuda", kind).fresh(on_alarm="decoy")  # the images are like none of those it was fitted on
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    guard.save(tmp_path / "bundle")
    reply = guard.answer(x, client="a")
    assert reply.probabilities.is_cuda
    assert torch.allclose(reply.probabilities.sum(1), torch.ones(64, device="cuda"), atol=1e-5)
    again = queen.load(tmp_path / "bundle", device="cuda").answer(x, client="a")
    assert again.verdicts == reply.verdicts
    assert torch.equal(again.probabilities, reply.probabilities)
    on_cpu = queen.load(tmp_path / "bundle").answer(x, client="a")
    assert (on_cpu.probabilities - reply.probabilities.cpu()).abs().max() < 0.2


def test_fitting_on_cuda_is_deterministic():
    assert make_guard("cuda").bundle.identity == make_guard("cuda").bundle.identity


@pytest.mark.parametrize("on_alarm", ["decoy", "label-only", "reverse"])
def test_the_sentinel_watches_and_accuses_on_cuda(on_alarm, tmp_path):
    options = {"alpha": 0.9, "on_alarm": on_alarm, "digits": None, "limits": Limits(), "input_range": None}
    guard = make_guard("cuda").fresh(policy="sentinel", **options)
    guard.save(tmp_path / "bundle")
    wild = 30 * torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    replies = [g.answer(wild, client="a") for g in (guard, queen.load(tmp_path / "bundle", device="cuda"))]
    assert replies[0].alarmed.tolist() == replies[1].alarmed.tolist()
    assert torch.equal(replies[0].probabilities, replies[1].probabilities)
    honest = guard.measure(wild).honest
    changed = (replies[0].probabilities != honest).any(1).cpu().numpy()
    assert not changed[~replies[0].alarmed].any()
    rounded = guard.fresh(digits=2).answer(wild, client="a").probabilities
    assert rounded.is_cuda
    assert torch.equal(rounded, round_answers(rounded, 2))


def test_calibrating_with_conditions_on_cuda():
    x = torch.rand(80, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    guard = queen.calibrate(make_guard("cuda"), (x, torch.arange(80) % 4), conditions=["noise", "blur", "jpeg"])
    assert list(guard.report["alarm_rates"]) == ["clean", "noise", "blur", "jpeg"]
    assert guard.bundle.calibration.scores.is_cuda
