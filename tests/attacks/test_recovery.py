"""Recovery attacks against brute force, and on a map that can be undone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.attacks import ATTACKS
from queen.attacks.base import Attack, Sizes, Transcript
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import ddae, pbayes
from queen.attacks.strategies import pairs as pairs_module
from queen.attacks.strategies.pairs import (
    Pairs,
    answers_prior,
    believes_labels,
    clean_prior,
    dirichlet,
    draw_pairs,
    pairs_around,
)
from queen.cache import Cache
from queen.errors import OptionError
from queen.training import Schedule, repeated_step, train
from tests.support.attackers import SMALL, clean, counted_oracle, endpoint, knowledge, new_network, seed, squeezed
from tests.support.guards import digits, images

BIG = replace(SMALL, table=20_000, generator_epochs=15, generator_batch=256)
RECOVERY = [name for name in ATTACKS if name.startswith(("ddae", "pbayes", "informed"))]


def stolen(count: int = 200, perturb=squeezed) -> Transcript:
    return knockoff(counted_oracle(count, perturb), Attack(), knowledge(), count, seed())


# pBayes against loops.


def recover_by_loops(answers, defended, clean_rows, same_label):
    result = []
    for q in answers.tolist():
        distances = [sum(abs(a - b) for a, b in zip(q, row, strict=True)) for row in defended.tolist()]
        rows = range(len(distances))
        if same_label:
            alike = [i for i in rows if defended[i].argmax() == torch.tensor(q).argmax()]
            rows = alike or rows
        limit = max(0.01, min(distances[i] for i in rows))
        near = [i for i in rows if distances[i] <= limit + 1e-9]
        result.append(clean_rows[near].mean(0))
    return torch.stack(result)


# In eighths, so that equal distances are equal to the last bit.
vectors = st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3), min_size=1, max_size=8)


@settings(max_examples=150)
@given(vectors, vectors, st.booleans())
def test_recovery_is_the_mean_of_the_nearest_pairs(answers, defended, same_label):
    answers, defended = torch.tensor(answers) / 8.0, torch.tensor(defended) / 8.0
    clean_rows = torch.rand(len(defended), 3, generator=seed())
    recovered = pbayes.recover(answers, Pairs(clean_rows, defended), same_label=same_label)
    assert torch.allclose(recovered, recover_by_loops(answers, defended, clean_rows, same_label), atol=1e-6)


def test_all_pairs_within_a_hundredth_count_even_if_one_is_nearer():
    defended = torch.tensor([[0.5, 0.5], [0.504, 0.496], [0.51, 0.49]])
    clean_rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75]])
    recovered = pbayes.recover(defended[:1], Pairs(clean_rows, defended), same_label=False)
    assert recovered.tolist() == [[0.5, 0.5]]


def test_few_distances_at_a_time_give_the_same(monkeypatch):
    pairs = Pairs(torch.rand(50, 4, generator=seed(1)), torch.rand(50, 4, generator=seed(2)))
    answers = torch.rand(33, 4, generator=seed(3))
    whole = pbayes.recover(answers, pairs, same_label=False)
    for limit in (1, 120):
        monkeypatch.setattr(pbayes, "CHUNK", {"cpu": limit})
        assert torch.allclose(pbayes.recover(answers, pairs, same_label=False), whole, atol=1e-6)


# Labels.


def swap_labels(share: float):
    """A defense that gives this share of answers, at random, another label, and leaves their numbers alone."""

    def simulate(clean, x, generator):
        wrong = torch.rand(len(clean), generator=generator) < share
        return torch.where(wrong[:, None], clean.roll(1, 1), clean)[None]

    return simulate


@pytest.mark.parametrize(("share", "believed"), [(0.0, True), (0.02, True), (0.2, False)])
def test_labels_are_believed_where_nearly_all_pairs_keep_them(share, believed):
    known = knowledge(BIG, simulate=swap_labels(share))
    transcript = stolen(20)
    pairs = draw_pairs(transcript, clean(transcript.x), known.simulate, known.sizes, seed())
    assert believes_labels(pairs, known) == believed
    assert known.findings == {"label_kept": pytest.approx(1 - share, abs=0.01), "labels_believed": believed}


@pytest.mark.parametrize("name", ["pbayes", "ddae_plus"])
@pytest.mark.parametrize(("share", "believed"), [(0.0, True), (0.3, False)])
def test_recovery_keeps_labels_where_it_believes_them_and_may_change_them_elsewhere(name, share, believed):
    """Answers that are hardly sure of their label, and a restorer that has learnt next to nothing."""
    known = knowledge(replace(SMALL, table=2000), simulate=swap_labels(share), clean=lambda x: flat)
    transcript = stolen(200)
    flat = 0.1 + 0.001 * torch.randn(200, 10, generator=seed(5))
    transcript = transcript.with_answers(flat)
    recovered = ATTACKS[name].believe(transcript, known, seed()).answers
    same = (recovered.argmax(1) == flat.argmax(1)).double().mean()
    assert (same == 1) == believed


@pytest.mark.parametrize(("share", "checked"), [(0.0, False), (0.3, True)])
def test_a_restorer_that_may_change_labels_says_how_many_it_gets_right_in_its_own_pairs(share, checked):
    """Answers with two classes swapped: a restorer that learns to swap them back gets more labels right."""

    def swap_first_two(clean, x, generator):
        return (clean[:, [1, 0, *range(2, 10)]] if share else clean)[None]

    known = knowledge(replace(SMALL, table=4000, generator_epochs=60), simulate=swap_first_two, clean=clean)
    ATTACKS["ddae_plus"].believe(stolen(200), known, seed())
    assert ("label_restored" in known.findings) == checked
    if checked:
        assert known.findings["label_kept"] < 0.95 < known.findings["label_restored"]


@given(vectors, st.integers(0, 2))
def test_putting_a_label_on_top_swaps_two_numbers_and_no_others(rows, label):
    rows, labels = torch.tensor(rows) / 8.0, torch.full((len(rows),), label)
    swapped = ddae.put_on_top(rows, labels)
    for before, after in zip(rows.tolist(), swapped.tolist(), strict=True):
        assert after[label] == max(after)
        place = before.index(max(before))
        before[place], before[label] = before[label], before[place]
        assert after == before


# Pairs.


def test_clean_answers_are_drawn_from_the_dirichlet_distribution():
    means = torch.tensor([0.6, 0.3, 0.1, 0.0])
    drawn = dirichlet((4 * 8 * means).expand(20_000, 4), seed())
    assert torch.allclose(drawn.sum(1), torch.ones(20_000), atol=1e-5)
    assert torch.allclose(drawn.mean(0), means, atol=0.005)
    variance = means * (1 - means) / (4 * 8 + 1)
    assert torch.allclose(drawn.var(0), variance, atol=5e-4)
    assert torch.equal(drawn[:5], dirichlet((4 * 8 * means).expand(20_000, 4), seed())[:5])


@pytest.mark.parametrize(("table", "queries", "pairs"), [(400, 100, 400), (450, 100, 400), (30, 100, 30)])
def test_a_table_has_as_many_pairs_for_every_state_and_each_belongs_to_its_query(table, queries, pairs):
    transcript = Transcript(torch.arange(float(queries))[:, None], torch.full((queries, 4), 0.25))
    asked = []

    def simulate(drawn, x, generator):
        asked.append(x.flatten())
        return torch.stack([drawn, x + drawn])  # honest, or marked with the query

    prior = answers_prior(transcript, knowledge())
    made = draw_pairs(transcript, prior, simulate, replace(SMALL, table=table), seed())
    assert len(made.clean) == len(made.defended) == 2 * pairs
    assert all(torch.equal(x, x.sort().values) for x in asked)  # a stream keeps its order
    passes = len(asked)
    difference = (made.defended - made.clean).view(passes, 2, -1, 4)
    assert torch.equal(difference[:, 0], torch.zeros_like(difference[:, 0]))
    for x, marked in zip(asked, difference[:, 1], strict=True):
        assert torch.allclose(marked, x[:, None].expand(-1, 4), atol=1e-4)


# Shared pairs.


def test_attacks_that_draw_the_same_pairs_share_them_and_end_the_same_as_alone():
    transcript, simulated = stolen(40), []

    def simulate(drawn, x, generator):
        simulated.append(len(x))
        return squeezed(drawn)[None] + 0 * torch.rand(1, generator=generator)

    def believe(name, **changes):
        known = replace(knowledge(simulate=simulate), **changes)
        return ATTACKS[name].believe(transcript, known, seed()).answers

    alone = {name: believe(name) for name in ("ddae_plus", "pbayes")}
    passes = len(simulated) // 2
    simulated.clear()
    for name in ("ddae_plus", "pbayes", "ddae_plus"):
        assert torch.equal(believe(name, defense_key="mine"), alone[name])
    assert len(simulated) == passes
    believe("pbayes_answers", defense_key="mine")
    believe("ddae_plus_answers", defense_key="mine")
    assert len(simulated) == 2 * passes
    believe("pbayes", defense_key="mine")  # still there: there is room for one of each prior
    assert len(simulated) == 2 * passes


@pytest.mark.parametrize("change", ["defense", "pool", "images", "prior", "table", "concentration", "seed"])
def test_pairs_of_anything_else_are_not_shared(change, monkeypatch):
    monkeypatch.setattr(pairs_module, "_tables", OrderedDict())
    transcript, known = stolen(40), knowledge(defense_key="one", key="pool")
    first = pairs_around(clean_prior, transcript, known, seed())
    sizes = {"table": replace(SMALL, table=320), "concentration": replace(SMALL, concentration=4.0)}
    other = replace(
        known,
        defense_key="two" if change == "defense" else "one",
        key="other" if change == "pool" else "pool",
        sizes=sizes.get(change, SMALL),
        clean=(lambda x: clean(x).roll(1, 1)) if change == "prior" else clean,
    )
    asked = replace(transcript, x=transcript.x.flip(0)) if change == "images" else transcript
    assert pairs_around(clean_prior, transcript, known, seed()) is first
    assert pairs_around(clean_prior, asked, other, seed(1 if change == "seed" else 0)) is not first


def test_tables_that_are_too_large_are_not_stored(monkeypatch):
    monkeypatch.setattr(pairs_module, "_tables", OrderedDict())
    monkeypatch.setattr(pairs_module, "SHARED_NUMBERS", 2 * SMALL.table * 10 - 1)
    transcript, known = stolen(40), knowledge(defense_key="one")
    first, second = (pairs_around(clean_prior, transcript, known, seed()) for _ in range(2))
    assert first is not second
    assert torch.equal(first.clean, second.clean)


# All of them.


def error(transcript: Transcript) -> float:
    return (transcript.answers - clean(transcript.x)).abs().sum(1).mean().item()


def veiled(y):
    """Nearer to what is told than `squeezed`, for attackers who look for clean answers around the told ones."""
    return 0.9 * y + 0.01


@pytest.mark.parametrize("name", [name for name in RECOVERY if name != "ddae"])
def test_a_map_that_can_be_undone_is_undone(name):
    """Those who look for clean answers around the told ones get a part of the way only."""
    perturb, share = (squeezed, 0.3) if "prior" in ATTACKS[name].knows else (veiled, 1.0)
    transcript, map_alone = stolen(perturb=perturb), endpoint(perturb)
    known = knowledge(BIG, simulate=map_alone.simulate, rebuild=lambda *_: map_alone)
    believed = ATTACKS[name].believe(transcript, known, seed())
    assert torch.equal(believed.x, transcript.x)
    assert torch.allclose(believed.answers.sum(1), torch.ones(len(transcript)), atol=1e-4)
    assert error(believed) < share * error(transcript)


@pytest.mark.parametrize("name", [name for name in RECOVERY if name != "informed_proxy"])
def test_without_the_defenses_map_there_is_no_recovery(name):
    with pytest.raises(OptionError, match=r"needs Knowledge\.simulate"):
        ATTACKS[name].believe(stolen(20), knowledge(simulate=None), seed())


# D-DAE.


def test_shadows_learn_as_many_random_classes_of_the_pool_as_there_are_outputs():
    labels = torch.tensor([7, 3, 9, 7, 5, 3, 9, 1])
    rows, outputs = ddae.random_classes(labels, 3, seed())
    assert labels[rows].unique().numel() == 3
    pairs = set(zip(labels[rows].tolist(), outputs.tolist(), strict=True))
    assert len(pairs) == 3  # one output a class
    assert {k for _, k in pairs} == {0, 1, 2}
    assert rows.tolist() == [i for i, k in enumerate(labels.tolist()) if k in {a for a, _ in pairs}]
    chosen = {tuple(ddae.random_classes(labels, 3, seed(s))[0].tolist()) for s in range(20)}
    assert len(chosen) > 3


def test_with_fewer_classes_than_outputs_all_are_taken_and_spread_over_the_outputs():
    labels = torch.arange(40) % 5
    rows, outputs = ddae.random_classes(labels, 10, seed())
    assert rows.tolist() == list(range(40))
    assert len(set(zip(labels.tolist(), outputs.tolist(), strict=True))) == 5
    assert outputs.max() < 10
    assert outputs.unique().numel() == 5


def test_shadows_learn_their_classes_and_differ():
    truth = digits()[1][1000:1400].repeat(10)
    known = knowledge(replace(SMALL, shadow_epochs=5), pool_labels=truth)
    known = replace(known, pool=known.pool.repeat(10, 1, 1, 1))
    networks, lessons = zip(*ddae.shadows(known), strict=True)
    guesses = torch.stack([network(known.pool[:400]).argmax(1) for network in networks])
    assert (guesses[0] != guesses[1]).double().mean() > 0.5  # a class became another output
    for guess in guesses:
        best = torch.stack([guess[truth[:400] == k].bincount(minlength=10).max() for k in range(10)])
        assert best.sum() > 0.6 * 400  # chance would be about 0.2
    assert all(lesson["accuracy"] > 0.6 for lesson in lessons)
    assert {lesson["chance"] for lesson in lessons} == {truth.bincount().max().item() / len(truth)}


@pytest.mark.parametrize(("size", "strides"), [(32, (1, 1)), (64, (2, 2))])
def test_shadows_have_a_stem_for_the_size_of_the_pool(monkeypatch, size, strides):
    monkeypatch.setattr(ddae, "train", lambda network, *_: network.eval())
    known = knowledge(replace(SMALL, shadow_network="resnet18", shadows=1))
    known = replace(known, pool=torch.rand(12, 1, size, size), pool_labels=torch.arange(12) % 3)
    [(network, _)] = ddae.shadows(known)
    assert network.network.features[0].stride == strides


def test_shadows_from_a_cache_are_the_same_and_still_say_what_they_learnt(tmp_path, monkeypatch):
    known = knowledge(replace(SMALL, shadow_steps=30), cache=Cache(tmp_path), key="pool")
    first = list(ddae.shadows(known))
    monkeypatch.setattr(ddae, "train", None)
    again = list(ddae.shadows(known))
    assert [lesson for _, lesson in again] == [lesson for _, lesson in first]
    for (a, _), (b, _) in zip(first, again, strict=True):
        assert torch.equal(a(known.pool), b(known.pool))
    with pytest.raises(TypeError):  # more steps are other shadows
        list(ddae.shadows(replace(known, sizes=replace(SMALL, shadow_steps=31))))


def test_the_attack_reports_how_well_its_shadows_learnt_and_how_sure_they_are():
    known = knowledge()
    ATTACKS["ddae"].believe(stolen(50), known, seed())
    lessons = [lesson for _, lesson in ddae.shadows(known)]
    reported = known.findings["shadows"]
    for name in ("accuracy", "chance"):
        assert reported[name] == pytest.approx(sum(lesson[name] for lesson in lessons) / SMALL.shadows)
    assert 0.1 < reported["top_probability"] < 1


def test_ddae_undoes_a_map_given_shadows_that_are_as_sure_as_the_victim(monkeypatch):
    x, y = images(digits()[0][:400]), digits()[1][:400]
    orders = [torch.randperm(10, generator=seed(s)) for s in range(4)]
    schedule = Schedule(epochs=8, lr=0.1, batch=32)
    networks = [train(new_network(seed(9)), x, order[y], schedule, seed()) for order in orders]
    lesson = {"accuracy": 1.0, "chance": 0.1}
    monkeypatch.setattr(ddae, "shadows", lambda *_: ((network, lesson) for network in networks))
    transcript = stolen()
    sizes = replace(SMALL, generator_epochs=60, generator_batch=64)
    assert error(ATTACKS["ddae"].believe(transcript, knowledge(sizes), seed())) < 0.5 * error(transcript)


@pytest.mark.parametrize(("most", "rows"), [(0.5, 20), (1, 40), (2, 40)])
def test_shadows_answer_as_many_queries_as_fit_into_memory_in_their_order(monkeypatch, most, rows):
    transcript = stolen(40)
    known = knowledge()
    monkeypatch.setattr(ddae, "MOST_NUMBERS", int(most * 40 * SMALL.shadows * known.classes))
    asked = []
    known = replace(known, simulate=lambda y, x, _: asked.append(x) or y[None])
    believed = ddae.ddae(transcript, known, seed(0))
    assert len(believed) == 40
    places = [next(i for i, image in enumerate(transcript.x) if torch.equal(image, row)) for row in asked[0]]
    assert len(asked) == SMALL.shadows
    assert len(places) == rows
    assert places == sorted(set(places))


def test_shadows_answer_no_more_queries_than_the_table_has_pairs():
    asked = []
    known = knowledge(
        replace(SMALL, table=10 * SMALL.shadows), simulate=lambda y, x, _: asked.append(len(x)) or y[None]
    )
    ddae.ddae(stolen(40), known, seed())
    assert asked == [10] * SMALL.shadows


def test_pools_without_labels_train_no_shadows():
    with pytest.raises(OptionError, match=r"needs Knowledge\.pool_labels"):
        ATTACKS["ddae"].believe(stolen(20), knowledge(pool_labels=None), seed())


def test_the_restorer_has_norm_and_leak_after_every_layer():
    kinds = [type(layer).__name__ for layer in ddae.restorer(10, (128, 64))]
    assert kinds == ["Linear", "BatchNorm1d", "LeakyReLU"] * 3 + ["Softmax"]
    widths = [layer.weight.shape for layer in ddae.restorer(10, (128, 64)) if hasattr(layer, "in_features")]
    assert widths == [(128, 10), (64, 128), (10, 64)]


@pytest.mark.parametrize(
    ("classes", "widths"),
    [(2, (128, 64)), (10, (128, 64)), (42, (128, 64)), (43, (512, 256)), (99, (512, 256)), (100, (1024, 512)),
     (199, (1024, 512)), (200, (2048, 1024)), (256, (2048, 1024)), (1000, (2048, 1024))],
)  # fmt: skip
def test_the_restorer_is_as_wide_as_published_for_the_number_of_classes_unless_a_spec_says_otherwise(classes, widths):
    rows = torch.eye(classes)
    hasty = Sizes(generator_epochs=1)
    for wanted, expected in ((None, widths), ((5,), (5,))):
        network = ddae.train_restorer(Pairs(rows, rows), replace(hasty, generator_widths=wanted), seed())
        assert [layer.out_features for layer in network if hasattr(layer, "in_features")] == [*expected, classes]


def test_a_result_says_how_wide_the_restorer_was():
    known = knowledge(replace(SMALL, generator_widths=None))
    ATTACKS["ddae_plus"].believe(stolen(20), known, seed())
    assert known.findings["generator_widths"] == [128, 64]


def test_the_restorer_is_applied_with_the_statistics_of_all_answers_at_once(monkeypatch):
    network = ddae.restorer(10, (16,))
    network(torch.rand(100, 10, generator=seed()) + 3)  # running statistics of something else
    monkeypatch.setattr(ddae, "train_restorer", lambda *_: network)
    transcript = stolen(40)
    believed = ATTACKS["ddae_plus"].believe(transcript, knowledge(simulate=swap_labels(0.5)), seed()).answers
    assert torch.allclose(believed, network.train()(transcript.answers), atol=1e-6)
    assert not torch.allclose(believed, network.eval()(transcript.answers), atol=1e-2)


def test_rates_of_the_restorer_halve_every_hundred_epochs(monkeypatch):
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, *args, **kwargs):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "SGD", Watched)
    pairs = Pairs(torch.eye(4), torch.eye(4))
    ddae.train_restorer(pairs, replace(SMALL, generator_epochs=250, generator_batch=4), seed())
    assert rates == pytest.approx([0.01] * 100 + [0.005] * 100 + [0.0025] * 50)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_step_trains_as_a_plain_one_at_every_rate(monkeypatch):
    defended = torch.rand(512, 6, generator=seed()).softmax(1).cuda()
    pairs, sizes = Pairs(defended.flip(1), defended), replace(SMALL, generator_epochs=205, generator_batch=256)
    replayed = ddae.train_restorer(pairs, sizes, seed())
    monkeypatch.setattr(repeated_step, "EAGER", 10**9)
    plain = ddae.train_restorer(pairs, sizes, seed())
    for a, b in zip(replayed.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_distances_on_a_gpu_are_those_of_the_cpu():
    a, b = torch.rand(20, 7, generator=seed()), torch.rand(30, 7, generator=seed(1))
    assert torch.allclose(pbayes.l1_distances(a.cuda(), b.cuda()).cpu(), pbayes.l1_distances(a, b), atol=1e-6)


def test_few_answers_take_a_bounded_number_of_passes(monkeypatch):
    monkeypatch.setattr(pairs_module, "MOST_PASSES", 7)
    passes = []

    def simulate(answers, x, generator):
        passes.append(len(x))
        return answers[None]

    transcript = stolen(3)
    found = draw_pairs(transcript, transcript.answers, simulate, replace(SMALL, table=10_000), seed())
    assert passes == [3] * 7
    assert len(found.clean) == 21
