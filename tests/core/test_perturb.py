import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from queen.core.perturb import MARGIN, STEP, lift_top, move_feature, move_feature_any_head, reverse_gradient
from tests.reference.reverse import cosine, reverse_by_slsqp
from tests.reference.walk import answer_at, walk_feature

F64 = torch.float64


def generator(seed):
    return torch.Generator().manual_seed(seed)


def simplex(rows, classes, seed, sharpness=1.0):
    return (sharpness * torch.randn(rows, classes, generator=generator(seed), dtype=F64)).softmax(1)


def random_head(seed, rows, dims, classes, *, spread=1.0, dtype=F64):
    """Features, centres and a linear head, with gains that make walks end at crossings, centres and at once."""
    g = generator(seed)
    head = nn.Linear(dims, classes, dtype=F64).requires_grad_(False)
    head.weight.copy_(torch.randn(classes, dims, generator=g, dtype=F64))
    head.bias.copy_(2 * torch.randn(classes, generator=g, dtype=F64))
    features = spread * torch.randn(rows, dims, generator=g, dtype=F64)
    centres = spread * torch.randn(classes, dims, generator=g, dtype=F64)
    return features.to(dtype), centres.to(dtype), head.to(dtype)


def moved(features, centres, head, **options):
    return move_feature(features, head(features), centres, head(centres), **options)


def lead_of(answers, labels):
    top = answers.gather(1, labels[:, None])
    return (top - answers.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True))[:, 0]


def assert_probabilities(answers, tolerance):
    assert answers.isfinite().all()
    assert (answers >= 0).all()
    assert ((answers.sum(1) - 1).abs() <= tolerance).all()


# Gradient reverse


@pytest.mark.parametrize(
    ("pirate", "answer"),
    [([0.4, 0.35, 0.25], [0.1, 0.5, 0.4]), ([0.3, 0.5, 0.2], [0, 8 / 11, 3 / 11])],
)
def test_reverse_gives_the_vectors_of_the_method(pirate, answer):
    got = reverse_gradient(torch.tensor([[0.7, 0.2, 0.1]], dtype=F64), torch.tensor([pirate], dtype=F64))
    assert got[0].tolist() == pytest.approx(answer, abs=1e-12)


@pytest.mark.parametrize("classes", range(2, 13))
@pytest.mark.parametrize("keep_label", [False, True])
def test_reverse_is_never_less_aligned_than_what_slsqp_finds(classes, keep_label):
    honest, pirate = simplex(12, classes, classes, 2.0), simplex(12, classes, 100 + classes)
    got = reverse_gradient(honest, pirate, keep_label=keep_label).numpy()
    for y, p, answer in zip(honest.numpy(), pirate.numpy(), got, strict=True):
        found, q = reverse_by_slsqp(y, p, keep_label=keep_label), 2 * p - y
        assert cosine(q, answer) >= cosine(q, found) - 1e-9
        assert answer == pytest.approx(found, abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_reverse_keeping_the_label_keeps_it_with_its_margin(classes, dtype):
    honest, pirate = (simplex(3000, classes, seed, s).to(dtype) for seed, s in ((1, 3.0), (2, 3.0)))
    labels = honest.argmax(1)
    answers = reverse_gradient(honest, pirate, keep_label=True)
    assert torch.equal(answers.argmax(1), labels)
    assert lead_of(answers, labels).min() >= MARGIN - (1e-9 if dtype == F64 else 1e-7)
    assert_probabilities(answers, 1e-6 if dtype == torch.float32 else 1e-12)


def test_reverse_keeping_the_label_is_plain_reverse_where_that_keeps_it_anyway():
    honest, pirate = simplex(2000, 6, 3), simplex(2000, 6, 4)
    plain, kept = (reverse_gradient(honest, pirate, keep_label=k) for k in (False, True))
    same = lead_of(plain, honest.argmax(1)) >= MARGIN
    assert 50 < same.sum() < 1950
    assert torch.equal(plain[same], kept[same])
    assert not torch.isclose(plain[~same], kept[~same], atol=1e-6).all(1).any()


def test_reverse_of_a_pirate_who_agrees_is_honest():
    honest = simplex(20, 5, 0)
    for keep_label in (False, True):
        assert torch.allclose(reverse_gradient(honest, honest.clone(), keep_label=keep_label), honest, atol=1e-12)


@pytest.mark.parametrize("keep_label", [False, True])
def test_reverse_survives_one_hot_and_tied_answers(keep_label):
    honest = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
    pirate = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0.5, 0.5], [0.5, 0.5, 0], [0, 0, 1.0]])
    answers = reverse_gradient(honest, pirate, keep_label=keep_label)
    assert_probabilities(answers, 1e-6)
    if keep_label:
        assert answers.argmax(1).tolist() == [0] * 5


