from __future__ import annotations

import threading
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import queen
from queen import Guard, Verdict, protect
from queen.core.perturb import move_feature, reverse_gradient
from queen.errors import (
    ClientError,
    DtypeError,
    EmptyBatchError,
    LedgerError,
    ModelError,
    NotFiniteError,
    OptionError,
    PolicyError,
    QueenError,
    RangeError,
    SecretError,
    ShapeError,
)
from queen.ledger import MemoryLedger, SqliteLedger
from queen.options import Limits
from queen.secret import draw, query_digests
from queen.types import Reply
from tests.reference.judge import judge_stream
from tests.reference.policies import TABLES
from tests.support.guards import (
    ALL_LETTERS,
    QUICK,
    SECRET,
    fitted,
    held_out,
    on_simplex,
    queries,
    train,
    train_set,
    trained,
)

PAPER_POLICIES = [name for name in TABLES if name != "sentinel"]  # which has tests/test_guard_sentinel.py

KINDS = ["head", "network"]


def look(guard: Guard, x: Tensor) -> tuple[Tensor, Tensor, list[int], list[list[float]]]:
    """Features, logits, labels and relative points of a batch, with the parts of the guard alone."""
    bundle = guard.bundle
    with torch.inference_mode():
        u, logits = bundle.split(x)
        labels = logits.argmax(1)
        points = bundle.geometry.relative(bundle.mapping(u), labels)
    return u, logits, labels.tolist(), points.tolist()


def letters(reply: Reply) -> str:
    return "".join(v.value for v in reply.verdicts)


def state(ledger) -> dict:
    return {name: (ledger.coverage(name), {k: v.tolist() for k, v in ledger.records(name).items()})
            for name in ledger.clients()}  # fmt: skip


def by_hand(guard: Guard, x: Tensor, client: str) -> tuple[str, Tensor]:
    """The whole answer again: brute-force judge, hand-copied policy table, one perturbation at a time."""
    bundle = guard.bundle
    u, logits, labels, points = look(guard, x)
    found, spent = judge_stream(labels, points, bundle.limits.radius, bundle.limits.threshold)
    answers = logits.softmax(1).clone()
    actions = [TABLES[bundle.policy][letter].split()[s] for letter, s in zip(found, spent, strict=True)]
    with torch.inference_mode():
        move = torch.tensor([i for i, a in enumerate(actions) if a == "MOVE"])
        centres = bundle.geometry.feature_centres
        steps = 20 if bundle.policy == "artifact" else None
        answers[move] = move_feature(u[move], logits[move], centres, bundle.split.head(centres), max_steps=steps)
        for i in (i for i, a in enumerate(actions) if a == "REVERSE"):
            one = x[i : i + 1]
            digest = query_digests(SECRET, f"{bundle.identity}\0{client}", one)
            drawn = draw(digest, len(bundle.shadows), bundle.draw)[0]
            pirate = bundle.shadows.probabilities(u[i : i + 1], one)[0, drawn].mean(0)
            target = (2 * pirate - answers[i]).clamp(min=0)
            answers[i] = target / target.sum()
            if bundle.keep_label:
                honest = logits[i : i + 1].softmax(1)
                answers[i] = reverse_gradient(honest, pirate[None], keep_label=True)[0]
    return found, answers


def test_a_guard_says_what_it_is():
    guard = fitted("head")
    text = repr(guard)
    assert f"{type(guard.bundle.split.model).__name__} with {guard.bundle.geometry.classes} classes" in text
    assert all(part in text for part in (f"policy {guard.bundle.policy}", "MemoryLedger", guard.bundle.identity[:12]))
    assert "observes only" in repr(guard.fresh(observe=True))
    assert "observes only" not in text


