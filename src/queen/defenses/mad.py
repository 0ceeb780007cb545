"""MAD, argmax variant: the answer that turns the gradient of an imagined thief furthest.

The imagined thief F is a network with random weights. The gradient of -log softmax(F(x))_k in its last layer's weights
is (p - e_k) outer phi, with p = softmax(F(x)) and phi the features, so a thief that learns from q moves along
(p - q) outer phi. Only p - q matters: the objective | n(p - q) - n(p - y) |^2, n(v) = v / |v|, needs K numbers per
candidate and no gradients at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.checks import check_number
from queen.training import probabilities

MOST_CLASSES = 10  # up to here every set of classes is a candidate, above they are grown greedily
MOST_EVALUATIONS = 1024  # candidates of the greedy search, rounded up to whole rounds
LEAD = 1e-5  # of the top class in a candidate, before it is normalised
GREEDY_SHIFT = 1e-8  # added to y above MOST_CLASSES
SMALL = 1e-7  # added to a distance that may be 0
SAME = 1e-7  # shorter vectors are rounding errors, and so is their direction
TIE = 1e-12  # cosines that are equal up to rounding: the first candidate is taken
CHUNK = 1 << 17  # candidates compared at a time
CUDA_CHUNK = 1 << 26


def perturb(y: Tensor, surrogate_probabilities: Tensor, *, epsilon: float = 1.0) -> Tensor:
    """Mix y (n, K) with the worst candidate, as much of it as an l1 distance of `epsilon` allows.

    `surrogate_probabilities` (n, K) are the p of the objective. Computed in float64. The top class of y (the first one)
    is the top class of every candidate by LEAD and so of every answer; with epsilon >= 1 that survives float32.
    """
    check_number("epsilon", epsilon, 0)
    rows = max(1, (CUDA_CHUNK if y.is_cuda else CHUNK) // _candidates_at_once(y.shape[1]))
    pairs = zip(y.split(rows), surrogate_probabilities.split(rows), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([_mix(part.double(), p.double(), epsilon) for part, p in pairs]).to(y.dtype)


def _candidates_at_once(classes: int) -> int:
    """How many candidates of a row are compared at a time."""
    return int(2 ** (classes - 1)) if classes <= MOST_CLASSES else classes


def _mix(y: Tensor, p: Tensor, epsilon: float) -> Tensor:
    worst = worst_of_all(y, p) if y.shape[1] <= MOST_CLASSES else worst_grown(y, p)
    distance = (y - worst).abs().sum(1, keepdim=True)
    share = (epsilon / (distance + SMALL)).clamp_(max=1)
    return torch.lerp(y, worst, share)


def worst_of_all(y: Tensor, p: Tensor) -> Tensor:
    """The candidate (n, K) with the highest objective among all sets of classes that hold the top one of y (n, K)."""
    classes = y.shape[1]
    labels = y.argmax(1, keepdim=True)
    # The table has the top class in its first column: swap it there and back.
    swap = torch.arange(classes, device=y.device).repeat(len(y), 1).scatter_(1, labels, 0)
    swap[:, :1] = labels
    y, p = y.gather(1, swap), p.gather(1, swap)
    table = all_sets(classes, y)
    honest = p - y
    ahead = torch.linalg.vecdot(p, honest)[:, None] - honest @ table.T
    squares = torch.linalg.vecdot(p, p)[:, None] - 2 * (p @ table.T) + torch.linalg.vecdot(table, table)
    return table[_first_lowest(_cosines(ahead, squares, honest))].gather(1, swap)


def all_sets(classes: int, like: Tensor) -> Tensor:
    """(2^(K-1), K): every set with the first class in it, as the normalised indicator with LEAD."""
    numbers = torch.arange(2 ** (classes - 1), device=like.device)[:, None]
    members = numbers >> torch.arange(classes - 1, device=like.device) & 1
    first = torch.full_like(numbers, 1 + LEAD, dtype=like.dtype)
    table = torch.cat([first, members.to(like.dtype)], 1)
    return table / table.sum(1, keepdim=True)


def worst_grown(y: Tensor, p: Tensor) -> Tensor:
    """The candidate (n, K) with the highest objective among those of greedy growth from the top class of y (n, K)."""
    classes = y.shape[1]
    shifted = y + GREEDY_SHIFT
    honest = p * shifted.sum(1, keepdim=True) - shifted
    label = y.argmax(1, keepdim=True)
    chosen = torch.zeros_like(y).scatter_(1, label, 1.0)
    base = torch.linalg.vecdot(p, honest)[:, None]
    square = torch.linalg.vecdot(p, p)[:, None]
    # Sums of `honest` and of p over the candidate before it is normalised: all that its objective needs.
    along, inside = (1 + LEAD) * honest.gather(1, label), (1 + LEAD) * p.gather(1, label)

    def cosines(along: Tensor, inside: Tensor, size: int) -> Tensor:
        total = size + LEAD
        own_square = (size - 1 + (1 + LEAD) ** 2) / total**2
        return _cosines(base - along / total, square - 2 * inside / total + own_square, honest)

    lowest, best = cosines(along, inside, 1), chosen.clone()
    for size in greedy_sizes(classes):
        tried = cosines(along + honest, inside + p, size).masked_fill_(chosen > 0, torch.inf)
        pick = _first_lowest(tried)[:, None]
        picked = tried.gather(1, pick)
        chosen.scatter_(1, pick, 1.0)
        along, inside = along + honest.gather(1, pick), inside + p.gather(1, pick)
        better = picked < lowest - TIE
        lowest, best = torch.where(better, picked, lowest), torch.where(better, chosen, best)
    best = best.scatter(1, label, 1 + LEAD)
    return best / best.sum(1, keepdim=True)


def greedy_sizes(classes: int) -> Iterator[int]:
    """The sizes of the sets tried, until there were enough evaluations or no class is left."""
    evaluations, size = 0, 1
    while evaluations < MOST_EVALUATIONS and size < classes:
        evaluations += classes - size
        size += 1
        yield size


def _cosines(ahead: Tensor, squares: Tensor, honest: Tensor) -> Tensor:
    """cos(p - q, p - y) from (p - q).(p - y), |p - q|^2 and p - y: the objective is 2 - 2 cos.

    With n(0) = 0 it is 1, as for a cosine of 1/2, where q = p, and the same for all other q where y = p.
    """
    size: Tensor = torch.linalg.vector_norm(honest, dim=1, keepdim=True)
    scale = squares.clamp(min=SAME**2).sqrt_() * size.clamp(min=SAME)
    return (ahead / scale).masked_fill_(size <= SAME, 0).masked_fill_(squares <= SAME**2, 0.5)


def _first_lowest(values: Tensor) -> Tensor:
    """The first column (n,) of values (n, C) that is lowest up to rounding, so that the batch does not matter."""
    return (values <= values.amin(1, keepdim=True) + TIE).to(torch.int8).argmax(1)


def build(victim: Victim, generator: torch.Generator, *, epsilon: float = 1.0) -> Endpoint:
    """Imagine a thief with the victim's architecture and random weights."""
    check_number("epsilon", epsilon, 0)
    surrogate = victim.make_network(generator).eval().requires_grad_(False)
    surrogate.to(next(victim.model.parameters()).device)
    return MappedEndpoint(victim, lambda y, x: perturb(y, probabilities(surrogate, x), epsilon=epsilon))


DEFENSE = Defense(build, keeps_label="always", needs=frozenset({"x"}))
