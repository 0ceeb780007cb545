"""Simulated benign clients are what their kind says."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from queen.bench.studies.clients import KINDS, parse_kind, simulate_clients
from queen.errors import OptionError
from queen.sentinel.conditions import CONDITIONS, apply

EVERY = ("mixed", "one_class", "cascade", "camera contrast:0.7", "drift contrast:0.7")


def simulate(context, kind, clients=12, life=40):
    generator = torch.Generator().manual_seed(0)
    return list(simulate_clients(context.protectee, kind, clients=clients, life=life, generator=generator))


@pytest.mark.parametrize("kind", EVERY)
def test_no_client_sends_an_image_twice_or_more_than_its_life(context, kind):
    for client in simulate(context, kind):
        assert client.rows.unique().numel() == len(client.rows) <= 40
        assert client.x.shape == (len(client.rows), *context.protectee.test[0].shape[1:])
        assert 0 <= client.x.min() <= client.x.max() <= 1


@pytest.mark.parametrize("kind", EVERY)
def test_the_same_numbers_give_the_same_clients(context, kind):
    for one, other in zip(simulate(context, kind), simulate(context, kind), strict=True):
        assert torch.equal(one.x, other.x)


def test_mixed_clients_send_any_images(context):
    x, y = context.protectee.test
    [client] = simulate(context, "mixed", clients=1, life=len(x))
    assert torch.equal(client.rows.sort().values, torch.arange(len(x)))
    assert torch.equal(client.x, x[client.rows])
    assert len(set(y[client.rows[:40]].tolist())) > 5


def test_one_class_clients_have_one_true_label_each_and_take_turns(context):
    x, y = context.protectee.test
    clients = simulate(context, "one_class", life=len(x))
    for number, client in enumerate(clients):
        assert set(y[client.rows].tolist()) == {number % 10}
        assert len(client.rows) == (y == number % 10).sum()  # all there are, and then its life ends
    assert not torch.equal(clients[0].rows, clients[10].rows)


def test_cascades_send_what_the_victim_is_least_sure_of(context):
    x, _ = context.protectee.test
    sure = context.protectee.victim.clean(x).amax(1)
    for client in simulate(context, "cascade", life=len(x)):
        sent = torch.zeros(len(x), dtype=torch.bool)
        sent[client.rows] = True
        assert sent.sum() == len(x) // 5
        assert sure[sent].max() <= sure[~sent].min()
        assert sure[sent].mean() < sure.mean()


@pytest.mark.parametrize("condition", ["brightness:0.8", "contrast:0.7", "noise:0.1", "blur"])
def test_a_camera_changes_every_image_by_its_condition(context, condition):
    x, _ = context.protectee.test
    changed = apply(condition, x, torch.Generator().manual_seed(0))
    clients = simulate(context, f"camera {condition}")
    for client in clients:
        assert client.images is clients[0].images  # so that they are measured once
        assert torch.equal(client.x, changed[client.rows])
        assert not torch.equal(client.x, x[client.rows])


def test_drift_goes_from_nothing_to_the_condition_in_equal_steps(context):
    x, _ = context.protectee.test
    generator = torch.Generator().manual_seed(0)
    changed = apply("brightness:0.5", x, generator)
    rows = torch.randperm(len(x), generator=generator)[:40]
    [client] = simulate(context, "drift brightness:0.5", clients=1)
    assert torch.equal(client.x[0], x[rows[0]])
    assert torch.equal(client.x[-1], changed[rows[-1]])
    parts = (client.x - x[rows]).flatten(1).norm(dim=1) / (changed[rows] - x[rows]).flatten(1).norm(dim=1)
    assert torch.allclose(parts, torch.arange(40) / 39, atol=1e-5)
    assert all(later > earlier for earlier, later in pairwise(parts.tolist()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixd", "no kind of client 'mixd'.*did you mean 'mixed'"),
        ("mixed noise", "only camera and drift take a condition, got 'mixed noise': say 'mixed'"),
        ("camera", "expected a condition of images after 'camera', as in 'camera noise:0.06', got none"),
        ("camera fog", "no condition 'fog'"),
        ("drift noise:loud", "the strength in 'noise:loud' must be a number"),
    ],
)
def test_wrong_kinds_are_named(name, message):
    with pytest.raises(OptionError, match=message):
        parse_kind(name)


@given(st.sampled_from(sorted(CONDITIONS)), st.sampled_from(["camera", "drift"]))
def test_every_condition_makes_a_camera_and_a_drift(condition, kind):
    assert parse_kind(f"{kind} {condition}") == (kind, condition)
    assert kind in KINDS
