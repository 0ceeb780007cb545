"""The sentinel through real guards: an MLP on digits, calibrated on 900 held-out ones, and clients of all kinds."""

from __future__ import annotations

from functools import cache
from math import inf, pi

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from queen import Guard, calibrate, load, protect
from queen.core.perturb import reverse_gradient
from queen.core.shadows import draw_mean
from queen.errors import CalibrationError, ClientError, OptionError, QueenError, RangeError, RefusedError
from queen.ledger import Judgement, MemoryLedger, SqliteLedger
from queen.options import SCORES, Group, Limits, Sentinel
from queen.secret import draw, query_digests
from queen.sentinel.rounding import round_answers
from queen.sentinel.runtime import SentinelRuntime
from queen.types import Reply
from tests.reference.bets import Player, lanes_of
from tests.reference.judge import judge_stream
from tests.support.guards import QUICK, SECRET, digits, fitted, make_mlp, on_simplex, queries, train

TRAIN, KNOWN = slice(0, 600), slice(600, 1500)
WIDE = Limits(threshold=100.0, extra_answers=10**6)  # nobody runs out
TIGHT = Limits(radius=0.3, threshold=0.1, extra_answers=25)


@cache
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(make_mlp(), digits()[0][TRAIN], digits()[1][TRAIN], epochs=20).eval()


def fit(**options) -> Guard:
    x, y = digits()
    usual = {"calibration": (x[KNOWN], y[KNOWN]), "policy": "sentinel", "limits": WIDE, "mapping": QUICK}
    return protect(model(), (x[TRAIN], y[TRAIN]), secret=SECRET, progress=False, **(usual | options))


@cache
def _guard() -> Guard:
    return fit(factory="tests.support.guards:make_mlp")


def guard(**options) -> Guard:
    """Fitted once, asked by nobody yet; answers are not rounded unless a test says so."""
    return _guard().fresh(**({"digits": None} | options))


def benign() -> Tensor:
    return digits()[0][1500:]


def noise(rows: int = 150, seed: int = 0) -> Tensor:
    return torch.rand(rows, 64, generator=torch.Generator().manual_seed(seed))


def shuffled_pixels() -> Tensor:
    return benign()[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))]


def logits_of(x: Tensor) -> Tensor:
    """The undefended model."""
    network = model()
    with torch.no_grad():
        return network(x)


def honest(x: Tensor) -> Tensor:
    return logits_of(x).softmax(1)


def scores_of(g: Guard, x: Tensor) -> dict[str, Tensor]:
    """Every score by its definition, in doubles."""
    bundle = g.bundle
    with torch.inference_mode():
        features, logits = (t.double() for t in bundle.split(x))
        points = bundle.geometry.relative(bundle.mapping(features.float()), logits.argmax(1)).double()
    reference = bundle.reference.axes.double() @ bundle.reference.coordinates.double()
    cosines = nn.functional.normalize(features) @ reference
    return {
        "energy": -logits.logsumexp(1),
        "distance": points.norm(dim=1).log(),
        "confidence": (1 - logits.softmax(1).amax(1)).log(),
        "knn": (1 - cosines.sort(1, descending=True).values[:, 1]).log(),
    }


def wealth_by_definition(g: Guard, x: Tensor) -> list[float]:
    """The wealth of a client after each of these queries, if every one places a bet."""
    known, settings = g.bundle.calibration, g.bundle.sentinel
    count, player, history = len(settings.scores), Player(len(settings.scores)), []
    usual = {
        (name, k): known.scores[known.labels == k, SCORES.index(name)].tolist() for name in SCORES for k in range(10)
    }
    shift = {one: settings.margin * float(np.subtract(*np.quantile(usual[one], [0.75, 0.25]))) / 1.35 for one in usual}
    scores = scores_of(g, x)
    for row, label in enumerate(logits_of(x).argmax(1).tolist()):
        keys = [(name, label) for name in settings.scores]
        lanes = [lanes_of(usual[key], scores[key[0]][row].item(), shift[key]) for key in keys]
        player.play(row, label, lanes, bar=inf)
        history.append(max(sum(map(sum, of_score)) for of_score in player.purses) / (10 * count))
    return history


def first_alarm(g: Guard, x: Tensor, alpha: float = 1e-3, delta: float = 0.05) -> int | None:
    """The query at which wealth reaches the bar of a ledger's first calibration."""
    bar = pi**2 / 6 / (alpha * delta)
    return next((i for i, wealth in enumerate(wealth_by_definition(g, x)) if wealth >= bar), None)


def ask(g: Guard, x: Tensor, client: str = "a", **options) -> Reply:
    """The reply, also where some rows are refused."""
    try:
        return g.answer(x, client=client, **options)
    except RefusedError as error:
        return error.reply


