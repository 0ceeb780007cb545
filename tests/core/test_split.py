import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from queen import zoo
from queen.core.split import Split, find_split, run_model
from queen.errors import HeadError, ShapeError

transformers = pytest.importorskip("transformers")

TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "num_labels": 5,
}
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "num_labels": 5}
VIT = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 5,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 5}
HUGGING_FACE_TEXT = [
    ("Bert", TEXT, "classifier", 16),
    ("DistilBert", DISTIL, "classifier", 16),
    ("Roberta", TEXT, "classifier.out_proj", 16),
]
HUGGING_FACE_IMAGES = [("ViT", VIT, "Image", "classifier", 16), ("ResNet", RESNET, "Image", "classifier.1", 16)]


def hugging_face(family, config, task):
    torch.manual_seed(0)
    return getattr(transformers, f"{family}For{task}Classification")(getattr(transformers, f"{family}Config")(**config))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def check_split(model, x, name, dims, classes):
    split = find_split(model, x)
    with torch.no_grad():
        features, logits = split(x)
        again = split.head(features)
    assert split.head_name == name
    assert split.linear is split.head
    assert features.shape == (len(logits), dims)
    assert logits.shape == (len(logits), classes)
    assert torch.allclose(again, logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, run_model(model, x))
    assert hooks(model) == 0
    assert not model.training


@pytest.mark.parametrize(
    ("network", "channels", "size", "name", "dims"),
    [
        ("small_cnn", 1, 28, "head", None),
        ("vgg11_bn", 3, 32, "classifier", 512),
        ("vgg16_bn", 3, 32, "classifier", 512),
        ("resnet18", 3, 32, "classifier", 512),
        ("resnet50", 3, 32, "classifier", 2048),
    ],
)
def test_networks_of_the_zoo_are_split_at_their_last_layer(network, channels, size, name, dims):
    model = zoo.build(network, classes=7, channels=channels)
    dims = dims or model.hidden.out_features
    check_split(model, torch.randn(2, channels, size, size), name, dims, 7)


def test_a_plain_sequential_is_split_at_its_last_layer():
    check_split(mlp(), torch.randn(5, 6), "4", 8, 3)


@pytest.mark.parametrize(("family", "config", "task", "name", "dims"), HUGGING_FACE_IMAGES)
def test_image_classifiers_of_hugging_face_are_split(family, config, task, name, dims):
    check_split(hugging_face(family, config, task), torch.randn(3, 3, 16, 16), name, dims, 5)


@pytest.mark.parametrize(("family", "config", "name", "dims"), HUGGING_FACE_TEXT)
def test_text_classifiers_of_hugging_face_are_split_with_named_or_plain_ids(family, config, name, dims):
    model = hugging_face(family, config, "Sequence")
    ids = torch.randint(2, 50, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    check_split(model, ids, name, dims, 5)
    check_split(model, {"input_ids": ids, "attention_mask": mask}, name, dims, 5)


def test_the_last_layer_is_the_one_that_runs_last_not_the_one_defined_last():
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.body = nn.Linear(6, 4)
            self.unused = nn.Linear(9, 9)

        def forward(self, x):
            return self.head(self.body(x).relu())

    check_split(Reversed(), torch.randn(2, 6), "head", 4, 3)


def test_a_named_head_need_not_be_linear():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
    x = torch.randn(4, 6)
    split = find_split(model, x, "2")
    features, logits = split(x)
    assert split.linear is None
    assert features.shape == (4, 8)
    assert torch.allclose(split.head(features), logits)


def test_a_model_that_returns_a_tuple_is_understood():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x), "something else"

    check_split(Pair(), torch.randn(2, 6), "net.4", 8, 3)


def test_logits_in_a_dict_are_understood():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return {"features": x, "logits": self.net(x)}

    check_split(Named(), torch.randn(2, 6), "net.4", 8, 3)


def test_a_head_called_by_keyword_is_understood_or_refused_with_a_clear_error():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(input=x)

    model, x = ByKeyword(), torch.randn(2, 6)
    try:
        features, _ = find_split(model, x)(x)
    except HeadError:
        return
    assert torch.equal(features, x)


