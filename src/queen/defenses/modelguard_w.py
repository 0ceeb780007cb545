"""ModelGuard-W: of all answers near the truth, the most misleading one. A linear program, solved exactly in batches.

minimise sum_k log(y_k + SHIFT) x_k  subject to  x on the simplex, |x - y|_1 <= epsilon, x_t >= x_j + MARGIN (j != t),
t the (first) top class of y. For a given cap U = x_t - MARGIN on the other classes the best answer is known: mass goes
from the largest of them to the smallest, as far as epsilon and U allow. What is left is a convex, piecewise linear
function of the one number U, whose slope is known too: the tangents at both ends of an interval cross at the next point
to look at, and once the function lies on the crossing that point is the minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.checks import check_number

MARGIN = 1e-4  # how far ahead the top class stays
SHIFT = 1e-6  # keeps the logarithm of 0 finite
LEAST_EPSILON = 2 * MARGIN  # from here on there is an answer for every y, even if all classes tie
TOLERANCE = 1e-12  # of the minimum, which is a number from -14 to 0
MOST_STEPS = 200  # there are a few pieces per class, of which far fewer are looked at
CHUNK = 1 << 17  # numbers at a time: what fits into a processor's cache
CUDA_CHUNK = 1 << 24


def perturb(y: Tensor, *, epsilon: float = 1.0) -> Tensor:
    """The solution (n, K) for every row of y (n, K), computed in float64; rows are scaled to sum exactly to 1 first.

    Where y ties, so that several answers are best, it is one of them.
    """
    check_number("epsilon", epsilon, LEAST_EPSILON)
    rows = max(1, (CUDA_CHUNK if y.is_cuda else CHUNK) // max(1, y.shape[1]))
    return torch.cat([_solve(part.double(), epsilon) for part in y.split(rows)]).to(y.dtype)  # type: ignore[no-untyped-call]


def _solve(y: Tensor, epsilon: float) -> Tensor:
    """The same for rows in float64 that fit into one chunk."""
    y = y / y.sum(1, keepdim=True)
    labels = y.argmax(1, keepdim=True)
    values, order = y.scatter(1, labels, torch.inf).sort(dim=1, descending=True, stable=True)
    others, top = values[:, 1:].contiguous(), y.gather(1, labels)
    problem = _Problem(top, (top + SHIFT).log(), others, (others + SHIFT).log(), epsilon / 2)
    cap = _best_cap(problem)
    answer = torch.cat([cap + MARGIN, problem.at(cap).others], 1)
    return torch.empty_like(y).scatter_(1, order, answer)


@dataclass(frozen=True)
class _Answer:
    """The best answer under a cap: `others` (n, K-1), and the costs (n, 1) of the classes that give and take last."""

    others: Tensor
    giving: Tensor
    taking: Tensor


@dataclass(frozen=True)
class _Problem:
    """Rows with the top class (n, 1) apart and the others (n, K-1) in falling order; `budget` is how much may move."""

    top: Tensor
    top_cost: Tensor
    others: Tensor
    costs: Tensor
    budget: float

    def rows(self, chosen: Tensor) -> _Problem:
        """The chosen rows only."""
        top, top_cost, others, costs = (t[chosen] for t in (self.top, self.top_cost, self.others, self.costs))
        return _Problem(top, top_cost, others, costs, self.budget)

    def caps(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest cap, both (n, 1), under which there is an answer at all."""
        others = self.others.shape[1]
        count = torch.arange(1, others + 1, device=self.top.device)
        # What lies above the cap must go: sum_j (y_j - U)+ is the largest over c of (sum of the c largest) - c U.
        above = self.others.cumsum(1) - self.budget
        without_top = (above / count).amax(1, keepdim=True)
        with_top = ((above + self.top - MARGIN) / (count + 1)).amax(1, keepdim=True)
        low = torch.maximum(without_top, with_top).maximum(self.top - MARGIN - self.budget)
        low = low.clamp_(min=(1 - MARGIN) / (others + 1))  # the answer must have room for a mass of 1
        return low, (self.top + self.budget).clamp_(max=1).sub_(MARGIN).maximum(low)

    def at(self, cap: Tensor) -> _Answer:
        """The best answer under a cap (n, 1)."""
        last = self.others.shape[1] - 1
        smaller = torch.arange(last, -1, -1, device=cap.device)  # how many classes are smaller than this one
        cut = torch.minimum(self.others, cap)
        sums = cut.cumsum(1)
        total = sums[:, -1:]
        rest = 1 - MARGIN - cap  # mass of the others
        # Without epsilon the smallest classes would be filled up and the largest emptied: nothing beyond that is moved.
        filled = torch.minimum((rest - smaller * cap).clamp_(min=0), cap)
        wanted = (cut - filled).clamp_(min=0).sum(1, keepdim=True)
        forced = (1 - self.top - total).clamp_(min=0)
        allowed = (self.budget - forced - (self.top - MARGIN - cap).clamp_(min=0)).clamp_(min=0)
        moved = torch.minimum(wanted, allowed)
        received = (rest - total + moved).clamp_(min=0)
        room_below = smaller * cap - (total - sums)
        left = torch.minimum((sums - moved).clamp_(min=0), cut)
        added = torch.minimum((received - room_below).clamp_(min=0), cap - cut)
        giver = (sums <= moved).sum(1, keepdim=True)
        taker = (room_below >= received).sum(1, keepdim=True)
        # Where epsilon does not bind, giver and taker are one class, the one that is filled in part.
        middle = last - (rest / cap).floor_().long()
        free = wanted <= allowed
        giving = self.costs.gather(1, torch.where(free, middle, giver).clamp_(0, last))
        taking = self.costs.gather(1, torch.where(free, middle, taker).clamp_(0, last))
        return _Answer(left + added, giving, taking)

    def value_and_slope(self, cap: Tensor) -> tuple[Tensor, Tensor]:
        """The minimum under a cap (n, 1) and how it grows with the cap (a subgradient), from the multipliers there."""
        answer = self.at(cap)
        value = (self.costs * answer.others).sum(1, keepdim=True).add_(self.top_cost * (cap + MARGIN))
        exchange = torch.where(self.others > cap, answer.giving, answer.taking)
        pressed = (exchange - self.costs).clamp_(min=0).sum(1, keepdim=True)
        partner = torch.where(cap + MARGIN < self.top, answer.giving, answer.taking)
        return value, self.top_cost - partner - pressed


