"""A guard's price: its images and honest answers for the reference students, and what the bundle then says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from queen.bundle.bundle import Bundle
from queen.core import inputs
from queen.errors import CalibrationError, EmptyBatchError, LimitsError, OptionError
from queen.fit.data import Images, count_batches, image_batches
from queen.options import Sentinel
from queen.price.limits import check_max_copy, check_policy_bounds_copies, limits_for, most_answers
from queen.price.measure import Pricing, measure_curve
from queen.price.stored import stored_curve
from queen.price.students import Array, Jury, Pool, check_images
from queen.progress import Progress
from queen.sentinel.rounding import round_answers

SKIPPED = "price: it was not measured to the end, since somebody pressed Ctrl-C: queen price BUNDLE does it later"
UNFINISHED = "price-unfinished"  # folder beside a bundle's files, of students that a stopped measurement has trained
JURY = 1 / 3  # of the held-out images, which judge the students and teach none


@dataclass(frozen=True)
class CopyOptions:
    """What `protect` is told of copies: whether and how to price them (`price`), and how good none may be."""

    price: bool | Pricing
    max_copy: float | None

    @property
    def wanted(self) -> bool:
        """Whether a price must be measured."""
        return self.price is not False or self.max_copy is not None

    def check(
        self, policy: str, settings: Sentinel, calibration: Images | str | None, *, observe: bool, has_limits: bool
    ) -> None:
        """Whatever is wrong with these options, said before the work and not after it."""
        if not isinstance(self.price, bool | Pricing):
            raise OptionError(f"price must be True, False or a Pricing, got {self.price!r}")
        if self.wanted and (calibration is None or isinstance(calibration, str)):
            raise CalibrationError(
                "a price needs held-out images that did not train the model, to try copies on: "
                "protect(..., calibration=x)"
            )
        if self.max_copy is not None:
            check_max_copy(self.max_copy)
            if has_limits:
                raise LimitsError("give either max_copy, which chooses limits, or limits (absolute_radius), not both")
            check_policy_bounds_copies(policy, settings, observe=observe)

    def apply(
        self, bundle: Bundle, train: Images, calibration: Images | str | None, show: Progress, seed: int
    ) -> Bundle:
        """The bundle with its price, and limits for `max_copy`; Ctrl-C leaves the price out where nothing needs it."""
        if not self.wanted or calibration is None or isinstance(calibration, str):
            return bundle
        pricing = self.price if isinstance(self.price, Pricing) else None
        try:
            bundle = price_bundle(bundle, train, calibration, show, pricing=pricing, seed=seed)
        except KeyboardInterrupt:
            if self.max_copy is not None:
                raise
            bundle.report["warnings"].append(SKIPPED)
            return bundle
        return bundle if self.max_copy is None else limit_copies(bundle, self.max_copy)


def price_bundle(
    bundle: Bundle,
    train: Images,
    held_out: Images,
    show: Progress,
    *,
    foreign: Images | None = None,
    pricing: Pricing | None = None,
    seed: int = 0,
) -> Bundle:
    """The bundle with a price: students learn from answers to held-out, to training and perhaps to foreign images.

    Nothing that is served changes.
    """
    pools, jury = ask_for_students(bundle, train, held_out, show, foreign=foreign, seed=seed)
    curve = measure_curve(
        pools,
        jury,
        own=bundle.recipe,
        pricing=pricing or Pricing(),
        digits=bundle.digits,
        device=str(bundle.probe.logits.device),
        show=show,
    )
    seconds = bundle.report.get("seconds", {}) | show.seconds
    return replace(bundle, report=bundle.report | {"price": curve.as_json(), "seconds": seconds})


def ask_for_students(
    bundle: Bundle, train: Images, held_out: Images, show: Progress, *, foreign: Images | None = None, seed: int = 0
) -> tuple[list[Pool], Jury]:
    """Images with honest answers for students to learn from, and a third of the held-out images, chosen by `seed`, to
    judge them.

    The answers are those that clients get: the model's own, rounded as the policy rounds them.
    """
    x, answers, labels = _ask(bundle, held_out, show, "held-out images")
    order = np.random.default_rng(seed).permutation(len(x))
    judging, learning = np.split(order, [max(1, round(len(x) * JURY))])
    jury = Jury(x[judging], answers[judging].argmax(1), None if labels is None else labels[judging])
    pools = [
        Pool("held-out", x[learning], answers[learning]),
        Pool("training", *_ask(bundle, train, show, "training images")[:2]),
    ]
    if foreign is not None:
        pools.append(Pool("foreign", *_ask(bundle, foreign, show, "foreign images")[:2]))
    return pools, jury


@torch.inference_mode()
def _ask(bundle: Bundle, data: Images, show: Progress, stage: str) -> tuple[Array, Array, Array | None]:
    """Images (n, ...) in float32, the honest answers (n, K) that clients get to them, and labels (n,) if there are."""
    like, xs, answers, labels = bundle.probe.x, [], [], list[Tensor]()
    for raw, y in show.each(stage, image_batches(data), count_batches(data)):
        x = inputs.to(inputs.check(raw, like), bundle.probe.logits.device)
        check_images(
            x.shape[1:] if isinstance(x, Tensor) else (), is_float=isinstance(x, Tensor) and x.is_floating_point()
        )
        _, logits = bundle.split(x)
        said = logits.float().softmax(1)
        answers.append((said if bundle.digits is None else round_answers(said, bundle.digits)).cpu())
        xs.append(inputs.tensors(x)["x"].float().cpu())
        labels += [] if y is None else [y.cpu()]
    if not xs:
        raise EmptyBatchError(f"the data holds no images ({stage})")
    known = torch.cat(labels).numpy() if labels else None
    return torch.cat(xs).numpy(), torch.cat(answers).numpy(), known


def limit_copies(bundle: Bundle, max_copy: float) -> Bundle:
    """The bundle with limits under which no reference student of its price reaches `max_copy`."""
    curve, classes = stored_curve(bundle), bundle.geometry.classes
    if curve is None:
        raise OptionError("max_copy needs a price: measure it first, protect(..., price=True) or queen price")
    check_policy_bounds_copies(bundle.policy, bundle.sentinel, observe=bundle.observe)
    limited = bundle.with_options(limits=limits_for(most_answers(curve, max_copy, classes), classes))
    return replace(limited, report=limited.report | {"max_copy": max_copy})
