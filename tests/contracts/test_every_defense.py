"""What every registered defense keeps, whatever its name: looped over the registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from queen.bench.datasets import digits
from queen.cache import Cache
from queen.defenses import DEFENSES, find_defense
from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim
from queen.defenses.detectors.base import DetectorEndpoint
from queen.errors import OptionError, QueenError, RefusedError
from queen.training import Schedule, train
from queen.zoo import build, seeded

torch.set_num_threads(1)  # for networks this small a second thread only waits

SAME = 1e-5  # through a network, whose rounding depends on the size of a batch
STEEP = 1e-3  # a map that switches at a confidence makes more of that rounding, for the few rows just there
TRAIN, CALIBRATION = 900, 400
# Where a defense has them: digits then meet all four verdicts, and all detectors judge within a client's life.
LIMITS = {"radius": 0.2, "threshold": 0.02, "life": 200}
SMALL = {"queen-artifact": {"shadow_kind": "small_cnn", "shadow_models": 2}}  # ten large networks would take a minute
EVERY = pytest.mark.parametrize("name", DEFENSES)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def make_network(generator: torch.Generator) -> torch.nn.Module:
    with seeded(generator):
        return build("small_cnn", classes=10, grid=2)


@pytest.fixture(scope="module")
def victim(tmp_path_factory) -> Victim:
    """A small network that is right most of the time, with images it has not seen to calibrate with."""
    x, y = digits()
    schedule = Schedule(epochs=3, lr=0.1, batch=32)
    model = train(make_network(seed()), x[:TRAIN], y[:TRAIN], schedule, seed())
    calibration = (x[TRAIN : TRAIN + CALIBRATION], y[TRAIN : TRAIN + CALIBRATION])
    cache = Cache(tmp_path_factory.mktemp("cache"))
    return Victim(model, (x[:TRAIN], y[:TRAIN]), make_network, schedule, calibration, cache=cache)


@pytest.fixture(scope="module")
def queries() -> Tensor:
    """Unseen digits, noise that the victim is unsure of, a digit again, and nothing at all."""
    x = digits()[0][TRAIN + CALIBRATION :][:120]
    noise = torch.rand(60, 1, 8, 8, generator=seed(1))
    return torch.cat([x, (x[:60] + noise) / 2, noise, x[:1], x[:1], torch.zeros_like(x[:1])])


def options(defense: Defense) -> dict[str, object]:
    return {name: value for name, value in LIMITS.items() if name in defense.options}


def start(name: str, victim: Victim, number: int = 0, **changes: object) -> Endpoint:
    return DEFENSES[name].start(victim, seed(number), **{**options(DEFENSES[name]), **SMALL.get(name, {}), **changes})


def ask(oracle: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """Answers to x in batches; a refused row holds what the refusal says."""

    def ask_batch(part: Tensor) -> Tensor:
        try:
            return oracle(part)
        except RefusedError as refusal:
            return refusal.reply.probabilities

    return torch.cat([ask_batch(part) for part in x.split(batch)])


def on_simplex(answers: Tensor) -> bool:
    return bool((answers >= 0).all() and ((answers.double().sum(-1) - 1).abs() < 1e-5).all())


def unique_top(y: Tensor) -> Tensor:
    first, second = y.topk(2, dim=1).values.T
    return first > second


def awkward(queries: int = 200) -> Tensor:
    """Probabilities (n, 10) sharp and flat, with ties, zeros and ones."""
    scales = torch.logspace(-2, 1.3, queries)[:, None]
    drawn = (scales * torch.randn(queries, 10, generator=seed(5))).softmax(1)
    tied = torch.tensor([[0.5, 0.5] + [0.0] * 8, [0.1] * 10, [1.0] + [0.0] * 9, [0.0] * 8 + [0.3, 0.7]])
    return torch.cat([drawn, tied])


# The answers themselves


@EVERY
def test_answers_are_finite_and_on_the_simplex_unless_declared(name, victim, queries):
    answers = ask(start(name, victim).client("a"), queries, 64)
    assert answers.shape == (len(queries), 10)
    assert answers.isfinite().all()
    assert answers.dtype == torch.float32
    assert on_simplex(answers) or not DEFENSES[name].on_simplex
    assert not answers.requires_grad


def test_an_exception_from_the_simplex_is_declared_only_where_it_is_needed(victim, queries):
    """A negative control: every defense that declares itself off the simplex really leaves it."""
    declared = [name for name, defense in DEFENSES.items() if not defense.on_simplex]
    assert declared
    assert not any(on_simplex(ask(start(name, victim).client("a"), queries, 64)) for name in declared)


def alike(name: str, victim: Victim, x: Tensor, *batches: int) -> list[Tensor]:
    """The same stream to as many new clients, in batches of other sizes."""
    return [ask(start(name, victim).client("a"), x, batch) for batch in batches]


@EVERY
def test_the_size_of_a_batch_does_not_matter(name, victim, queries):
    whole, rows, odd = alike(name, victim, queries, len(queries), 1, 37)
    for other in (rows, odd):
        gaps = (whole - other).abs().amax(1)
        assert gaps.quantile(0.99) <= SAME
        assert gaps.max() <= STEEP


def pure(name: str, victim: Victim) -> MappedEndpoint | None:
    endpoint = start(name, victim)
    return endpoint if isinstance(endpoint, MappedEndpoint) and "x" not in DEFENSES[name].needs else None


@EVERY
def test_a_pure_map_gives_every_row_exactly_what_it_gives_the_batch(name, victim):
    endpoint, y = pure(name, victim), awkward()
    if endpoint is None:
        assert DEFENSES[name].stateful or "x" in DEFENSES[name].needs  # or it would be a map of probabilities alone
        return
    for dtype in (torch.float32, torch.float64):
        typed, x = y.to(dtype), torch.zeros(len(y), 1, 8, 8)
        whole = endpoint.perturb(typed, x)
        rows = torch.cat([endpoint.perturb(row[None], x[:1]) for row in typed])
        assert torch.equal(whole, rows)
        assert whole.dtype == dtype
        backwards = endpoint.perturb(typed.flip(0), x).flip(0)
        assert torch.equal(whole, backwards)


@EVERY
def test_an_equal_start_gives_equal_answers_bit_for_bit(name, victim, queries):
    first, second = (ask(start(name, victim, 3).client("a"), queries, 64) for _ in range(2))
    assert torch.equal(first, second)


@EVERY
def test_the_cache_changes_no_answer(name, victim, queries):
    """Attackers rebuild defenses without a cache, and a second process takes from it what the first one made."""
    small = replace(victim, train=(victim.train[0][:300], victim.train[1][:300]))
    quick = {"map_epochs": 5} if "map_epochs" in DEFENSES[name].options else {}
    without, making, taking = (
        ask(start(name, replace(small, cache=cache), 3, **quick).client("a"), queries, 64)
        for cache in (None, small.cache, small.cache)
    )
    assert torch.equal(making, taking)
    assert (making - without).abs().max() <= SAME


@EVERY
def test_the_model_is_left_alone(name, victim, queries):
    before = {key: value.clone() for key, value in victim.model.state_dict().items()}
    ask(start(name, victim).client("a"), queries, 64)
    assert all(torch.equal(before[key], value) for key, value in victim.model.state_dict().items())
    assert not victim.model.training


@EVERY
def test_the_top_label_is_kept_as_promised(name, victim, queries):
    keeps = DEFENSES[name].keeps_label
    assert keeps in ("always", "ties", "no")
    clean, answers = victim.clean(queries), ask(start(name, victim).client("a"), queries, 64)
    answered = (answers != 1 / answers.shape[1]).any(1) | (keeps == "no")  # a refused row breaks no promise
    assert keeps_promise(keeps, clean[answered], answers[answered])
    endpoint = pure(name, victim)
    if endpoint is not None:  # also on rows that no network says
        y = awkward()
        assert keeps_promise(keeps, y, endpoint.perturb(y, torch.zeros(len(y), 1, 8, 8)))


def keeps_promise(keeps: str, clean: Tensor, answers: Tensor) -> bool:
    rows = unique_top(clean)
    assert rows.sum() > 100
    labels = clean.argmax(1)
    if keeps == "always":
        return bool((answers.argmax(1) == labels)[rows].all())
    if keeps == "ties":
        return bool((answers.gather(1, labels[:, None])[:, 0] == answers.amax(1))[rows].all())
    return True


def test_the_promise_could_be_broken(victim, queries):
    clean = victim.clean(queries)
    assert not keeps_promise("always", clean, clean.roll(1, 1))
    assert not keeps_promise("ties", clean, clean.roll(1, 1))
    assert keeps_promise("ties", clean, torch.ones_like(clean))


@EVERY
def test_honest_answers_are_counted_and_simulations_are_not(name, victim, queries):
    endpoint = start(name, victim)
    assert sum(endpoint.verdicts.values()) == 0
    answers = ask(endpoint.client("a"), queries, 64)
    counted = dict(endpoint.verdicts)
    endpoint.simulate(victim.clean(queries), queries, seed(7))
    assert dict(endpoint.verdicts) == counted
    assert 0 <= counted["honest"] <= len(queries) - counted.get("refused", 0)
    if isinstance(endpoint, MappedEndpoint):
        assert counted["honest"] == ((answers - victim.clean(queries)).abs().amax(1) <= SAME).sum()
    ask(endpoint.client("b"), queries, 64)
    assert endpoint.verdicts["honest"] == 2 * counted["honest"]  # everybody starts alike


# What a defense declares to need


@EVERY
def test_only_those_that_say_so_look_at_the_query(name, victim, queries):
    decoys = {"on_alarm": "decoy"} if "on_alarm" in DEFENSES[name].options else {}  # a refusal would show nothing
    endpoint, clean = start(name, victim, **decoys), victim.clean(queries)
    answers = endpoint.simulate(clean, queries, seed(7))
    others = endpoint.simulate(clean, queries.flip(0), seed(7))
    looks = not torch.equal(answers, others) or isinstance(endpoint, DetectorEndpoint)  # those look whom to refuse
    assert looks == ("x" in DEFENSES[name].needs)


@EVERY
def test_missing_calibration_images_are_a_clear_error(name, victim, queries):
    blind = replace(victim, calibration=None)
    if "calibration" in DEFENSES[name].needs:
        with pytest.raises(QueenError, match=r"calibrat|held.out"):
            start(name, blind)
    else:
        assert ask(start(name, blind).client("a"), queries[:5], 5).isfinite().all()


# What an attacker may simulate


@EVERY
def test_a_simulation_has_states_and_is_on_the_simplex_unless_declared(name, victim, queries):
    clean = victim.clean(queries)
    answers = start(name, victim).simulate(clean, queries, seed(7))
    assert answers.ndim == 3
    assert answers.shape[0] >= 1
    assert answers.shape[1:] == clean.shape
    assert answers.isfinite().all()
    assert on_simplex(answers) or not DEFENSES[name].on_simplex
    assert torch.equal(answers, start(name, victim).simulate(clean, queries, seed(7)))


@EVERY
def test_a_simulation_changes_no_state(name, victim, queries):
    quiet, busy = start(name, victim), start(name, victim)
    undisturbed, disturbed = quiet.client("a"), busy.client("a")
    for part in queries.split(80):
        assert torch.equal(ask(disturbed, part, 40), ask(undisturbed, part, 40))
        busy.simulate(victim.clean(queries), queries, seed(7))


@EVERY
def test_a_simulation_of_a_defense_without_memory_is_what_a_client_is_told(name, victim, queries):
    endpoint = start(name, victim)
    simulated = endpoint.simulate(victim.clean(queries), queries, seed(7))
    answers = ask(endpoint.client("a"), queries, len(queries))
    if not DEFENSES[name].stateful:
        assert torch.equal(simulated, answers[None])
        again = ask(endpoint.client("a"), queries, len(queries))
        assert torch.equal(again, answers)  # nothing is remembered
        assert torch.equal(ask(endpoint.client("b"), queries, len(queries)), answers)


@EVERY
def test_clients_do_not_see_each_other(name, victim, queries):
    endpoint = start(name, victim)
    alone = ask(start(name, victim).client("b"), queries, 64)
    ask(endpoint.client("a"), queries, 64)
    beside = ask(endpoint.client("b"), queries, 64)
    assert (alone.argmax(1) == beside.argmax(1)).float().mean() > 0.5  # names may enter a defense's secret
    assert torch.equal(beside, alone)


# Options


@EVERY
def test_options_have_names_and_defaults(name):
    defense = find_defense(name)
    assert defense is DEFENSES[name]
    assert inspect.Parameter.empty not in defense.options.values()
    parameters = list(inspect.signature(defense.build).parameters.values())[2:]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)


@EVERY
def test_an_unknown_option_names_the_known_ones_and_the_nearest(name, victim):
    known = DEFENSES[name].options
    with pytest.raises(OptionError, match="no option 'zzz'; known: ") as refused:
        DEFENSES[name].start(victim, seed(), zzz=1)
    assert all(option in str(refused.value) for option in known)
    for option in known:
        with pytest.raises(OptionError, match=f"no option '{option}x'.*did you mean '{option}'"):
            DEFENSES[name].start(victim, seed(), **{f"{option}x": known[option]})


def test_an_unknown_defense_names_the_known_ones_and_the_nearest():
    for name in DEFENSES:
        with pytest.raises(OptionError, match=f"no defense '{name}z'; known: .*did you mean '{name}'"):
            find_defense(f"{name}z")