class Ends(nn.Module):
    """An MLP followed by something."""

    def __init__(self, end):
        super().__init__()
        self.net, self.end = mlp(), end

    def forward(self, x):
        return self.end(self.net(x))


class Twice(nn.Module):
    """Runs its head twice."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x):
        return self.head(self.head(x))


@pytest.mark.parametrize(
    ("model", "head", "says"),
    [
        (nn.Sequential(nn.Conv1d(1, 3, 6), nn.Flatten()), None, "no Linear"),
        (mlp(), "nowhere", r"no layer 'nowhere'.*\b4\b"),
        (mlp(), "0", "layer '0' is not the model's head"),
        (nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)), "0", "layer '0' is not the model's head"),
        (Ends(nn.Unflatten(1, (3, 1))), None, r"expected logits of shape \(n, classes\).*\(2, 3, 1\)"),
        (Ends(lambda y: y[:, 0]), None, r"expected logits of shape \(n, classes\).*\(2,\)"),
        (Ends(lambda y: "text"), None, "got str"),
        (Ends(lambda y: y * torch.nan), None, "NaN or infinity"),
        (Ends(torch.sigmoid), None, "before the sigmoid"),
        (Twice(), None, "ran 2 times"),
    ],
)
def test_models_without_a_usable_head_are_refused_and_left_without_hooks(model, head, says):
    x = (
        torch.randn(2, 1, 6)
        if isinstance(model, nn.Sequential) and isinstance(model[0], nn.Conv1d)
        else torch.randn(2, 6)
    )
    with pytest.raises(HeadError, match=says):
        find_split(model, x, head)
    assert hooks(model) == 0


def test_a_head_that_sees_more_than_one_row_per_input_is_refused():
    class PerToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x).mean(1)

    with pytest.raises(HeadError, match="must run once a batch"):
        find_split(PerToken(), torch.randn(2, 4, 6))


def test_hooks_are_gone_after_a_failed_pass_and_the_next_one_works():
    model = mlp()
    x = torch.randn(2, 6)
    split = find_split(model, x)
    with pytest.raises(RuntimeError):
        split(torch.randn(2, 7))
    assert hooks(model) == 0
    assert split(x)[0].shape == (2, 8)
    with pytest.raises(ShapeError, match="cannot run on data of shape"):
        find_split(model, torch.randn(2, 7))
    assert hooks(model) == 0


def test_every_thread_gets_its_own_features():
    model = mlp()
    split = find_split(model, torch.randn(2, 6))
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1 + i % 5, 6, generator=generator) for i in range(200)]
    with torch.no_grad():
        want = [(model[:4](x), model(x)) for x in inputs]
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda x: tuple(t.detach() for t in split(x)), inputs))
    for (features, logits), (want_features, want_logits) in zip(got, want, strict=True):
        assert torch.equal(features, want_features)
        assert torch.equal(logits, want_logits)
    assert hooks(model) == 0


@pytest.mark.parametrize("how", ["by its owner", "through another split"])
def test_the_model_may_run_in_another_thread_meanwhile(how):
    class Interrupted(nn.Module):
        """In the middle of one pass, another thread makes a whole pass of its own."""

        def __init__(self):
            super().__init__()
            self.net, self.meanwhile = mlp(), None

        def forward(self, x):
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                thread = threading.Thread(target=meanwhile)
                thread.start()
                thread.join()
            return self.net(x)

    model, x, other = Interrupted(), torch.randn(2, 6), torch.randn(3, 6)
    first, second = find_split(model, x), Split(model, "net.4")
    model.meanwhile = (lambda: model(other)) if how == "by its owner" else (lambda: second(other))
    features, _ = first(x)
    assert torch.equal(features, model.net[:4](x))


def test_a_split_switches_the_model_to_evaluation():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).train()
    x = torch.randn(50, 6)
    split = find_split(model, x)
    assert torch.equal(split(x)[0], x)


def test_a_hook_seen_before_torch_knows_its_keywords_does_no_harm(monkeypatch):
    model = mlp()
    split = find_split(model, torch.randn(2, 6))
    real = split.head.register_forward_pre_hook
    monkeypatch.setattr(split.head, "register_forward_pre_hook", lambda hook, **_: real(hook))
    assert split(torch.randn(2, 6))[0].shape == (2, 8)