# Feature perturbation with a linear head


@pytest.mark.parametrize("max_steps", [None, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_walk_ends_where_single_steps_end(seed, max_steps):
    dims, classes = 2 + seed, 2 + seed % 5
    features, centres, head = random_head(seed, 60, dims, classes)
    got = moved(features, centres, head, max_steps=max_steps).numpy()
    w, b = head.weight.numpy(), head.bias.numpy()
    walked = 0
    for u, answer in zip(features.numpy(), got, strict=True):
        walk = walk_feature(u, centres.numpy(), lambda v: w @ v + b, STEP, max_steps)
        walked += walk.steps
        if answer == pytest.approx(walk.answer, abs=1e-9):
            continue
        direction = (centres.numpy()[walk.farthest] - u) / walk.distance
        logits, slope = w @ u + b, w @ direction
        crossings = [
            (logits[walk.label] - logits[j]) / (slope[j] - slope[walk.label])
            for j in range(classes)
            if slope[j] > slope[walk.label]
        ]
        end = min([*crossings, walk.distance]) / STEP
        assert abs(end - round(end)) < 1e-9, "only a walk that ends exactly on a step may round the other way"
        near = [answer_at(w @ (u + n * STEP * direction) + b, walk.label) for n in (walk.steps - 1, walk.steps + 1)]
        assert any(answer == pytest.approx(other, abs=1e-9) for other in near)
    assert walked > 60


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("seed", range(6))
def test_a_walk_keeps_the_label_with_its_margin(seed, dtype):
    features, centres, head = random_head(seed, 3000, 16, 2 + 3 * seed, spread=1 + 3 * seed, dtype=dtype)
    labels = head(features).argmax(1)
    answers = moved(features, centres, head)
    assert torch.equal(answers.argmax(1), labels)
    assert lead_of(answers, labels).min() >= MARGIN - (1e-9 if dtype == F64 else 2e-7)
    assert_probabilities(answers, 1e-6 if dtype == torch.float32 else 1e-12)


def test_a_walk_loses_confidence_on_the_whole():
    features, centres, head = random_head(0, 500, 8, 5, spread=2.0)
    honest = head(features).softmax(1)
    assert moved(features, centres, head).amax(1).mean() < honest.amax(1).mean() - 0.05


def one_dimension(weights, biases):
    head = nn.Linear(1, len(weights), dtype=F64).requires_grad_(False)
    head.weight.copy_(torch.tensor(weights, dtype=F64)[:, None])
    head.bias.copy_(torch.tensor(biases, dtype=F64))
    return head


def column(*values):
    return torch.tensor(values, dtype=F64)[:, None]


def test_a_walk_stops_before_a_crossing_that_lies_exactly_on_a_step():
    head = one_dimension([0.0, 1.0], [0.5, 0.0])  # the classes meet at u = .5
    answer = moved(column(0.0), column(-9.0, 1.0), head, step=0.25)
    assert answer[0].tolist() == pytest.approx(torch.tensor([0.5, 0.25]).softmax(0).tolist())


@pytest.mark.parametrize(("centre", "end"), [(1.0, 1.0), (1.2, 1.0), (0.99, 0.75), (0.24, 0.0)])
def test_a_walk_never_passes_the_centre(centre, end):
    head = one_dimension([1.0, 0.0], [3.0, 0.0])  # the label never changes on the way
    answer = moved(column(0.0), column(9.0, centre), head, step=0.25)
    assert answer[0].tolist() == pytest.approx(torch.tensor([3.0 + end, 0.0]).softmax(0).tolist())


def test_the_farthest_other_centre_is_chosen_and_never_the_own_one():
    head = one_dimension([1.0, 0.0, 0.0], [9.0, 0.0, -1.0])
    centres = column(-100.0, 2.0, -3.0)  # its own is farthest, then that of class 2
    answer = moved(column(0.0), centres, head, step=0.25)
    assert answer[0].tolist() == pytest.approx(torch.tensor([9.0 - 3, 0.0, -1.0]).softmax(0).tolist())


@pytest.mark.parametrize("steps", [0, 1, 2, 20])
def test_no_more_than_max_steps_are_taken(steps):
    head = one_dimension([0.0, 1.0], [50.0, 0.0])
    answer = moved(column(0.0), column(0.0, 49.0), head, max_steps=steps)
    assert answer[0].tolist() == pytest.approx(
        torch.tensor([50.0, steps * STEP], dtype=F64).softmax(0).tolist(), abs=1e-30
    )


def test_a_feature_on_the_farthest_centre_stays():
    features, centres, head = random_head(0, 1, 4, 2)
    other = 1 - head(features).argmax(1)
    centres[other] = features
    assert torch.allclose(moved(features, centres, head), head(features).softmax(1), atol=1e-12)
    assert torch.allclose(
        move_feature_any_head(features, head(features), head, centres), head(features).softmax(1), atol=1e-12
    )


@pytest.mark.parametrize("walk", ["linear", "any"])
def test_exactly_tied_classes_stay_and_the_first_is_lifted(walk):
    head = one_dimension([0.0, 0.0, 1.0], [1.0, 1.0, 0.0])
    u, centres = column(0.0), column(1.0, 2.0, 3.0)
    answer = moved(u, centres, head) if walk == "linear" else move_feature_any_head(u, head(u), head, centres)
    assert answer.argmax(1).item() == 0
    assert lead_of(answer, torch.tensor([0])).item() == pytest.approx(MARGIN, rel=1e-6)
    assert_probabilities(answer, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("scale", [1e4, 1e10, 1e18])
def test_huge_features_and_logits_still_give_probabilities_with_the_label_kept(scale, dtype):
    features, centres, head = random_head(0, 200, 8, 4, spread=scale, dtype=dtype)
    labels = head(features).argmax(1)
    for answers in (moved(features, centres, head), moved(features, centres / scale, head)):
        assert_probabilities(answers, 1e-6)
        assert torch.equal(answers.argmax(1), labels)


@pytest.mark.parametrize("walk", ["linear", "any"])
@pytest.mark.parametrize("scale", [1e20, 1e30, 1e37])
def test_features_too_large_to_be_squared_still_give_probabilities_with_the_label_kept(scale, walk):
    features, centres, head = random_head(0, 50, 8, 4, dtype=torch.float32)
    features = scale * features
    logits = head(features)
    assert logits.isfinite().all()
    answers = (
        moved(features, centres, head) if walk == "linear" else move_feature_any_head(features, logits, head, centres)
    )
    assert_probabilities(answers, 1e-6)
    assert torch.equal(answers.argmax(1), logits.argmax(1))


def test_arguments_are_left_as_they_were():
    features, centres, head = random_head(0, 30, 4, 3)
    logits, centre_logits = head(features), head(centres)
    given = [features, logits, centres, centre_logits]
    before = [t.clone() for t in given]
    move_feature(*given)
    move_feature_any_head(features, logits, head, centres)
    honest, pirate = simplex(30, 3, 0), simplex(30, 3, 1)
    given += [honest, pirate]
    before += [honest.clone(), pirate.clone()]
    reverse_gradient(honest, pirate)
    reverse_gradient(honest, pirate, keep_label=True)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_a_row_gets_the_same_answer_alone_and_in_a_batch():
    features, centres, head = random_head(3, 64, 8, 5)
    together = moved(features, centres, head)
    alone = torch.cat([moved(features[i : i + 1], centres, head) for i in range(64)])
    assert torch.allclose(together, alone, atol=1e-9)


# Feature perturbation with any head


def mlp(seed, dims, classes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(dims, 24), nn.Tanh(), nn.Linear(24, classes)).double().requires_grad_(False)
    head[0].weight *= 3
    head[2].weight *= 4
    return head


@pytest.mark.parametrize("max_steps", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_walk_for_any_head_agrees_on_linear_heads(seed, max_steps):
    features, centres, head = random_head(seed, 400, 4 + seed, 2 + seed, spread=1.5)
    exact = moved(features, centres, head, max_steps=max_steps)
    general = move_feature_any_head(features, head(features), head, centres, max_steps=max_steps)
    different = ~torch.isclose(exact, general, atol=1e-9).all(1)
    assert different.sum() <= 1  # a crossing within 2^-24 of the way from a whole step


@pytest.mark.parametrize("seed", range(5))
def test_the_walk_for_any_head_keeps_the_label_and_ends_on_a_step_of_its_line(seed):
    head, dims, classes = mlp(seed, 6, 4), 6, 4
    features, centres, _ = random_head(seed, 80, dims, classes, spread=1.5)
    logits = head(features)
    labels = logits.argmax(1)
    answers = move_feature_any_head(features, logits, head, centres)
    assert torch.equal(answers.argmax(1), labels)
    assert lead_of(answers, labels).min() >= MARGIN - 1e-9
    for u, answer, label in zip(features, answers.numpy(), labels.tolist(), strict=True):
        others = [j for j in range(classes) if j != label]
        centre = max((centres[j] for j in others), key=lambda c: (c - u).norm().item())
        distance = (centre - u).norm()
        line = u + STEP * torch.arange(int(distance / STEP) + 1, dtype=F64)[:, None] * (centre - u) / distance
        on_the_way = [answer_at(row, label) for row in head(line).numpy()]
        assert min(np.abs(answer - other).max() for other in on_the_way) < 1e-9


def test_the_walk_for_any_head_moves_most_rows_and_honours_max_steps():
    head = mlp(0, 6, 4)
    features, centres, _ = random_head(0, 300, 6, 4, spread=1.5)
    logits = head(features)
    honest, free, short = (
        logits.softmax(1),
        *(move_feature_any_head(features, logits, head, centres, max_steps=n) for n in (None, 0)),
    )
    assert (free - honest).abs().amax(1).gt(1e-3).double().mean() > 0.5
    assert (short - honest).abs().max() <= MARGIN


# Every answer


def test_lifting_adds_just_enough_of_the_label():
    p = simplex(500, 4, 0, 3.0)
    p[0] = torch.tensor([1.0, 0, 0, 0])
    p[1] = torch.tensor([0, 1.0, 0, 0])
    labels = torch.zeros(500, 1, dtype=torch.int64)
    got = lift_top(p.clone(), labels)
    for row, answer in zip(p.numpy(), got.numpy(), strict=True):
        lead = row[0] - row[1:].max()
        if lead >= MARGIN:
            assert answer == pytest.approx(row, abs=1e-15)
        else:
            assert answer[0] - answer[1:].max() == pytest.approx(MARGIN, abs=1e-12)
            share = (answer[0] - row[0]) / (1 - row[0])
            assert answer == pytest.approx((1 - share) * row + share * np.eye(4)[0], abs=1e-12)


@settings(max_examples=150)
@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(2, 12),
    st.sampled_from([1e-3, 1.0, 30.0, 1e6]),
    st.sampled_from([torch.float32, F64]),
    st.sampled_from(["reverse", "keep", "move", "any", "mlp"]),
    st.sampled_from([None, 0, 20]),
)
def test_every_answer_is_a_probability_vector(seed, rows, dims, classes, scale, dtype, how, max_steps):
    features, centres, head = random_head(seed, rows, dims, classes, spread=scale, dtype=dtype)
    logits = head(features)
    if how in ("reverse", "keep"):
        pirate = (scale * torch.randn(rows, classes, generator=generator(seed), dtype=dtype)).softmax(1)
        answers = reverse_gradient(logits.softmax(1), pirate, keep_label=how == "keep")
    elif how == "move":
        answers = moved(features, centres, head, max_steps=max_steps)
    else:
        head = head if how == "any" else mlp(seed, dims, classes).to(dtype)
        logits = head(features)
        answers = move_feature_any_head(features, logits, head, centres, max_steps=max_steps)
    assert answers.dtype == dtype
    assert answers.shape == (rows, classes)
    assert_probabilities(answers, 2e-6 if dtype == torch.float32 else 1e-12)
    if how != "reverse":
        assert torch.equal(answers.argmax(1), logits.softmax(1).argmax(1) if how == "keep" else logits.argmax(1))