@dataclass(frozen=True)
class _End:
    """One end of an interval of caps: the cap, and the tangent there; all (n, 1)."""

    cap: Tensor
    value: Tensor
    slope: Tensor

    def rows(self, chosen: Tensor) -> _End:
        """The chosen rows only."""
        return _End(self.cap[chosen], self.value[chosen], self.slope[chosen])

    def replace_where(self, where: Tensor, by: _End) -> _End:
        """The same ends, but those of `by` in the rows of a mask (n, 1)."""
        pairs = ((self.cap, by.cap), (self.value, by.value), (self.slope, by.slope))
        return _End(*(torch.where(where, new, old) for old, new in pairs))


def _best_cap(problem: _Problem) -> Tensor:
    """The cap (n, 1) under which the minimum is lowest."""
    low, high = problem.caps()
    best = low.clone()
    left = _End(low, *problem.value_and_slope(low))
    rows = (left.slope < 0)[:, 0].nonzero()[:, 0]  # elsewhere the lowest cap is the best
    problem, left, high = problem.rows(rows), left.rows(rows), high[rows]
    right = _End(high, *problem.value_and_slope(high))
    best[rows] = high
    going = (right.slope > 0)[:, 0]  # elsewhere the highest
    for _ in range(MOST_STEPS):
        if not going.any():
            break
        chosen = going.nonzero()[:, 0]
        rows, problem, left, right = rows[chosen], problem.rows(chosen), left.rows(chosen), right.rows(chosen)
        width = right.cap - left.cap
        step = (right.value - left.value - right.slope * width) / (left.slope - right.slope)
        cap = left.cap + step.clamp_(min=0).minimum(width)
        bound = left.value + left.slope * step
        crossing = _End(cap, *problem.value_and_slope(cap))
        best[rows] = cap
        going = ((crossing.value > bound + TOLERANCE) & (crossing.slope != 0))[:, 0]
        falling = crossing.slope < 0
        left, right = left.replace_where(falling, crossing), right.replace_where(~falling, crossing)
    return best


def build(victim: Victim, generator: torch.Generator, *, epsilon: float = 1.0) -> Endpoint:
    """Solve the program for every answer."""
    check_number("epsilon", epsilon, LEAST_EPSILON)
    return MappedEndpoint(victim, lambda y, x: perturb(y, epsilon=epsilon))


DEFENSE = Defense(build, keeps_label="always")
