"""What is slow to make is made once, by one process, and kept whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from queen.bench.datasets import digits
from queen.cache import Cache, code_version, fingerprint
from queen.errors import OptionError
from queen.training import Schedule, train
from queen.zoo import build, seeded

torch.set_num_threads(1)

QUICK = Schedule(epochs=1, batch=32)


def blank(number: int = 0) -> nn.Module:
    with seeded(torch.Generator().manual_seed(number)):
        return build("small_cnn", classes=10, grid=2, width=4, hidden=16)


def taught(network: nn.Module) -> nn.Module:
    x, y = digits()
    return train(network, x[:200], y[:200], QUICK, torch.Generator().manual_seed(1))


def must_not(*_: object) -> None:
    raise AssertionError("made again")


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# Networks


def test_a_network_is_taught_once_and_answers_the_same_to_the_last_bit(tmp_path):
    cache, x = Cache(tmp_path / "new" / "folder"), digits()[0][:300]
    first = cache.network("a", blank(), taught)
    second = Cache(tmp_path / "new" / "folder").network("a", blank(9), must_not)
    assert same_weights(first, second)
    assert not same_weights(first, blank())
    with torch.inference_mode():
        for part in (x, x[:1], x[:37]):
            assert torch.equal(first(part), second(part))
    assert not first.training
    assert not second.training
    assert visible(cache.folder) == ["a.safetensors"]


def test_training_leaves_another_memory_layout_that_the_cache_takes_away(tmp_path):
    """Or the first process would compute with channels last, all later ones without, and round differently."""
    trained = taught(blank())
    assert not trained.state_dict()["blocks.3.weight"].is_contiguous()
    given = Cache(tmp_path).network("a", blank(), lambda _: trained)
    assert all(value.is_contiguous() for value in given.state_dict().values())
    assert same_weights(given, trained)


def test_other_names_are_other_networks(tmp_path):
    cache = Cache(tmp_path)
    a, b = (cache.network(name, blank(), lambda _, n=n: blank(n)) for n, name in enumerate("ab"))
    assert not same_weights(a, b)
    assert visible(tmp_path) == ["a.safetensors", "b.safetensors"]


def other_shape() -> dict[str, torch.Tensor]:
    return build("small_cnn", classes=10, grid=2, width=8, hidden=16).state_dict()


def one_key_less() -> dict[str, torch.Tensor]:
    return {key: torch.ones_like(value) for key, value in blank().state_dict().items() if key != "head.bias"}


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no weights at all"),
    "another shape": lambda path: save_file(other_shape(), path),
    "a key is missing": lambda path: save_file(one_key_less(), path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_again_as_if_it_had_never_been(tmp_path, damage):
    cache = Cache(tmp_path)
    expected = cache.network("a", blank(), taught)
    damage(tmp_path / "a.safetensors")
    again = cache.network("a", blank(), taught)
    assert same_weights(again, expected)
    assert set(load_file(tmp_path / "a.safetensors")) == set(expected.state_dict())
    assert visible(tmp_path) == ["a.safetensors"]


def test_a_failed_lesson_leaves_nothing_and_can_be_tried_again(tmp_path):
    def fail(_: nn.Module) -> nn.Module:
        raise RuntimeError("no memory")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="no memory"):
        cache.network("a", blank(), fail)
    assert visible(tmp_path) == []
    assert same_weights(cache.network("a", blank(), taught), taught(blank()))


TEACHER = """
import sys, time
from pathlib import Path
import torch
from queen.cache import Cache
folder = Path(sys.argv[1])

def teach(network):
    with (folder / "lessons.txt").open("a") as file:
        file.write("one\\n")
    time.sleep(0.5)
    torch.nn.init.ones_(network.weight)
    return network

def find():
    with (folder / "lessons.txt").open("a") as file:
        file.write("fact\\n")
    time.sleep(0.3)
    return [1, 2]