def accused(client: str = "a", **options) -> Guard:
    """A guard that has accused a client."""
    g = guard(**options)
    assert ask(g, noise(), client).alarmed[-1]
    return g


# Fitting.


class Untouchable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the model was run")


def test_without_calibration_nothing_is_even_begun():
    with pytest.raises(CalibrationError, match="held-out images"):
        protect(Untouchable(), (None, None), policy="sentinel")
    with pytest.raises(CalibrationError, match="calibration='train'"):
        fitted("network").with_options(policy="sentinel")


def test_training_images_will_do_if_asked_for_but_then_there_is_no_certificate():
    g = fit(calibration="train")
    assert not g.bundle.calibration.certified
    assert g.bundle.statement.startswith("No certificate")
    assert any("trained the model, so there is no certificate" in w for w in g.report["warnings"])
    assert g.report["calibration_images"] == 600
    assert ask(g, noise(400)).alarmed.any()  # it works all the same
    assert "With confidence 0.95" in _guard().bundle.statement
    assert not any("certificate" in w for w in _guard().report["warnings"])


def test_a_calibration_nobody_knows_is_refused():
    with pytest.raises(OptionError, match="'train'"):
        fit(calibration="test")


def test_alpha_and_other_settings_are_taken_from_protect():
    g = fit(alpha=0.01, sentinel=Sentinel(alpha=0.5, on_alarm="refuse", margin=0.4))
    assert (g.bundle.sentinel.alpha, g.bundle.sentinel.on_alarm, g.bundle.sentinel.margin) == (0.01, "refuse", 0.4)
    assert "at most 0.01" in g.bundle.statement


def test_the_report_tells_how_many_simulated_clients_were_accused():
    assert _guard().report["alarm_rates"] == {"clean": 0.0}


# Benign clients.


@pytest.mark.parametrize("size", [1, 7, 64, 297])
def test_benign_answers_are_the_models_own_to_the_last_bit(size):
    g = guard()
    for batch in benign().split(size):
        reply = g.answer(batch, client="a")
        assert torch.equal(reply.probabilities, honest(batch))
        assert not reply.alarmed.any()
        assert not reply.refused.any()


def test_answers_can_be_trained_on():
    answers = guard().answer(benign()[:4], client="a").probabilities
    assert not answers.is_inference()


def highest_scoring() -> Tensor:
    """Of every predicted class the benign image that looks most foreign."""
    logits = logits_of(benign())
    scores, labels = -logits.logsumexp(1), logits.argmax(1)
    rows = [int(torch.where(labels == k, scores, -torch.inf).argmax()) for k in labels.unique()]
    return benign()[rows]


