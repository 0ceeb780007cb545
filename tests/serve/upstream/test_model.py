"""A network on another server as a model: protected, saved, loaded and asked like one that is here."""

from __future__ import annotations

import copy
import json

import pytest
import safetensors.torch
import torch
from torch import nn

import queen
from queen.bundle.model import is_same
from queen.errors import HeadError, OptionError, UpstreamError
from queen.serve.upstream import head as head_module
from queen.serve.upstream.head import solve_head
from queen.serve.upstream.model import UpstreamModel
from tests.support.guards import QUICK, images
from tests.support.guards import digits as flat_digits
from tests.support.server import served_in_thread
from tests.support.serving import TRAIN, digits, honest, small_bundle, trained

QUIET = {"mapping": QUICK, "progress": False, "policy": "strict"}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = flat_digits()
    return images(x[TRAIN]), y[TRAIN]


class Here:
    """The digits network asked as an upstream is; it can hold back units that no honest image wakes."""

    def __init__(self) -> None:
        self.body, self.last = nn.Sequential(*list(trained())[:-1]), list(trained())[-1]

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            features = self.body(x)
            return features, self.last(features)


def test_the_head_is_solved_from_features_and_logits():
    network = Here()
    head = solve_head(network, [data()[0][:200]])
    noise = torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for x in (digits(), noise):  # a thief's images, too
        features, logits = network(x)
        assert is_same(head(features), logits)  # as the guard will ask with every answer


def test_features_from_which_the_logits_do_not_follow_are_refused(monkeypatch):
    network = Here()
    with pytest.raises(HeadError, match="no linear layer maps"):
        solve_head(lambda x: (network(x)[0], network(x)[1].softmax(1)), [data()[0]])
    with pytest.raises(HeadError, match="no linear layer maps"):  # too few rows to tell
        solve_head(lambda x: (torch.randn(len(x), 500), network(x)[1]), [data()[0][:20]])
    monkeypatch.setattr(head_module, "MOST_FEATURES", 8)
    with pytest.raises(HeadError, match="--weights FILE --head NAME"):
        solve_head(network, [data()[0]])


@pytest.mark.parametrize("wrong", [
    {"logits": ""}, {"features": "logits"}, {"timeout": 0}, {"max_batch": 0}, {"headers": ["no colon"]},
    {"headers": ["Name: line\nbreak"]},
])  # fmt: skip
def test_options_are_checked_before_anybody_is_asked(wrong):
    with pytest.raises(OptionError):
        UpstreamModel("http://127.0.0.1:1", **wrong)


def test_a_network_whose_head_nobody_knows_is_not_asked():
    with pytest.raises(OptionError, match=r"queen\.protect"):
        UpstreamModel("http://127.0.0.1:1", model="m")(digits())


def test_the_recipe_is_json_and_holds_no_header():
    model = UpstreamModel("http://127.0.0.1:1", model="m", headers=["Authorization: Bearer secret"])
    assert "secret" not in json.dumps(model.recipe.args)
    assert "secret" not in repr(model)
    assert "headers" not in model.recipe.args
    again = model.recipe.build()
    assert again.recipe == model.recipe


@pytest.mark.slow
@pytest.mark.real
class TestWithKServe:
    @pytest.mark.parametrize("scheme", ["http", "grpc"])
    def test_a_network_that_is_only_upstream_is_protected_saved_and_loaded(self, upstream, tmp_path, scheme):
        x, y = data()
        guard = queen.protect(UpstreamModel(upstream.url(scheme), model="digits"), (x, y), **QUIET)
        guard.save(tmp_path / "bundle")
        [weights] = (tmp_path / "bundle").glob("model-*.safetensors")
        assert set(safetensors.torch.load_file(weights)) == {"head.weight", "head.bias"}
        loaded = queen.load(tmp_path / "bundle")
        said = loaded.measure(digits()).honest
        assert torch.allclose(said, honest(digits()), atol=1e-4)
        local = queen.protect(trained(), (x, y), **QUIET)
        points, own = (torch.tensor(one.measure(digits()).points) for one in (guard, local))
        # A map is trained in many steps, which carry on how other processors round the features.
        assert (points - own).abs().median() < 0.02
        assert (points - own).abs().max() < 0.2

    def test_the_only_model_need_not_be_named_over_rest(self, upstream):
        guard = queen.load(small_bundle(), lambda: UpstreamModel(upstream.rest))
        assert torch.allclose(guard.measure(digits()).honest, honest(digits()), atol=1e-4)
        with pytest.raises(OptionError, match="does not say which models it has: name the model"):
            queen.load(small_bundle(), lambda: UpstreamModel(upstream.grpc))

    @pytest.mark.parametrize("binary", [True, False])
    def test_raw_tensors_and_json_say_the_same_and_large_batches_go_in_parts(self, upstream, binary):
        model = UpstreamModel(upstream.rest, model="digits", binary=binary, max_batch=3)
        guard = queen.load(small_bundle(), lambda: model)
        assert torch.allclose(guard.measure(digits()).honest, honest(digits()), atol=1e-5)

    def test_copies_have_connections_of_their_own(self, upstream):
        guard = queen.load(small_bundle(), UpstreamModel(upstream.rest, model="digits"))  # which copies it
        other = copy.deepcopy(guard.bundle.split.model)
        assert torch.equal(other(digits()), guard.bundle.split.model(digits()))

    def test_logits_alone_are_features_too(self, upstream, tmp_path):
        model = UpstreamModel(upstream.grpc, model="digits", features=None)
        guard = queen.protect(model, data(), **QUIET)
        guard.save(tmp_path / "bundle")
        loaded = queen.load(tmp_path / "bundle")
        assert loaded.bundle.probe.features.shape[1] == 10
        assert torch.allclose(loaded.measure(digits()).honest, honest(digits()), atol=1e-5)

    @pytest.mark.parametrize("scheme", ["http", "grpc"])
    def test_with_logits_alone_another_model_is_noticed_at_the_first_question(self, upstream, tmp_path, scheme):
        model = UpstreamModel(upstream.url(scheme), model="digits", features=None, max_batch=8)
        queen.protect(model, data(), **QUIET).save(tmp_path / "bundle")
        guard = queen.load(tmp_path / "bundle")
        assert torch.allclose(guard.measure(digits()[:20]).honest, honest(digits()[:20]), atol=1e-5)
        upstream.swap(1)
        with pytest.raises(UpstreamError) as refusal:
            guard.measure(digits()[:1])
        assert refusal.value.kind == "other_model"
        upstream.swap(0)
        assert torch.allclose(guard.measure(digits()[:1]).honest, honest(digits()[:1]), atol=1e-5)

    def test_our_own_server_as_upstream_gives_probabilities(self, tmp_path):
        with served_in_thread(tmp_path / "home", policy="none", grpc_port=0) as server:
            options = {
                "model": "digits",
                "probabilities": "probabilities",
                "headers": [f"Authorization: Bearer {server.key}"],
            }
            for address in (server.url, f"grpc://127.0.0.1:{server.grpc}"):
                guard = queen.protect(UpstreamModel(address, **options), data(), **QUIET)
                assert torch.allclose(guard.measure(digits()).honest, honest(digits()), atol=1e-4)
            guard.save(tmp_path / "bundle")
            with pytest.raises(UpstreamError, match="UNAUTHENTICATED"):  # the key is not in the bundle
                queen.load(tmp_path / "bundle")