(folder / f"ready-{sys.argv[2]}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.01)
cache = Cache(folder / "cache")
network = cache.network("a", torch.nn.Linear(3, 2), teach)
print(network.weight.sum().item(), network.bias.tolist(), cache.facts("b", find))
"""


@pytest.mark.slow
def test_two_processes_at_once_teach_only_once(tmp_path):
    command = [sys.executable, "-c", TEACHER, str(tmp_path)]
    started = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said[0] == said[1] != ""
    assert sorted((tmp_path / "lessons.txt").read_text().split()) == ["fact", "one"]
    assert visible(tmp_path / "cache") == ["a.safetensors", "b.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from queen.cache import Cache

def teach(network):
    os.kill(os.getpid(), signal.SIGKILL)

Cache(Path(sys.argv[1])).network("a", torch.nn.Linear(3, 2), teach)
"""


@pytest.mark.slow
def test_a_killed_process_holds_no_lock(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == -9
    network = Cache(tmp_path).network("a", nn.Linear(3, 2), lambda network: network)
    assert isinstance(network, nn.Linear)


# Facts


def test_facts_are_found_once(tmp_path):
    cache, fact = Cache(tmp_path), {"a": [1, 2.5, None, True, "ö"], "b": {"c": 1e-300}}
    assert cache.facts("f", lambda: fact) == fact
    assert Cache(tmp_path).facts("f", must_not) == fact
    assert json.loads((tmp_path / "f.json").read_text()) == fact


@pytest.mark.parametrize("broken", ["", '{"a": [1,', "\xff"])
def test_damaged_facts_are_found_again(tmp_path, broken):
    cache = Cache(tmp_path)
    cache.facts("f", lambda: 1)
    (tmp_path / "f.json").write_bytes(broken.encode("latin-1"))
    assert cache.facts("f", lambda: 2) == 2
    assert Cache(tmp_path).facts("f", must_not) == 2


def test_facts_that_json_cannot_say_leave_nothing(tmp_path):
    with pytest.raises(TypeError):
        Cache(tmp_path).facts("f", lambda: {1, 2})
    assert visible(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(OptionError, match=f"cannot make the folder '{path}'"):
            Cache(path)


# Fingerprints


def test_a_fingerprint_depends_on_content_shape_and_type():
    zeros = torch.zeros(2, 3)
    parts = [
        zeros, zeros.view(3, 2), zeros.flatten(), zeros.double(), zeros.int(), zeros.bfloat16(), zeros[:1],
        zeros.index_fill(0, torch.tensor([1]), 1e-30), -zeros, b"", b"a", torch.zeros(0, 3), torch.zeros(0, 2),
        torch.tensor(0.0), torch.tensor(True),
    ]  # fmt: skip
    assert len({fingerprint(part) for part in parts}) == len(parts)
    assert fingerprint(zeros, b"a") != fingerprint(b"a", zeros)
    assert fingerprint() != fingerprint(zeros)


def test_a_fingerprint_does_not_depend_on_memory():
    x = torch.randn(4, 3, 5, 5)
    assert fingerprint(x) == fingerprint(x.contiguous(memory_format=torch.channels_last))
    assert fingerprint(x) == fingerprint(x.clone().requires_grad_())
    assert fingerprint(x[:, 1]) == fingerprint(x[:, 1].clone())


def test_parts_do_not_run_into_each_other():
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")
    a, b = torch.tensor([1, 2]), torch.tensor([3])
    assert fingerprint(a, b) != fingerprint(torch.tensor([1]), torch.tensor([2, 3]))


# Tensors, times and code


def test_tensors_are_made_once_and_made_again_where_the_file_is_damaged(tmp_path):
    made = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor([True, False])}
    first = Cache(tmp_path).tensors("t", lambda: made)
    second = Cache(tmp_path).tensors("t", must_not)
    for name, value in made.items():
        assert torch.equal(first[name], value)
        assert torch.equal(second[name], value)
    (tmp_path / "t.safetensors").write_bytes(b"damaged")
    assert torch.equal(Cache(tmp_path).tensors("t", lambda: made)["a"], made["a"])


def test_what_was_timed_says_who_did_it_and_the_seconds_it_took_then(tmp_path):
    first = Cache(tmp_path).timed("f", lambda: [1, 2])
    second = Cache(tmp_path).timed("f", must_not)
    assert first.value == second.value == [1, 2]
    assert first.seconds == second.seconds >= 0
    assert (first.reused, second.reused) == (False, True)


def test_a_changed_line_anywhere_in_a_package_is_another_version(tmp_path, monkeypatch):
    package = tmp_path / "some_package" / "below"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "module.py").write_text("A = 1\n")
    (tmp_path / "alone.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [code_version.__wrapped__("some_package"), code_version.__wrapped__("alone")]
    (package / "module.py").write_text("A = 2\n")
    after = [code_version.__wrapped__("some_package"), code_version.__wrapped__("alone")]
    assert before[0] != after[0]
    assert before[1] == after[1]
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        code_version.__wrapped__("nowhere")
