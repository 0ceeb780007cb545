"""DisGUIDE: a thief without images has a generator make them, where two thieves disagree.

The generator turns noise into images and learns to make two thieves disagree about them, and to make them name all
classes alike often. What it makes is asked. The thieves learn from the new answers and, so that they do not forget,
from random ones of those before. The first thief, trained on all that was asked, goes with the transcript, which holds
the last `data_free_replay` answers only: millions of images fit into no memory.
"""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from queen.attacks.base import Attack, BudgetError, CountedOracle, Knowledge, Transcript
from queen.core.split import run_model
from queen.errors import ShapeError
from queen.training.compiled import Loss, compile_if_worth_it
from queen.training.repeated_step import RepeatedStep
from queen.training.schedule import Schedule
from queen.zoo import seeded

NOISE = 256  # numbers that an image is made from
DIVERSITY = 0.2  # weight of naming all classes alike often, against disagreement


def data_free(
    oracle: CountedOracle, attack: Attack, knowledge: Knowledge, budget: int, generator: torch.Generator
) -> Transcript:
    """Ask for what a generator makes until the budget is spent, or until a whole batch is refused: no more to learn."""
    sizes, pool = knowledge.sizes, knowledge.pool
    if budget < 1 or attack.cost(sizes) != 1:
        raise BudgetError(
            f"the data-free attack needs a budget of at least 1 and an attack that asks once an image, got a budget of "
            f"{budget} and {attack.cost(sizes)} queries an image"
        )
    if pool.ndim != 4:
        raise ShapeError(
            f"the data-free attack makes images (n, channels, height, width), got a pool of {tuple(pool.shape)}"
        )
    replay = Replay(max(sizes.data_free_batch, min(sizes.data_free_replay, budget)), knowledge)
    rounds = ceil(budget / sizes.data_free_batch)
    duel, asked = Duel(knowledge, replay, rounds * sizes.data_free_steps, generator), 0
    with seeded(generator):  # noise and rows are drawn where the images are, from the global random state
        while asked < budget:
            images = duel.make_images()[: budget - asked]
            new = attack.ask(oracle, images, knowledge, generator)
            asked += len(images)
            if len(new) == 0:
                break
            replay.add(new, attack.believe(new, knowledge, generator).answers)
            duel.train_thieves(len(new))
    return replay.transcript(duel.thieves[0].eval())


class Replay:
    """The last answers: images, what was answered and what the attack believes of it, in tensors that stay in place."""

    def __init__(self, room: int, knowledge: Knowledge) -> None:
        pool = knowledge.pool
        self.x = pool.new_zeros(room, *pool.shape[1:])
        self.answers, self.beliefs = pool.new_zeros(2, room, knowledge.classes)
        self.total = 0

    def __len__(self) -> int:
        return min(self.total, len(self.x))

    def add(self, new: Transcript, beliefs: Tensor) -> None:
        """Remember a transcript, in place of the oldest answers where there is no more room."""
        self.total += len(new)
        rows = self.newest(len(new))
        self.x[rows], self.answers[rows], self.beliefs[rows] = new.x, new.answers, beliefs

    def newest(self, count: int) -> Tensor:
        """The rows of the last `count` answers, the oldest first."""
        return torch.arange(self.total - count, self.total, device=self.x.device) % len(self.x)

    def transcript(self, thief: nn.Module) -> Transcript:
        """All answers in it, in the order they were asked, and the thief that learned from these and earlier ones."""
        rows = self.newest(len(self))
        return Transcript(self.x[rows], self.answers[rows], thief=thief, forgotten=self.total - len(self))


