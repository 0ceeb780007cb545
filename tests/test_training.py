from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.errors import OptionError
from queen.training import ExtraLoss, Schedule, augmented, collapsed, compiled, predict, probabilities, train
from queen.training.repeated_step import RepeatedStep
from queen.zoo import build, seeded


def separable(count: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    centres = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 6.0]])
    return torch.randn(count, 2, generator=generator) * 0.5 + centres[y], y


def make_model() -> nn.Module:
    with seeded(torch.Generator().manual_seed(1)):
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


def fit(targets: Tensor, *, seed: int = 0) -> nn.Module:
    return train(make_model(), separable()[0], targets, Schedule(epochs=10), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("targets", ["labels", "one-hot", "soft"])
def test_separable_data_is_learnt_from_hard_and_soft_labels(targets):
    x, y = separable()
    one_hot = F.one_hot(y, 3).float()
    model = fit({"labels": y, "one-hot": one_hot, "soft": 0.7 * one_hot + 0.1}[targets])
    assert (predict(model, x) == y).double().mean() > 0.98
    assert (predict(make_model(), x) == y).double().mean() < 0.9


def test_labels_and_their_one_hot_vectors_train_alike():
    _, y = separable()
    for a, b in zip(fit(y).parameters(), fit(F.one_hot(y, 3).float()).parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_soft_targets_teach_their_confidence():
    x, y = separable()
    confidence = [fit(targets)(x).softmax(1).amax(1).mean() for targets in (0.4 * F.one_hot(y, 3) + 0.2, y)]
    assert 0.5 < confidence[0] < 0.7
    assert confidence[1] > 0.95


def test_training_is_deterministic_given_the_generator_and_leaves_the_global_state_alone():
    _, y = separable()
    state = torch.get_rng_state()
    one, two, other = fit(y), fit(y), fit(y, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not one.training


def test_images_are_trained_on_and_the_given_ones_are_not_changed():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, 8, 8, generator=generator)
    y = torch.arange(40) % 2
    x[y == 1, :, :4] += 2
    before = x.clone()
    with seeded(generator):
        model = build("small_cnn", classes=2, width=2)
    model = train(model, x, y, Schedule(epochs=20, batch=8), generator)
    assert torch.equal(x, before)
    assert torch.equal(predict(model, x), y)
    assert torch.equal(predict(model, x, batch=7), y)


def test_a_cpu_computes_in_bfloat16_where_the_schedule_says_so():
    x, y = separable()
    dtypes, models = [], []
    for bfloat16 in (False, True):
        model = make_model()
        model[0].register_forward_hook(lambda _, args, out: dtypes.append(out.dtype))
        train(model, x, y, Schedule(epochs=10, bfloat16=bfloat16), torch.Generator().manual_seed(0))
        models.append(model)
    assert list(dict.fromkeys(dtypes)) == [torch.float32, torch.bfloat16]
    assert all((predict(model, x) == y).double().mean() > 0.98 for model in models)
    assert all(parameter.dtype == torch.float32 for parameter in models[1].parameters())
    assert not torch.equal(models[0][0].weight, models[1][0].weight)


def test_fewer_rows_than_a_batch_can_be_trained_on():
    x, y = separable(6)
    before = make_model()
    after = train(make_model(), x, y, Schedule(epochs=2), torch.Generator().manual_seed(0))
    assert not torch.equal(before[0].weight, after[0].weight)


def test_collapsed_flags_predictions_of_one_class():
    mostly = torch.zeros(1000, dtype=torch.int64)
    assert collapsed(mostly)
    assert collapsed(mostly + 3)
    mostly[:9] = 4
    assert collapsed(mostly)
    mostly[:10] = 4
    assert not collapsed(mostly)
    assert not collapsed(torch.arange(1000) % 10)


def test_the_rate_falls_as_the_schedule_says():
    linear, step, constant = (Schedule(epochs=30, decay=decay) for decay in ("linear", "step", "constant"))
    assert [linear.rate(i, 60) for i in (0, 30, 59)] == pytest.approx([1, 0.5, 1 / 60])
    assert [step.rate(i, 60) for i in (0, 19, 20, 39, 40, 59)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert constant.rate(59, 60) == 1


@pytest.mark.parametrize("wrong", [{"decay": "cosine"}, {"epochs": 0}, {"batch": 2.5}, {"halve_every": True}])
def test_a_schedule_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Schedule(**wrong)


def test_every_epoch_is_shown_in_eval_mode_and_an_extra_loss_is_felt():
    x, y = separable()
    seen = []
    model = make_model()
    factors = iter(torch.ones(12))  # one per step
    heavy = train(
        model, x, y, Schedule(epochs=3), torch.Generator().manual_seed(0),
        on_epoch=lambda model: seen.append(model.training),
        extra_loss=ExtraLoss(
            lambda: (next(factors),), lambda factor: factor * sum(p.square().sum() for p in model.parameters())
        ),
    )  # fmt: skip
    assert next(factors, None) is None
    plain = train(make_model(), x, y, Schedule(epochs=3), torch.Generator().manual_seed(0))
    assert seen == [False] * 3
    assert sum(p.square().sum() for p in heavy.parameters()) < 0.5 * sum(p.square().sum() for p in plain.parameters())


def test_augmented_images_are_shifts_and_mirrors_of_the_originals():
    x = torch.rand(60, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    found = augmented(x, torch.Generator().manual_seed(1))
    padded = F.pad(x, (1, 1, 1, 1))
    kinds = set()
    for i in range(len(x)):
        views = {
            (dy, dx, mirrored): (view.flip(-1) if mirrored else view)
            for dy in range(3) for dx in range(3) for mirrored in (False, True)
            for view in [padded[i, :, dy : dy + 8, dx : dx + 8]]
        }  # fmt: skip
        [kind] = [name for name, view in views.items() if torch.equal(view, found[i])]
        kinds.add(kind)
    assert len(kinds) > 12  # of 18


def test_probabilities_may_enter_autograd_and_sum_to_one():
    x, _ = separable()
    model = make_model()
    found = probabilities(model, x, batch=7)
    assert not found.is_inference()
    assert torch.allclose(found, model(x).softmax(1), atol=1e-6)


def test_a_network_is_compiled_once_its_steps_have_cost_as_much(monkeypatch):
    compiled_losses = []
    monkeypatch.setattr(torch, "compile", lambda loss, **_: compiled_losses.append(loss) or loss)
    monkeypatch.setattr(compiled, "_rows_taken", Counter())
    network, rows = make_model(), compiled.COMPILED_FROM // 2

    def ask(model: nn.Module, shape: tuple[int, ...]) -> int:
        compiled.compile_if_worth_it(lambda x, y: x.sum(), model, shape, -(-rows // shape[0]))
        return len(compiled_losses)

    assert [ask(network, (64, 2)), ask(network, (32, 2)), ask(nn.Linear(2, 3), (64, 2))] == [0, 0, 0]
    assert ask(network, (64, 2)) == 1  # the second training of this network at this shape
    assert ask(network, (64, 2)) == 2


class FailingGraph:
    """A recording whose end fails as CUDA's does when a step has waited for the GPU."""

    def __init__(self, _: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise torch.AcceleratorError("operation failed due to a previous error during capture\nSearch for it")


def test_a_step_that_cannot_be_recorded_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", FailingGraph)

    def wait(_: Tensor) -> None:
        raise torch.AcceleratorError("operation not permitted when stream is capturing\nSearch for it")

    for step, cause in ((wait, "not permitted when stream is"), (lambda _: None, "failed due to .* during")):
        message = rf"recorded as a CUDA graph \(operation {cause} captur\w+\): set Schedule\(record=False\)"
        with pytest.raises(OptionError, match=message):
            RepeatedStep(step)._record(torch.ones(1))


def test_recorded_steps_are_plain_ones_where_there_is_no_gpu():
    taken = []
    step = RepeatedStep(lambda *inputs: taken.append([float(given) for given in inputs]))
    for number in range(6):
        step(torch.tensor(float(number)), torch.tensor(1.0))
    assert taken == [[float(number), 1.0] for number in range(6)]


class OnGpu:
    """What looks like a tensor on a GPU."""

    is_cuda = True


def test_steps_that_are_not_to_be_recorded_are_plain_ones_on_a_gpu():
    taken = []
    step, inputs = RepeatedStep(taken.append, record=False), [OnGpu() for _ in range(6)]
    for given in inputs:
        step(given)
    assert taken == inputs
