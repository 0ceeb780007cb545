"""The two perturbations, in closed form: gradient reverse and feature perturbation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MARGIN = 1e-4  # lead in probability of a top class that must stay on top
STEP = 0.05  # length of one step of the walk, in feature space
MANY_STEPS = 1e9  # more than any walk needs, and finite
BISECTIONS = 24  # to find where the label changes under a head that is not linear


def reverse_gradient(honest: Tensor, pirate: Tensor, *, keep_label: bool = False) -> Tensor:
    """The point of the simplex most aligned with q = 2 * pirate - honest; all shapes (n, K).

    Because q sums to 1, max(q, 0) / sum(max(q, 0)) IS the arg max of the cosine, so the paper's optimisation
    problem needs no solver. With `keep_label` the honest top class stays ahead of all others by MARGIN.
    """
    honest, pirate = torch.as_tensor(honest), torch.as_tensor(pirate)
    target = 2 * pirate - honest
    if keep_label:
        return _project_keeping_label(target, honest.argmax(1))
    positive = target.clamp_(min=0)
    return positive.div_(positive.sum(1, keepdim=True))


def _project_keeping_label(target: Tensor, labels: Tensor) -> Tensor:
    """arg max of the cosine with `target` over {y on the simplex: y_k >= y_j + MARGIN for all j != k}.

    With w = s * y the margin reads w_k - w_j >= MARGIN * sum(w): a cone, and the arg max of a cosine over a cone is
    the Euclidean projection onto it. Its optimality conditions leave one unknown, the multiplier N >= 0:
        w_k = q_k + N (1 - m),   w_j = clip(q_j - m N, 0, U),   U = max_a (sum of the a largest q_j - N) / a - m N,
    and w_k - m * sum(w) - U grows with N, so a fixed number of bisections finds its root.
    """
    q = target.double()
    top = q.gather(1, labels[:, None])
    others = q.scatter(1, labels[:, None], -torch.inf)
    cumulative = others.sort(1, descending=True).values[:, :-1].cumsum(1)
    counts = torch.arange(1, q.shape[1], device=q.device, dtype=q.dtype)

    def point(multiplier: Tensor) -> tuple[Tensor, Tensor]:
        cap = ((cumulative - multiplier) / counts).amax(1, keepdim=True) - MARGIN * multiplier
        w = torch.minimum((others - MARGIN * multiplier).clamp(min=0), cap.clamp(min=0))
        w = w.scatter(1, labels[:, None], top + multiplier * (1 - MARGIN))
        return w, cap

    low = torch.zeros_like(top)
    high = 2 * (q.abs().sum(1, keepdim=True) + 1)
    for _ in range(64):
        middle = (low + high) / 2
        w, cap = point(middle)
        ahead = w.gather(1, labels[:, None]) - MARGIN * w.sum(1, keepdim=True) >= cap
        low, high = torch.where(ahead, low, middle), torch.where(ahead, middle, high)
    free = target.double().clamp(min=0)  # N = 0: the unconstrained answer already keeps the label
    runner_up = free.scatter(1, labels[:, None], 0.0).amax(1, keepdim=True)
    keeps_label = free.gather(1, labels[:, None]) - MARGIN * free.sum(1, keepdim=True) >= runner_up
    w = torch.where(keeps_label, free, point(high)[0])
    return (w / w.sum(1, keepdim=True)).to(target.dtype)


def move_feature(
    features: Tensor,
    logits: Tensor,
    centres: Tensor,
    centre_logits: Tensor,
    *,
    centre_squares: Tensor | None = None,
    step: float = STEP,
    max_steps: int | None = None,
    as_logits: bool = False,
) -> Tensor:
    """Walk u towards the farthest C^j (j != k) while the label stays k; returns the softmax there, (n, K).

    With `as_logits`, which only the reproduction of the authors' released code wants, the logits there instead.
    features (n, D), logits (n, K), centres (K, D), centre_logits (K, K) = f^C(centres) of a linear head f^C;
    centre_squares (K,) = |C^j|^2 saves computing them again. Along the line the logits are linear,
    l(s) = l + s g with g = (f^C(C^j) - l) / |C^j - u|, so the step count comes from the first crossing,
    min_j (l_k - l_j) / (g_j - g_k) over g_j > g_k.

    Paper: the printed direction u - C walks away from the centre; the text says towards, and so does this.
    """
    labels = logits.argmax(1, keepdim=True)
    # |C|^2 - 2 u.C decides which centre is farthest, and |u|^2, the same for all of them, is added to the one chosen.
    squares = torch.linalg.vecdot(centres, centres) if centre_squares is None else centre_squares
    reach = torch.addmm(squares, features, centres.T, alpha=-2)
    square, farthest = reach.scatter_(1, labels, -torch.inf).max(1, keepdim=True)
    square += torch.linalg.vecdot(features, features)[:, None]
    # Features beyond 1e19 overflow here; an infinite distance then means: do not move.
    distance = square.clamp_(min=1e-24).sqrt_().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    slope = (centre_logits[farthest[:, 0]] - logits).div_(distance)
    closing = slope - slope.gather(1, labels)
    crossing = ((logits.gather(1, labels) - logits) / closing).masked_fill_(closing <= 0, torch.inf)
    steps = walk_steps(crossing.amin(1, keepdim=True), distance, step, max_steps)
    moved = torch.addcmul(logits, steps, slope, value=step)
    return moved if as_logits else lift_top(moved.softmax(1), labels)


def walk_steps(crossing: Tensor, distance: Tensor, step: float, max_steps: int | None) -> Tensor:
    """The number of whole steps that end before the first crossing and do not pass the centre."""
    before_crossing = (crossing / step).ceil_().sub_(1)
    to_centre = (distance / step).floor_()
    return torch.minimum(before_crossing, to_centre).clamp_(min=0, max=MANY_STEPS if max_steps is None else max_steps)


def move_feature_any_head(
    features: Tensor,
    logits: Tensor,
    head: Callable[[Tensor], Tensor],
    centres: Tensor,
    *,
    step: float = STEP,
    max_steps: int | None = None,
    as_logits: bool = False,
) -> Tensor:
    """`move_feature` for a head that is not linear: BISECTIONS halvings of the line find where the label changes."""
    labels = logits.argmax(1, keepdim=True)
    distances = torch.cdist(features, centres).scatter(1, labels, -torch.inf)
    distance, farthest = distances.max(1, keepdim=True)
    direction = (centres[farthest[:, 0]] - features) / distance.clamp(min=1e-12)

    def keeps_label(length: Tensor) -> Tensor:
        return head(features + length * direction).argmax(1, keepdim=True) == labels

    low, high = torch.zeros_like(distance), distance
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        keeps = keeps_label(middle)
        low, high = torch.where(keeps, middle, low), torch.where(keeps, high, middle)
    crossing = torch.where(keeps_label(distance), torch.inf, high)
    steps = walk_steps(crossing, distance, step, max_steps)
    moved: Tensor = head(features + steps * step * direction)
    # Bisection may miss a crossing, so that the label differs here, and huge features may overflow: then do not move.
    stays = (moved.argmax(1, keepdim=True) == labels) & moved.isfinite().all(1, keepdim=True)
    moved = torch.where(stays, moved, logits)
    return moved if as_logits else lift_top(moved.softmax(1), labels)


def lift_top(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Mix in just enough of the one-hot vector of labels (n, 1) that the top class leads by MARGIN."""
    top = probabilities.gather(1, labels)
    lead = top - probabilities.scatter(1, labels, -torch.inf).amax(1, keepdim=True)
    if (lead >= MARGIN).all():
        return probabilities
    share = ((MARGIN - lead) / (1 - lead)).clamp_(min=0)
    lifted = probabilities * (1 - share)
    return lifted.scatter_add_(1, labels, share)