class Duel:
    """A generator that looks for what two thieves disagree about, and the thieves, who learn the answers to that.

    The thieves learn as fast as `knowledge.schedule` says, in `steps` steps.
    """

    def __init__(self, knowledge: Knowledge, replay: Replay, steps: int, generator: torch.Generator) -> None:
        sizes, schedule, device = knowledge.sizes, knowledge.schedule, replay.x.device
        shape = replay.x.shape[1:]
        with seeded(generator):
            painter = Painter(shape, sizes.data_free_width)
        self.painter = painter.to(device)
        self.thieves = nn.ModuleList([knowledge.make_thief(generator) for _ in range(2)]).to(device)
        for network in (self.painter, self.thieves):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._replay, self._batch, self._steps = replay, sizes.data_free_batch, sizes.data_free_steps
        self._clip, self._images = schedule.clip, replay.x.new_zeros(self._batch, *shape)
        on_gpu = device.type == "cuda"
        self._painter_optimiser = torch.optim.Adam(
            self.painter.parameters(), sizes.data_free_rate, fused=on_gpu or None, capturable=on_gpu
        )
        self._thief_optimiser = _make_optimiser(self.thieves, schedule, device)
        self._rates = torch.optim.lr_scheduler.LambdaLR(self._thief_optimiser, lambda step: schedule.rate(step, steps))
        self._loss = _answer_loss(self.thieves)
        if on_gpu and schedule.record:
            self._loss = compile_if_worth_it(self._loss, self.thieves, (self._batch, *shape), steps)
        self._paint = RepeatedStep(self._painter_step, record=schedule.record)
        self._learn = RepeatedStep(self._thief_step, record=schedule.record)

    def make_images(self) -> Tensor:
        """Train the generator by one step, and let it make a batch of images (n, ...)."""
        self.thieves.eval()
        self._paint(*torch.randn(2, self._batch, NOISE, device=self._images.device))
        return self._images.clone()  # the next step overwrites it

    def train_thieves(self, count: int) -> None:
        """Train both thieves on the last `count` answers, then on random ones of the replay."""
        self.thieves.train()
        device = self._images.device
        new = self._replay.newest(count)[torch.arange(self._batch, device=device) % count]  # always a whole batch
        self._learn(new)
        self._rates.step()
        for _ in range(self._steps - 1):
            self._learn(torch.randint(len(self._replay), (self._batch,), device=device))
            self._rates.step()

    def _painter_step(self, noise: Tensor, other_noise: Tensor) -> None:
        self._painter_optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=noise.is_cuda):
            images = self.painter(noise)
            guesses = torch.stack([run_model(thief, images).float().softmax(1) for thief in self.thieves])
        painter_loss(guesses).backward(inputs=list(self.painter.parameters()))  # type: ignore[no-untyped-call]
        self._painter_optimiser.step()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=noise.is_cuda):
            self._images.copy_(self.painter(other_noise))

    def _thief_step(self, rows: Tensor) -> None:
        self._thief_optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=rows.is_cuda):
            loss = self._loss(self._replay.x[rows], self._replay.beliefs[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            for thief in self.thieves:
                nn.utils.clip_grad_norm_(thief.parameters(), self._clip)
        self._thief_optimiser.step()


def painter_loss(guesses: Tensor) -> Tensor:
    """How little thieves disagree, given their probabilities (2, n, K) for n images, and how unequal the classes are.

    Disagreement is the standard deviation over thieves; classes are equal if the mean guess has the highest entropy.
    """
    classes = guesses.mean((0, 1)).clamp(min=1e-6)  # a class that nobody names has an endless slope
    disagreement, evenness = guesses.std(0).mean(), torch.special.entr(classes).sum()
    loss: Tensor = -(disagreement + DIVERSITY * evenness)
    return loss


class Painter(nn.Module):
    """The generator: noise (n, NOISE) -> images (n, C, H, W) in 0..1, from a quarter of their size in two doublings."""

    def __init__(self, shape: torch.Size, width: int) -> None:
        super().__init__()
        channels, self._height, self._width = shape
        self._small = (2 * width, ceil(self._height / 4), ceil(self._width / 4))
        self.start = nn.Linear(NOISE, prod(self._small))
        self.blocks = nn.Sequential(
            nn.BatchNorm2d(2 * width), nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2),
            nn.Conv2d(width, channels, 3, padding=1), nn.BatchNorm2d(channels, affine=False),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        """Noise -> images."""
        maps: Tensor = self.blocks(self.start(noise).view(-1, *self._small))
        return maps[:, :, : self._height, : self._width].float().sigmoid()


def _answer_loss(thieves: nn.ModuleList) -> Loss:
    """The loss of images and targets (n, K): the sum of all thieves' cross-entropies."""

    def loss_of(x: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([F.cross_entropy(run_model(thief, x).float(), targets) for thief in thieves]).sum()

    return loss_of


def _make_optimiser(thieves: nn.Module, schedule: Schedule, device: torch.device) -> torch.optim.SGD:
    return torch.optim.SGD(
        thieves.parameters(),
        lr=torch.tensor(schedule.lr, device=device),  # a recorded step reads a tensor
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        fused=device.type == "cuda" or None,
    )