@pytest.mark.parametrize("keep_label", [False, True])
@pytest.mark.parametrize("policy", PAPER_POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_what_the_method_says(kind, policy, keep_label):
    guard, x = fitted(kind, policy=policy, keep_label=keep_label), queries(kind)
    reply = guard.answer(x, client="a")
    expected_letters, expected = by_hand(guard, x, "a")
    assert letters(reply) == expected_letters
    assert set(expected_letters) == set("ABCD")
    assert torch.allclose(reply.probabilities, expected, atol=1e-6, rtol=0)
    assert on_simplex(reply.probabilities)
    if keep_label:
        assert reply.probabilities.argmax(1).tolist() == look(guard, x)[2]


@pytest.mark.parametrize("kind", KINDS)
def test_honest_rows_are_exactly_the_softmax_and_the_others_are_not(kind):
    guard, x = fitted(kind), queries(kind)
    reply = guard.answer(x, client="a")
    with torch.inference_mode():
        honest = guard.bundle.split(x)[1].softmax(1)
    fresh = torch.tensor([v in (Verdict.FRESH, Verdict.REPEAT) for v in reply.verdicts])
    assert torch.equal(reply.probabilities[fresh], honest[fresh])
    untouched = (reply.probabilities[~fresh] == honest[~fresh]).all(1)
    assert untouched.double().mean() < 0.1  # a walk may end before its first step, where the label would change


def test_feature_perturbation_keeps_every_label():
    guard, x = fitted(), queries()
    reply = guard.answer(x, client="a")
    moved = torch.tensor([v is Verdict.OUTSIDE for v in reply.verdicts])
    assert moved.sum() > 50
    assert torch.equal(reply.probabilities[moved].argmax(1), torch.tensor(look(guard, x)[2])[moved])


def test_the_artifact_walks_a_shorter_way_than_the_paper():
    x = queries()
    answers = {p: fitted(policy=p).answer(x, client="a").probabilities for p in ("paper", "artifact")}
    outside = torch.tensor([v is Verdict.OUTSIDE for v in fitted().answer(x, client="a").verdicts])
    top = {p: a[outside].amax(1) for p, a in answers.items()}
    assert (top["artifact"] >= top["paper"] - 1e-6).all()
    assert (top["artifact"] > top["paper"] + 1e-3).any()


@pytest.mark.parametrize("policy", PAPER_POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_batch_gets_the_identical_answer(kind, policy):
    guard, x = fitted(kind, policy=policy), queries(kind)
    guard.answer(x, client="a")
    second, third = (guard.answer(x, client="a") for _ in range(2))  # the first call made C into D
    assert second.verdicts == third.verdicts
    assert torch.equal(second.probabilities, third.probabilities)
    assert "C" not in letters(second)


@pytest.mark.parametrize("policy", PAPER_POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_one_by_one(kind, policy):
    guard, x = fitted(kind, policy=policy), queries(kind)
    whole = guard.answer(x, client="whole")
    for size in (1, 7):
        other = Guard(guard.bundle, secret=SECRET)
        parts = [other.answer(part, client="whole") for part in x.split(size)]
        assert sum((p.verdicts for p in parts), ()) == whole.verdicts
        assert torch.allclose(torch.cat([p.probabilities for p in parts]), whole.probabilities, atol=1e-6, rtol=0)


def test_the_secret_and_the_client_choose_the_shadows():
    x = queries()
    first = fitted(policy="strict").answer(x, client="a")
    reversed_rows = torch.tensor([v is Verdict.SPENT for v in first.verdicts])
    for guard, client in (
        (fitted(policy="strict"), "b"),
        (Guard(fitted(policy="strict").bundle, secret=b"o" * 32), "a"),
    ):
        other = guard.answer(x, client=client)
        assert other.verdicts == first.verdicts
        same = (other.probabilities == first.probabilities).all(1)
        assert same[reversed_rows].double().mean() < 0.5
    again = Guard(fitted(policy="strict").bundle, secret=SECRET).answer(x, client="a")
    assert torch.equal(again.probabilities, first.probabilities)


def test_a_guard_without_a_secret_makes_its_own():
    x = queries()
    one, two = (Guard(fitted().bundle).answer(x, client="a") for _ in range(2))
    assert one.verdicts == two.verdicts
    assert not torch.equal(one.probabilities, two.probabilities)


def test_observing_answers_honestly_and_counts_all_the_same():
    x = queries()
    watching, acting = fitted(observe=True), fitted()
    seen, acted = watching.answer(x, client="a"), acting.answer(x, client="a")
    with torch.inference_mode():
        assert torch.equal(seen.probabilities, watching.bundle.split(x)[1].softmax(1))
    assert seen.verdicts == acted.verdicts
    assert state(watching.ledger) == state(acting.ledger) != {}


def test_a_client_sees_probabilities_and_nothing_else():
    guard, x = fitted(), queries()
    oracle = guard.as_client("a")
    answer = oracle(x)
    assert type(answer) is Tensor
    assert torch.equal(answer, fitted().answer(x, client="a").probabilities)
    assert list(guard.ledger.clients()) == ["a"]


def test_answers_can_train_another_model():
    thief, x = nn.Linear(64, 10), queries()
    for answers in (fitted().as_client("a")(x), fitted(observe=True).as_client("a")(x)):
        loss = nn.functional.cross_entropy(thief(x), answers)
        loss.backward()
        assert thief.weight.grad.isfinite().all()
        assert not answers.requires_grad


def test_clients_do_not_see_each_other():
    guard, x = fitted(), queries()
    first = guard.answer(x, client="a")
    assert guard.answer(x, client="b").verdicts == first.verdicts
    assert guard.answer(x, client="a").verdicts != first.verdicts


def spoiled(value: float) -> Tensor:
    x = queries(count=3).clone()
    x[1, 5] = value
    return x


BAD_INPUTS = {
    "an array of integers": (np.zeros((2, 64), np.int64), DtypeError),
    "a list": ([[0.0] * 64], DtypeError),
    "None": (None, DtypeError),
    "named tensors": ({"x": torch.zeros(2, 64)}, DtypeError),
    "integers": (torch.zeros(2, 64, dtype=torch.int64), DtypeError),
    "bytes": (torch.zeros(2, 64, dtype=torch.uint8), DtypeError),
    "bools": (torch.zeros(2, 64, dtype=torch.bool), DtypeError),
    "complex numbers": (torch.zeros(2, 64, dtype=torch.complex64), DtypeError),
    "one row without its batch": (torch.zeros(64), ShapeError),
    "too few numbers": (torch.zeros(2, 63), ShapeError),
    "images": (torch.zeros(2, 1, 8, 8), ShapeError),
    "one number": (torch.tensor(1.0), ShapeError),
    "no rows": (torch.zeros(0, 64), EmptyBatchError),
    "NaN": (spoiled(float("nan")), NotFiniteError),
    "infinity": (spoiled(float("inf")), NotFiniteError),
    "minus infinity": (spoiled(-float("inf")), NotFiniteError),
    "so large that the logits overflow": (spoiled(3e38) * 1.0, NotFiniteError),
    "finite in float64 alone": (spoiled(0).double() + 1e300, NotFiniteError),
}


@pytest.mark.parametrize(("x", "error"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input_is_refused_before_the_ledger_changes(x, error):
    guard = fitted()
    guard.answer(queries(count=20), client="a")
    before = state(guard.ledger)
    for client in ("a", "b"):
        with pytest.raises(error):
            guard.answer(x, client=client)
    assert state(guard.ledger) == before


def test_a_model_that_would_swallow_nan_does_not_get_it():
    class Swallowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained("mlp")

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.nan_to_num())

    guard = protect(Swallowing(), train_set(), mapping=QUICK)
    for value in (float("nan"), float("inf")):
        with pytest.raises(NotFiniteError, match="finite numbers in x"):
            guard.answer(spoiled(value), client="a")
    assert state(guard.ledger) == {}


@pytest.mark.parametrize("client", [7, None, b"a", "", "a\0b", "x" * 257, "\ud800"], ids=lambda c: ascii(c)[:12])
def test_bad_clients_are_refused_before_the_ledger_changes(client):
    guard = fitted()
    with pytest.raises(ClientError):
        guard.answer(queries(count=5), client=client)
    with pytest.raises(ClientError):
        guard.as_client(client)
    assert state(guard.ledger) == {}


def test_the_client_must_be_named():
    with pytest.raises(TypeError, match="client"):
        fitted().answer(queries(count=5))


def test_float64_input_is_rounded_to_what_the_model_takes():
    x = queries(count=50)
    expected = fitted().answer(x, client="a")
    reply = fitted().answer(x.double(), client="a")
    assert torch.equal(reply.probabilities, expected.probabilities)
    assert reply.probabilities.dtype == torch.float32


def test_the_input_is_left_as_it_was():
    x = queries()
    before = x.clone()
    fitted(policy="strict").answer(x, client="a")
    assert torch.equal(x, before)


def test_a_model_in_training_mode_is_set_to_eval():
    model = trained("mlp").train()
    guard = protect(model, train_set(), mapping=QUICK, limits=ALL_LETTERS)
    assert not any(module.training for module in model.modules())
    x = queries()
    one, two = (Guard(guard.bundle, secret=SECRET).answer(x, client="a") for _ in range(2))
    assert torch.equal(one.probabilities, two.probabilities)


def test_a_model_set_to_training_later_still_answers_without_dropout():
    guard, x = fitted(observe=True), queries()
    guard = Guard(guard.bundle, secret=SECRET)
    expected = guard.answer(x, client="a").probabilities
    guard.bundle.split.model.train()
    try:
        assert torch.equal(guard.answer(x, client="b").probabilities, expected)
    finally:
        guard.bundle.split.model.eval()


class NamedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 24), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("policy", PAPER_POLICIES)
def test_a_named_head_that_is_not_linear_works_end_to_end(policy, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = train(NamedHead(), *train_set(), epochs=10)
    guard = protect(model, train_set(), head="head", mapping=QUICK, limits=ALL_LETTERS, policy=policy, secret=SECRET)
    x = queries()
    reply = guard.answer(x, client="a")
    assert guard.bundle.split.linear is None
    assert set(letters(reply)) == set("ABCD")
    assert on_simplex(reply.probabilities)
    _, logits, labels, _ = look(guard, x)
    moved = torch.tensor([TABLES[policy][v.value].split()[0] == "MOVE" for v in reply.verdicts])
    spent = torch.tensor(judge_stream(*look(guard, x)[2:], 0.2, 0.02)[1])
    kept = moved & ~spent if policy == "strict" else moved
    assert torch.equal(reply.probabilities[kept].argmax(1), torch.tensor(labels)[kept])
    assert (reply.probabilities[kept] - logits.softmax(1)[kept]).abs().max() > 0.05
    guard.save(tmp_path / "b")
    again = queen.load(tmp_path / "b", model=NamedHead).answer(x, client="a")
    assert torch.equal(again.probabilities, reply.probabilities)


class OneNumber(nn.Module):
    """Classifies a number by looking it up: rows without any shape."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x))


def test_rows_of_one_number_work_end_to_end():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = OneNumber()
    x = torch.arange(50).repeat(4)
    guard = protect(
        model, (x, model(x).argmax(1)), mapping=QUICK, min_agreement=0, limits=Limits(radius=0.3, threshold=0)
    )
    reply = guard.answer(x, client="a")
    assert "B" in letters(reply)
    assert on_simplex(reply.probabilities)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_models_of_other_precision_work_end_to_end(dtype):
    x, y = train_set()
    guard = protect(trained("mlp").to(dtype), (x.to(dtype), y), mapping=QUICK, limits=ALL_LETTERS)
    reply = guard.answer(queries(), client="a")
    assert set(letters(reply)) == set("ABCD")
    assert on_simplex(reply.probabilities)


@pytest.fixture(scope="module")
def text() -> tuple[Guard, dict[str, Tensor]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).eval()
        x = {"input_ids": torch.randint(0, 40, (200, 8)), "attention_mask": torch.ones(200, 8, dtype=torch.long)}
    with torch.no_grad():
        model.classifier.bias -= model(**x).logits.mean(0)
        labels = model(**x).logits.argmax(1)
    guard = protect(
        model, (x, labels), mapping=QUICK, min_agreement=0, limits=Limits(radius=0.3, threshold=0), secret=SECRET
    )
    return guard, x


def test_a_text_model_works_end_to_end(text):
    guard, x = text[0].fresh(), text[1]
    reply = guard.answer(x, client="a")
    assert set(letters(reply)) == set("ABCD")
    assert on_simplex(reply.probabilities)
    shorter = {name: t[:, :5] for name, t in x.items()}
    assert on_simplex(guard.answer(shorter, client="b").probabilities)


def test_the_order_of_a_text_models_inputs_does_not_matter(text):
    guard, x = text
    turned = dict(reversed(x.items()))
    one, two = (guard.fresh().answer(batch, client="a") for batch in (x, turned))
    assert torch.equal(one.probabilities, two.probabilities)


def test_a_text_model_answers_the_same_after_loading(text, tmp_path):
    guard, x = text
    expected = guard.fresh().answer(x, client="a")
    guard.save(tmp_path / "b")
    model = guard.bundle.split.model
    for _ in range(10):  # safetensors gives names back in an order that changes from load to load
        again = queen.load(tmp_path / "b", model=lambda: type(model)(model.config))
        assert again.bundle.identity == guard.bundle.identity
        reply = again.answer(x, client="a")
        assert reply.verdicts == expected.verdicts
        assert torch.equal(reply.probabilities, expected.probabilities)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda x: x["input_ids"], DtypeError),
        (lambda x: {"input_ids": x["input_ids"]}, DtypeError),
        (lambda x: {**x, "labels": x["input_ids"]}, DtypeError),
        (lambda x: {**x, "input_ids": x["input_ids"].float()}, DtypeError),
        (lambda x: {**x, "input_ids": x["input_ids"].float().numpy()}, DtypeError),
        (lambda x: {**x, "input_ids": x["input_ids"][:, 0]}, ShapeError),
        (lambda x: {**x, "input_ids": x["input_ids"][:5]}, ShapeError),
        (lambda x: {name: t[:0] for name, t in x.items()}, EmptyBatchError),
        (lambda x: {name: t[:, :0] for name, t in x.items()}, EmptyBatchError),
    ],
    ids=["tensor", "one missing", "one too many", "floats", "array", "flat", "fewer rows", "no rows", "no tokens"],
)
def test_bad_text_is_refused_before_the_ledger_changes(text, change, error):
    guard = text[0].fresh()
    with pytest.raises(error):
        guard.answer(change(text[1]), client="a")
    assert state(guard.ledger) == {}


def test_a_durable_guard_continues_after_a_restart(tmp_path):
    x, path = queries(), tmp_path / "ledger.db"
    whole = Guard(fitted().bundle, secret=SECRET).answer(x, client="a").verdicts
    found: tuple[Verdict, ...] = ()
    for part in x.split(100):
        ledger = SqliteLedger(path)
        found += Guard(fitted().bundle, ledger=ledger, secret=SECRET).answer(part, client="a").verdicts
        ledger.close()
    assert found == whole


def test_a_ledger_that_cannot_record_means_no_answer(tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    guard, x = Guard(fitted().bundle, ledger=ledger, secret=SECRET), queries()
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError):
        guard.answer(x, client="a")
    ledger._db.execute("PRAGMA query_only = OFF")
    assert state(ledger) == {}
    assert guard.answer(x, client="a").verdicts == fitted().answer(x, client="a").verdicts
    ledger.close()
    with pytest.raises(LedgerError):
        guard.as_client("a")(x)


def test_the_given_ledger_is_used():
    ledger = MemoryLedger()
    guard = Guard(fitted().bundle, ledger=ledger)
    guard.answer(queries(), client="a")
    assert list(ledger.clients()) == ["a"]
    assert guard.ledger is ledger


def test_options_make_another_guard_with_an_empty_ledger():
    guard = fitted()
    guard.answer(queries(), client="a")
    strict = guard.fresh(policy="strict", limits=Limits(radius=0.5), keep_label=True, draw=2, observe=True)
    assert state(strict.ledger) == {}
    bundle = strict.bundle
    found = (bundle.policy, bundle.limits, bundle.keep_label, bundle.draw, bundle.observe)
    assert found == ("strict", Limits(radius=0.5), True, 2, True)
    assert bundle.identity == guard.bundle.identity
    assert guard.bundle.policy == "paper"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"polisy": "paper"}, OptionError),
        ({"split": None}, OptionError),
        ({"recipe": None}, OptionError),
        ({"policy": "quen"}, PolicyError),
        ({"draw": 0}, OptionError),
        ({"draw": 11}, OptionError),
        ({"draw": 2.5}, OptionError),
        ({"limits": Limits(radius=(0.1, 0.1))}, OptionError),
        ({"limits": 0.1}, QueenError),
    ],
    ids=str,
)
def test_unknown_options_are_refused(options, error):
    with pytest.raises(error):
        fitted().with_options(**options)


def test_threads_share_a_guard():
    guard, x = fitted(policy="strict"), queries()
    expected = fitted(policy="strict").answer(x, client="0")
    found: dict[int, Reply] = {}

    def work(i: int) -> None:
        found[i] = guard.answer(x, client=str(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert torch.equal(found[0].probabilities, expected.probabilities)
    assert all(reply.verdicts == expected.verdicts for reply in found.values())


def test_a_tuple_of_radii_is_used_per_class():
    x = queries()
    radii = tuple(0.05 + 0.03 * k for k in range(10))
    guard = fitted(limits=Limits(radius=radii, threshold=0.02))
    _, _, labels, points = look(guard, x)
    assert letters(guard.answer(x, client="a")) == judge_stream(labels, points, radii, 0.02)[0]


def test_the_report_is_the_bundles():
    guard = fitted()
    assert guard.report == guard.bundle.report
    assert guard.report["classes"] == 10


def test_guarding_does_not_change_the_model():
    model = trained("mlp")
    before = deepcopy(model.state_dict())
    guard = protect(model, train_set(), mapping=QUICK, limits=ALL_LETTERS)
    guard.answer(held_out()[0], client="a")
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("wrong", [40, -1, 2**40])
def test_ids_the_model_does_not_know_are_refused_before_it_sees_them(text, wrong):
    guard, x = text[0].fresh(), {name: t[:2].clone() for name, t in text[1].items()}
    x["input_ids"][0, 0] = wrong
    with pytest.raises(RangeError, match="token ids from 0 to 39"):
        guard.answer(x, client="a")
    assert list(guard.ledger.clients()) == []


def test_texts_longer_than_the_model_takes_are_refused_before_it_sees_them(text):
    guard, x = text[0].fresh(), {name: torch.cat([t, t, t], 1) for name, t in text[1].items()}
    assert on_simplex(guard.answer({name: t[:, :16] for name, t in x.items()}, client="a").probabilities)
    with pytest.raises(ShapeError, match="at most 16 tokens, got 17"):
        guard.answer({name: t[:, :17] for name, t in x.items()}, client="b")


class TwoTables(OneNumber):
    """Looks numbers up twice; its second table is too short for some."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Embedding(20, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x) + self.other(x // 2))


def test_what_the_model_itself_cannot_run_on_is_the_clients_mistake():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoTables()
    x = torch.arange(40).repeat(4)
    guard = protect(model, (x, model(x).argmax(1)), mapping=QUICK, min_agreement=0)
    with pytest.raises(ModelError, match="cannot run on this input"):
        guard.answer(torch.tensor([3, 45]), client="a")
    assert list(guard.ledger.clients()) == []


def test_other_options_keep_what_clients_have_seen_and_fresh_forgets_it():
    guard, x = fitted(policy="paper", observe=True), queries()
    seen = guard.answer(x, client="a")
    enforcing = guard.with_options(observe=False)
    assert enforcing.ledger is guard.ledger
    assert Verdict.FRESH in seen.verdicts
    assert Verdict.FRESH not in enforcing.answer(x[:20], client="a").verdicts
    assert guard.fresh(observe=False).answer(x, client="a").verdicts == seen.verdicts


@pytest.mark.parametrize("secret", [b"", b"x" * 31, "x" * 40, 5], ids=["empty", "short", "text", "number"])
def test_a_secret_that_keeps_none_is_refused(secret):
    with pytest.raises(SecretError, match="at least 32 bytes"):
        Guard(fitted().bundle, secret=secret)


def test_a_path_is_no_ledger():
    with pytest.raises(OptionError, match="open_ledger"):
        Guard(fitted().bundle, ledger="clients.sqlite")


class CosineHead(nn.Linear):
    def forward(self, u: Tensor) -> Tensor:
        return 5 * nn.functional.linear(nn.functional.normalize(u), nn.functional.normalize(self.weight))


def test_a_linear_layer_with_a_forward_of_its_own_is_not_taken_for_linear():
    x, y = train_set()
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), CosineHead(16, 10))
    guard = protect(model, (x, y), mapping=QUICK, min_agreement=0, progress=False)
    assert guard.bundle.split.linear is None
    answers = guard.answer(x[:50], client="a").probabilities
    assert (answers.argmax(1) == model(x[:50]).argmax(1)).all()