def jittered(x: Tensor, rows: int, size: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return x + size * (2 * torch.rand(rows, *x.shape[1:], generator=generator) - 1)


@pytest.mark.parametrize("size", [0.0, 1e-3], ids=["exact", "jittered"])
def test_trap_3_a_retry_loop_on_an_odd_picture_never_accuses(size):
    retried = [jittered(x[None], 200, size) for x in highest_scoring()]
    g = guard()
    for loop in retried:
        assert not ask(g, loop).alarmed.any()
    plain = [first_alarm(g, loop) for loop in retried]
    assert sum(index is not None for index in plain) >= 3  # had every retry bet, some would stand accused


def test_trap_3_a_retry_loop_in_small_batches_never_accuses_either():
    g, odd = guard(), highest_scoring()
    for _ in range(60):
        assert not ask(g, odd).alarmed.any()
    wealth = g.ledger.standing("a").wealth
    ask(g, odd)
    assert g.ledger.standing("a").wealth == wealth
    assert g.ledger.standing("a").queries == 61 * len(odd)


def test_trap_3_different_pictures_all_bet():
    """None is taken for a repeat: skipping those in the middle would leave the odd ones to bet."""
    g = guard()
    ask(g, benign())
    assert g.ledger.standing("a").wealth == pytest.approx(wealth_by_definition(g, benign())[-1], rel=1e-4)


# Foreign queries and what follows.


@pytest.mark.parametrize("foreign", [noise, shuffled_pixels])
@pytest.mark.parametrize("alpha", [1e-3, 0.05])
def test_foreign_queries_raise_the_alarm_where_the_evidence_says(foreign, alpha):
    g, x = guard(alpha=alpha), foreign()
    reply = ask(g, x)
    first = first_alarm(g, x, alpha)
    assert first is not None
    assert reply.alarmed.tolist() == [False] * first + [True] * (len(x) - first)
    [event] = g.ledger.events()
    assert (event.what, event.name, event.client) == ("alarm", "a", "a")
    assert event.wealth >= g.bar == pytest.approx(pi**2 / 6 / (alpha * 0.05))


def test_only_the_accused_client_is_accused():
    g = accused("thief")
    assert not ask(g, benign(), "other").alarmed.any()
    assert ask(g, benign()[:5], "thief").alarmed.all()


@pytest.mark.parametrize("size", [1, 9, 50])
def test_alarms_do_not_depend_on_how_queries_are_batched(size):
    whole, g = ask(guard(), noise()), guard()
    parts = [ask(g, part) for part in noise().split(size)]
    assert np.array_equal(np.concatenate([p.alarmed for p in parts]), whole.alarmed)
    assert torch.allclose(torch.cat([p.probabilities for p in parts]), whole.probabilities, atol=1e-6)


def before_and_after(on_alarm: str, **options) -> tuple[Guard, Reply, int]:
    """A reply to noise, and where the alarm comes; the answers before it are honest."""
    g = guard(on_alarm=on_alarm, **options)
    reply = ask(g, noise())
    first = int(reply.alarmed.argmax())
    assert 0 < first < 120
    assert reply.alarmed[first:].all()
    assert torch.equal(reply.probabilities[:first], honest(noise())[:first])
    assert on_simplex(reply.probabilities)
    return g, reply, first


def in_bank(g: Guard, answers: Tensor) -> bool:
    """Whether the numbers of every answer are those of a calibration image."""
    known = {row.numpy().tobytes() for row in g.bundle.calibration.answers.sort(1).values}
    return all(row.numpy().tobytes() in known for row in answers.sort(1).values)


def test_decoys_are_numbers_of_calibration_images_in_another_order():
    g, reply, first = before_and_after("decoy")
    found, true = reply.probabilities[first:], honest(noise())[first:]
    assert in_bank(g, found)
    assert not in_bank(g, true[:1])
    assert (found.argmax(1) == true.argmax(1)).double().mean() < 0.35
    assert not reply.refused.any()
    often = true.argmax(1).mode().values
    assert found.argmax(1)[true.argmax(1) == often].unique().numel() >= 4  # no fixed swap of classes


def test_decoys_of_the_same_query_are_the_same_for_all_clients_and_calls():
    g = accused("a", on_alarm="decoy")
    assert ask(g, shuffled_pixels(), "b").alarmed[-1]
    once, twice, other = (ask(g, noise(20, seed=3), client) for client in ("a", "a", "b"))
    assert torch.equal(once.probabilities, twice.probabilities)
    assert torch.equal(once.probabilities, other.probabilities)
    assert not torch.equal(once.probabilities, honest(noise(20, seed=3)))
    alone = ask(g, noise(20, seed=3)[7:8], "b")
    assert torch.equal(alone.probabilities[0], once.probabilities[7])


def test_a_decoy_depends_on_every_bit_of_the_query_and_on_nothing_else_of_it():
    g, x = accused(on_alarm="decoy"), noise(400, seed=3)
    once, shaken = (ask(g, part).probabilities for part in (x, jittered(x, len(x), 1e-6)))
    same = (once.argmax(1) == shaken.argmax(1)).double().mean()
    assert abs(same - 0.1) < 5 * (0.09 / 400) ** 0.5  # as often as by chance


def test_another_secret_gives_other_decoys():
    bundle, x = _guard().bundle.with_options(on_alarm="decoy"), noise()
    one, two = (ask(Guard(bundle, secret=bytes([s]) * 32), x) for s in (1, 2))
    assert np.array_equal(one.alarmed, two.alarmed)
    differ = (one.probabilities != two.probabilities).any(1)
    assert differ[torch.from_numpy(one.alarmed)].double().mean() > 0.9


@pytest.mark.parametrize("keep_label", [False, True])
def test_reversed_answers_are_the_papers_and_never_keep_the_label(keep_label):
    g, reply, first = before_and_after("reverse", keep_label=keep_label)
    x, bundle = noise()[first:], g.bundle
    drawn = draw(query_digests(SECRET, f"{bundle.identity}\0a", x), len(bundle.shadows), bundle.draw)
    with torch.inference_mode():
        pirate = draw_mean(bundle.shadows.probabilities(bundle.split(x)[0], x), drawn)
        expected = reverse_gradient(honest(x), pirate)
    assert torch.allclose(reply.probabilities[first:], expected, atol=1e-5)
    assert not torch.equal(reply.probabilities[first:].argmax(1), honest(x).argmax(1))


def test_labels_alone_are_one_hot_and_right():
    _, reply, first = before_and_after("label-only")
    found = reply.probabilities[first:]
    assert torch.equal(found, nn.functional.one_hot(honest(noise()).argmax(1), 10)[first:].float())


def test_refusing_raises_and_hands_over_the_rows_before_the_alarm():
    g = guard(on_alarm="refuse")
    with pytest.raises(RefusedError, match=r"client 'a' gets no answer to \d+ of 150 queries: accused") as caught:
        g.answer(noise(), client="a")
    reply = caught.value.reply
    assert isinstance(caught.value, QueenError)
    assert np.array_equal(reply.refused, reply.alarmed)
    assert torch.equal(reply.probabilities[~reply.refused], honest(noise())[~reply.refused])
    assert torch.equal(reply.probabilities[reply.refused], torch.full((int(reply.refused.sum()), 10), 0.1))
    with pytest.raises(RefusedError, match="2 of 2"):
        g.as_client("a")(benign()[:2])
    assert torch.equal(g.as_client("b")(benign()[:2]), honest(benign()[:2]))


def test_observing_an_alarm_changes_no_answer():
    g, reply, _ = before_and_after("observe")
    assert torch.equal(reply.probabilities, honest(noise()))
    assert not reply.refused.any()
    assert g.ledger.standing("a").alarmed


def test_a_client_whose_alarm_is_only_observed_still_spends_its_budget():
    g = guard(on_alarm="observe", limits=Limits(threshold=100.0, extra_answers=120))
    reply = ask(g, noise())
    assert 0 < reply.alarmed.argmax() < 100
    records = sum(map(len, g.ledger.records("a").values()))
    assert (~reply.refused).sum() == 120 + records
    assert g.ledger.standing("a").extra_answers == 120


def test_observing_everything_charges_what_it_answers():
    g = guard(observe=True, limits=Limits(threshold=100.0, extra_answers=10**6))
    reply = g.answer(noise(), client="a")
    assert reply.alarmed.any()
    records = sum(map(len, g.ledger.records("a").values()))
    assert g.ledger.standing("a").extra_answers + records == len(noise())


def test_observing_everything_changes_no_answer_either_and_notes_the_alarm():
    g = guard(observe=True, on_alarm="refuse")
    reply = g.answer(noise(), client="a")
    assert torch.equal(reply.probabilities, honest(noise()))
    assert reply.alarmed.any()
    assert [event.what for event in g.ledger.events()] == ["alarm"]


def test_a_pardon_gives_honest_answers_back_and_the_next_attack_is_found_again():
    g = accused()
    g.ledger.pardon("a", "operator")
    reply = ask(g, benign())
    assert not reply.alarmed.any()
    assert torch.equal(reply.probabilities, honest(benign()))
    assert ask(g, noise(300, seed=5)).alarmed.any()


def test_the_allow_list_is_answered_honestly_whatever_it_sends():
    g = accused(limits=TIGHT)
    g.ledger.allow("a", "operator")
    reply = g.answer(noise(), client="a")
    assert torch.equal(reply.probabilities, honest(noise()))


# What a judgement says about the accused.


def judged(count: int, **masks: list[int]) -> Judgement:
    """A judgement of rows of which some are marked, as a ledger might make it."""
    rows = {name: np.isin(np.arange(count), chosen) for name, chosen in masks.items()}
    none = {name: np.zeros(count, np.bool_) for name in ("spent", "alarmed", "trusted")}
    return Judgement("A" * count, **(none | rows))


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("digits", [None, 3])
@pytest.mark.parametrize("on_alarm", ["decoy", "reverse", "label-only", "refuse"])
def test_an_old_question_keeps_its_answer_and_who_is_cut_off_gets_none(on_alarm, digits, uniform):
    g, x = guard(on_alarm=on_alarm, on_spent="decoy", digits=digits), noise(8)
    batch = g.measure(x)
    before = g.reply(batch, judged(8), ["a"] * 8, uniform=uniform)
    judgement = judged(8, alarmed=[2, 3, 4, 5, 6, 7], repeated=[4, 5], cut_off=[6, 7])
    reply = g.reply(batch, judgement, ["a"] * 8, uniform=uniform)
    assert torch.equal(reply.probabilities[[0, 1, 4, 5]], before.probabilities[[0, 1, 4, 5]])
    assert reply.refused.tolist() == [False, False, *[on_alarm == "refuse"] * 2, False, False, True, True]
    assert torch.equal(reply.probabilities[[6, 7]], torch.full((2, 10), 0.1))
    assert not torch.equal(reply.probabilities[[2, 3]], before.probabilities[[2, 3]])


def test_resending_what_was_answered_before_the_alarm_does_not_prove_the_alarm():
    g, x = guard(on_alarm="decoy"), noise()
    first = int(ask(g, x).alarmed.argmax())
    again = ask(g, x[:first])
    assert torch.equal(again.probabilities, honest(x)[:first])
    assert again.alarmed.all()
    assert in_bank(g, ask(g, x[first:]).probabilities)


def test_after_so_many_more_queries_an_accused_client_is_refused():
    g, x = guard(on_alarm="decoy", after_alarm=30), noise()
    reply = ask(g, x)
    first = int(reply.alarmed.argmax())
    assert reply.refused.tolist() == [i >= first + 30 for i in range(len(x))]
    assert ask(g, x[:1]).refused.all()  # even what was answered before the alarm


# Rounded answers.


def test_by_default_answers_have_two_decimals_that_add_up_to_one_and_name_the_same_class():
    g = _guard().fresh()
    found, true = g.answer(benign(), client="a").probabilities, honest(benign())
    assert g.digits == 2
    assert torch.equal(found, round_answers(true, 2))
    assert (found - true).abs().max() < 2e-2
    assert torch.equal(found.argmax(1), true.argmax(1))
    hundredths = (100 * found.double()).round()
    assert torch.equal(hundredths.sum(1), torch.full((len(found),), 100.0, dtype=torch.float64))
    assert torch.equal((hundredths / 100).float(), found)


def test_decoys_and_reversed_answers_have_as_many_decimals():
    for on_alarm in ("decoy", "reverse"):
        reply = ask(guard(on_alarm=on_alarm, digits=2), noise())
        assert reply.alarmed.any()
        assert torch.equal(reply.probabilities, round_answers(reply.probabilities, 2))


def test_the_allow_list_gets_rounded_answers_and_repeats_get_the_same():
    g = guard(digits=1)
    g.ledger.allow("a", "operator")
    once, twice = (g.answer(noise(20), client="a").probabilities for _ in range(2))
    assert torch.equal(once, round_answers(honest(noise(20)), 1))
    assert torch.equal(once, twice)


@pytest.mark.parametrize("options", [{"observe": True}, {"policy": "paper"}, {"policy": "strict"}], ids=str)
def test_who_only_observes_and_other_policies_round_nothing(options):
    g = guard(**({"digits": 3} | options))
    assert g.digits is None
    reply = g.answer(benign()[:1], client="a")
    assert reply.verdicts[0].value in "CA"
    if options == {"observe": True} or reply.verdicts[0].value == "C":
        assert torch.equal(reply.probabilities, honest(benign()[:1]))


def test_the_time_an_answer_takes_cannot_depend_on_the_verdict(monkeypatch):
    """Every row is rounded and has its decoy drawn, whatever becomes of it."""
    g = guard(on_alarm="decoy", digits=3)
    batch, calls = g.measure(noise(6)), list[int]()
    drawn = SentinelRuntime.decoys
    monkeypatch.setattr(
        SentinelRuntime, "decoys", lambda self, bets: calls.append(len(bets.digests)) or drawn(self, bets)
    )
    for judgement in (judged(6), judged(6, alarmed=[1]), judged(6, alarmed=range(6))):
        g.reply(batch, judgement, ["a"] * 6, uniform=True)
    assert calls == [6, 6, 6]


# Budgets.


def spent_by_hand(g: Guard, x: Tensor) -> tuple[str, list[bool]]:
    """Letters and spent rows of distinct benign queries: in a spent class, and A or D without extra answers left."""
    bundle, limits = g.bundle, g.bundle.limits
    with torch.inference_mode():
        u, logits = bundle.split(x)
        labels = logits.argmax(1)
        points = bundle.geometry.relative(bundle.mapping(u), labels)
    letters, closed = judge_stream(labels.tolist(), points.tolist(), limits.radius, limits.threshold)
    extra, spent = 0, []
    for letter, is_closed in zip(letters, closed, strict=True):
        gone = is_closed or (letter in "AD" and extra >= limits.extra_answers)
        extra += letter in "AD" and not gone
        spent.append(gone)
    return letters, spent


@pytest.mark.parametrize("on_spent", ["refuse", "decoy", "reverse"])
def test_whoever_has_spent_its_budget_gets_what_the_operator_chose(on_spent):
    g, x = guard(limits=TIGHT, on_spent=on_spent), benign()
    reply = ask(g, x)
    letters, spent = spent_by_hand(g, x)
    assert set(letters) == set("ABCD")
    gone = np.array(spent)
    assert 0.2 < gone.mean() < 0.95
    assert "".join(v.value for v in reply.verdicts) == letters
    assert torch.equal(reply.probabilities[~gone], honest(x)[~gone])
    assert not reply.alarmed.any()
    assert reply.refused.tolist() == (spent if on_spent == "refuse" else [False] * len(x))
    found, true = reply.probabilities[gone], honest(x)[gone]
    if on_spent == "refuse":
        assert torch.equal(found, torch.full_like(found, 0.1))
    elif on_spent == "decoy":
        assert in_bank(g, found)
        assert (found.argmax(1) == true.argmax(1)).double().mean() < 0.35
    else:
        assert (found - true).abs().amax(1).median() > 0.05
    assert on_simplex(reply.probabilities)


def test_a_refusal_for_want_of_budget_says_so():
    with pytest.raises(RefusedError, match="its budget of honest answers is spent"):
        guard(limits=TIGHT).answer(benign(), client="a")


def test_what_was_answered_once_is_answered_again_and_what_was_refused_stays_refused():
    g, x = guard(limits=TIGHT), benign()
    first, second = ask(g, x), ask(g, x)
    assert first.refused.any()
    assert np.array_equal(first.refused, second.refused)
    assert torch.equal(first.probabilities, second.probabilities)
    assert ask(g, jittered(x, len(x), 1e-3)).refused.mean() > 0.9  # but nearly the same is not the same


def test_honest_answers_stay_below_the_bound_that_is_printed():
    g = guard(limits=Limits(radius=0.5, threshold=0.05, extra_answers=10))
    assert g.report["honest_answers"] == 10 * 1 + 10
    reply = ask(g, torch.cat([benign(), digits()[0][KNOWN]]))
    assert 0 < (~reply.refused).sum() <= 20


# Replies.


@pytest.mark.parametrize("policy", ["paper", "strict", "artifact", "sentinel"])
def test_replies_have_two_masks_of_booleans(policy):
    reply = ask(guard(policy=policy), benign()[:13])
    for mask in (reply.alarmed, reply.refused):
        assert isinstance(mask, np.ndarray)
        assert mask.dtype == np.bool_
        assert mask.shape == (13,)
        assert not mask.any()
    assert len(reply.verdicts) == 13
    assert reply.probabilities.shape == (13, 10)
    assert reply.probabilities.dtype == torch.float32


def test_other_policies_accuse_nobody():
    g = guard(policy="paper")
    assert not ask(g, noise(300)).alarmed.any()
    assert g.ledger.events() == []


# Groups.


def grouped(budget: Limits = WIDE, *, enforce: bool = False, **options) -> Guard:
    groups = {"tenant": Group(limits=budget, enforce_alarm=enforce), "net": Group(limits=WIDE)}
    return guard(groups=groups, **options)


@pytest.mark.parametrize(
    ("groups", "error", "match"),
    [
        (["club:1"], OptionError, "kinds with limits: tenant, net"),
        (["tenant:1", "tenant:2"], OptionError, "at most one group of each kind"),
        ("tenant:1", OptionError, "list of names"),
        (["tenant:1", "tenant:1"], OptionError, "at most one"),
        ([""], ClientError, "1 to 256 bytes"),
        ([7], ClientError, "string"),
    ],
    ids=str,
)
def test_groups_that_make_no_sense_are_refused_before_anything_is_counted(groups, error, match):
    g = grouped()
    with pytest.raises(error, match=match):
        g.answer(benign()[:3], client="a", groups=groups)
    with pytest.raises(error, match=match):
        g.as_client("a", groups=groups)
    assert g.ledger.standings() == []


def test_without_kinds_there_are_no_groups():
    with pytest.raises(OptionError, match="kinds with limits: none"):
        guard().answer(benign()[:3], client="a", groups=["tenant:1"])


def test_a_group_shares_one_budget():
    g = grouped(Limits(extra_answers=60, threshold=100.0))
    first = ask(g, benign()[:100], "a", groups=["tenant:1"])
    second = ask(g, benign()[100:200], "b", groups=["tenant:1"])
    other = ask(g, benign()[100:200], "c", groups=["tenant:2"])
    assert second.refused.sum() > max(first.refused.sum(), other.refused.sum())
    assert not ask(g, benign()[100:200], "d").refused.any()  # no group, no group's budget


def in_turns(g: Guard, clients: int, rows: int) -> list[Reply]:
    """Noise, spread over clients of one tenant, a few rows each."""
    parts = noise(rows, seed=4).split(rows // clients)
    return [ask(g, part, f"c{i}", groups=["tenant:1"]) for i, part in enumerate(parts)]


def test_a_groups_alarm_is_only_reported_unless_it_is_enforced():
    watching, enforcing = grouped(), grouped(enforce=True)
    seen = in_turns(watching, 30, 180)
    assert watching.ledger.standing("tenant:1", group=True).alarmed
    assert not any(reply.alarmed.any() for reply in seen)
    assert torch.equal(torch.cat([r.probabilities for r in seen]), honest_in_parts(noise(180, seed=4), 6))
    caught = in_turns(enforcing, 30, 180)
    assert enforcing.ledger.standing("tenant:1", group=True).alarmed
    assert caught[-1].alarmed.all()
    assert not ask(enforcing, benign()[:9], "c0").alarmed.any()  # outside the group it is a benign client


def honest_in_parts(x: Tensor, size: int) -> Tensor:
    return torch.cat([honest(part) for part in x.split(size)])


@pytest.mark.parametrize(("enforce", "share"), [(False, 1), (True, 2)])
def test_alpha_is_shared_with_groups_that_are_enforced(enforce, share):
    g = grouped(enforce=enforce, alpha=0.01)
    reply = ask(g, noise(), "a", groups=["net:9"])
    assert int(reply.alarmed.argmax()) == first_alarm(g, noise(), 0.01 / share)
    assert g.bundle.sentinel.share == 0.01 / share
    assert "at most 0.01" in g.bundle.statement


def test_a_client_that_is_accused_stops_feeding_its_groups():
    g = grouped()
    ask(g, noise(), "a", groups=["net:9"])
    before = g.ledger.standing("net:9", group=True)
    ask(g, noise(50, seed=7), "a", groups=["net:9"])
    assert g.ledger.standing("net:9", group=True) == before


# Options, folders and ledgers.


def test_options_change_what_happens_and_keep_the_ledger():
    g = guard()
    ask(g, noise())
    changed = g.with_options(alpha=0.2, on_alarm="label-only", on_spent="decoy")
    settings = changed.bundle.sentinel
    assert (settings.alpha, settings.on_alarm, settings.on_spent) == (0.2, "label-only", "decoy")
    assert changed.ledger is g.ledger
    assert g.bundle.sentinel.alpha == 1e-3
    reply = ask(changed, benign()[:5])
    assert reply.alarmed.all()  # who stands accused stays so
    assert torch.equal(reply.probabilities.amax(1), torch.ones(5))
    assert changed.bundle.identity == g.bundle.identity


def test_a_smaller_alpha_waits_longer():
    alarms = [int(ask(guard(alpha=alpha), noise()).alarmed.argmax()) for alpha in (0.1, 1e-3, 1e-6)]
    assert alarms == sorted(alarms)
    assert 0 < alarms[0] < alarms[2]


@pytest.mark.parametrize(
    "changes",
    [{"alpha": 0}, {"alpha": 1}, {"on_alarm": "shout"}, {"on_spent": "observe"}, {"sentinel": {}}, {"beta": 1}],
    ids=str,
)
def test_options_nobody_knows_are_refused(changes):
    with pytest.raises(OptionError):
        guard().with_options(**changes)


def test_settings_of_another_type_are_refused_with_a_shortcut_too():
    with pytest.raises(OptionError, match="Sentinel"):
        guard().with_options(sentinel={}, alpha=0.1)


def stream() -> list[tuple[str, Tensor]]:
    """Benign and odd clients in turn, and repeats."""
    return [
        ("a", benign()[:60]),
        ("b", noise(40)),
        ("a", benign()[40:90]),
        ("b", noise(60, seed=2)),
        ("c", shuffled_pixels()[:80]),
        ("b", benign()[:10]),
        ("c", benign()[:10]),
        ("a", noise(12, seed=3)),
    ]


def same(one: Reply, other: Reply) -> bool:
    masks = np.array_equal(one.alarmed, other.alarmed) and np.array_equal(one.refused, other.refused)
    return masks and one.verdicts == other.verdicts and torch.equal(one.probabilities, other.probabilities)


def test_a_saved_guard_decides_alike_to_the_last_bit(tmp_path):
    groups = {"tenant": Group(limits=Limits(radius=0.1, extra_answers=90), enforce_alarm=True)}
    g = guard(alpha=0.02, on_alarm="reverse", on_spent="decoy", limits=TIGHT, groups=groups)
    g.save(tmp_path / "b")
    again = load(tmp_path / "b")
    assert again.bundle.sentinel == g.bundle.sentinel
    assert again.bundle.statement == g.bundle.statement
    assert again.bundle.identity == g.bundle.identity
    for name in ("labels", "points", "scores", "condition", "answers"):
        assert torch.equal(getattr(again.bundle.calibration, name), getattr(g.bundle.calibration, name))
    assert again.bundle.calibration.tolerance == g.bundle.calibration.tolerance
    for client, x in stream():
        assert same(*(ask(which, x, client, groups=["tenant:1"]) for which in (g, again)))


def test_a_bundle_may_be_loaded_under_other_options(tmp_path):
    _guard().save(tmp_path / "b")
    g = load(tmp_path / "b", alpha=0.05, on_alarm="refuse")
    assert ask(g, noise()).refused.any()
    assert g.bundle.sentinel.alpha == 0.05


@pytest.mark.parametrize("limits", [WIDE, TIGHT], ids=["wide", "tight"])
def test_both_ledgers_reply_alike_and_a_file_remembers(tmp_path, limits):
    bundle = grouped(limits, enforce=True, limits=limits, on_spent="reverse").bundle
    memory = Guard(bundle, ledger=MemoryLedger(), secret=SECRET)
    for client, x in stream():
        ledger = SqliteLedger(tmp_path / "ledger.db")  # opened anew for every call
        stored = Guard(bundle, ledger=ledger, secret=SECRET)
        assert same(*(ask(g, x, client, groups=["tenant:1", "net:2"]) for g in (memory, stored)))
        for name, group in (("a", False), ("b", False), ("tenant:1", True), ("net:2", True)):
            assert ledger.standing(name, group=group) == memory.ledger.standing(name, group=group)
        ledger.close()


@pytest.mark.parametrize(
    "scores", [("knn",), ("confidence",), ("distance",), ("energy", "distance", "confidence", "knn")], ids=str
)
@pytest.mark.parametrize("margin", [0.0, 0.2, 1.0])
def test_every_choice_of_scores_and_margin_bets_as_defined_and_spares_benign_clients(scores, margin):
    g = guard(sentinel=Sentinel(scores=scores, margin=margin))
    ask(g, noise(8))
    assert g.ledger.standing("a").wealth == pytest.approx(wealth_by_definition(g, noise(8))[-1], rel=1e-4)
    if margin:  # these digits are by other writers than the calibration images: without a margin that is evidence
        assert not ask(g, benign(), "b").alarmed.any()


def test_a_wider_margin_waits_longer():
    alarms = [int(ask(guard(sentinel=Sentinel(margin=m)), noise()).alarmed.argmax()) for m in (0.0, 0.5, 1.0)]
    assert alarms == sorted(alarms)
    assert 0 < alarms[0] < alarms[2]


# Recalibration.


def recalibrated(g: Guard, seed: int) -> Guard:
    """The same ledger behind another calibration, on half of the images."""
    x, y = (t[KNOWN] for t in digits())
    half = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:450]
    return calibrate(g, (x[half], y[half]), progress=False)


def test_every_further_calibration_of_a_ledger_spends_less():
    first = guard()
    second, third = recalibrated(first, 1), recalibrated(first, 2)
    before = [g.bar for g in (first, second, third)]
    assert before == [before[0]] * 3  # none has been used yet
    for g in (first, second, third):
        ask(g, benign()[:1])
    bars = [g.bar for g in (first, second, third)]
    assert bars == pytest.approx([before[0], 4 * before[0], 9 * before[0]])
    assert [g.fresh().bar for g in (second, third)] == pytest.approx([bars[0]] * 2)  # a new ledger has seen nothing
    assert first.with_options(policy="paper").bar is None


def test_two_calibrations_in_turn_both_gather_evidence():
    """Servers of a rolling recalibration share a ledger; neither sets the other's wealth back."""
    first = guard()
    second = recalibrated(first, 1)
    alone = int(ask(second.fresh(), noise(300)).alarmed.argmax())
    for x in noise(600).split(2):
        replies = [ask(g, part) for g, part in zip((first, second), x.split(1), strict=True)]
        if any(reply.alarmed.any() for reply in replies):
            break
    assert any(reply.alarmed.any() for reply in replies)
    assert first.ledger.standing("a").queries <= 4 * alone


# Odd corners.


def test_huge_inputs_are_answered_or_refused_by_name():
    g = guard()
    try:
        g.answer(torch.cat([benign()[:3], torch.full((1, 64), 1e37)]), client="a")
    except QueenError:
        assert g.ledger.standings() == []


def test_a_groups_budget_holds_after_its_alarm_where_alarms_change_no_answer():
    budget = Limits(extra_answers=60, threshold=0.0)
    g = grouped(budget, enforce=True, on_alarm="observe")
    given = 0
    for client in range(15):
        reply = ask(g, noise(30, seed=100 + client), f"c{client}", groups=["tenant:1"])
        given += int((~reply.refused).sum())
    assert g.ledger.standing("tenant:1", group=True).alarmed
    assert given <= 60 + 10 * 1  # extra answers, and one record a class


# Tricks.


def test_more_contrast_than_any_image_has_is_refused_before_anything_is_recorded():
    g = fitted("network")
    assert g.bundle.input_range == (0.0, 1.0)
    with pytest.raises(RangeError):
        g.answer(queries("network") * 1.5, client="a")
    assert list(g.ledger.clients()) == []
    assert len(g.fresh(input_range=None).answer(queries("network") * 1.5, client="a").verdicts) == 300


def test_numbers_that_are_no_images_may_be_of_any_size():
    assert guard().bundle.input_range is None


def test_the_range_survives_saving(tmp_path):
    fitted("network").save(tmp_path / "bundle")
    assert load(tmp_path / "bundle").bundle.input_range == (0.0, 1.0)


@pytest.mark.parametrize("span", [(1.0, 0.0), (0.0,), 5, (0.0, torch.inf)], ids=str)
def test_a_range_that_is_none_is_refused(span):
    with pytest.raises(OptionError, match="input_range"):
        fitted("network", input_range=span)
