from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import queen
from queen import cli
from queen.bundle.store import MANIFEST
from tests.support.commands import FACTORY, protect_args, run
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

COMMANDS = [
    "demo", "protect", "ask", "inspect", "certify", "speed",
    "price", "calibrate", "clients", "alarms", "pardon", "allow", "budget", "revoke",
    "serve", "guard", "audit", "migrate", "check",
]  # fmt: skip
GROUPS = ["bench", "keys", "ledger"]  # of commands, each with a test file of its own


@pytest.fixture
def exit_code(monkeypatch):
    """Run the program inside this process; gives its exit code."""

    def run_main(*args: object) -> int:
        monkeypatch.setattr(sys, "argv", ["queen", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code

    return run_main


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example_that_parses(command):
    shown = " ".join(run(command, "--help").stdout.split())
    assert f"Example: `queen {command}" in shown
    click_command = get_command(cli.app).commands[command]
    line = click_command.epilog.partition("`")[2].partition("`")[0]
    words = shlex.split(line.partition(">")[0])
    assert words[:2] == ["queen", command]
    click_command.make_context(command, words[2:])  # raises where an option does not exist
    assert [p.name for p in click_command.params if p.param_type_name == "option" and not p.help] == []


def test_the_commands_are_those_and_no_command_shows_the_help():
    assert sorted(get_command(cli.app).commands) == sorted(COMMANDS + GROUPS)
    shown = CliRunner().invoke(cli.app, []).output
    assert all(command in shown for command in COMMANDS + GROUPS)


# Mistakes: one line, exit code 2, no stack trace

MISTAKES = {
    "missing bundle": ["ask", "nowhere", "one.npy"],
    "file for a bundle": ["inspect", "one.npy"],
    "folder without a bundle": ["certify", "."],
    "tampered bundle": ["ask", "tampered", "one.npy"],
    "bundle whose shadows do not fit": ["inspect", "other_shadows"],
    "missing query": ["ask", "head", "nowhere.npy"],
    "text for an image": ["ask", "cnn", "text.png"],
    "truncated image": ["ask", "cnn", "truncated.png"],
    "weights for a query": ["ask", "cnn", "cnn.safetensors"],
    "folder for a query": ["ask", "cnn", "head"],
    "image for a model of numbers": ["ask", "head", "digit.png"],
    "NaN query": ["ask", "head", "nan.npy"],
    "object query": ["ask", "head", "objects.npy"],
    "query of words": ["ask", "head", "words.npy"],
    "query without rows": ["ask", "head", "no_rows.npy"],
    "query of another shape": ["ask", "head", "narrow.npy"],
    "query of another type": ["ask", "head", "bytes.npy"],
    "truncated query": ["ask", "head", "truncated.npy"],
    "broken zip for a query": ["ask", "head", "zip.npy"],
    "empty client": ["ask", "head", "one.npy", "--client", ""],
    "ledger is a folder": ["ask", "head", "one.npy", "--ledger", "."],
    "ledger is a text": ["ask", "head", "one.npy", "--ledger", "notes.txt"],
    "model is a shell": ["ask", "head", "one.npy", "--model", "os:system"],
    "another model": ["ask", "head", "one.npy", "--model", "queen.zoo:build"],
    "device nobody knows": ["ask", "head", "one.npy", "--device", "abacus"],
    "map in a missing folder": ["inspect", "head", "--map", "nowhere/map.png"],
    "queries without a bundle": ["certify", "--queries", "one.npy"],
    "epsilon 2": ["certify", "--epsilon", "2"],
    "epsilon 0": ["certify", "--epsilon", "0"],
    "epsilon nan": ["certify", "--epsilon", "nan"],
    "epsilon too small to square": ["certify", "--epsilon", "1e-200"],
    "delta 0": ["certify", "--delta", "0"],
    "threshold inf": ["certify", "--threshold", "inf"],
    "threshold too large to count": ["certify", "--threshold", "1e308"],
    "radius -1": ["certify", "--radius", "-1"],
    "radius too small to square": ["certify", "--radius", "1e-200"],
    "protect, radius -1": protect_args("--radius", "-1"),
    "protect, threshold nan": protect_args("--threshold", "nan"),
    "protect, unknown policy": protect_args("--policy", "kind"),
    "protect, unknown shadows": protect_args("--shadows", "long"),
    "protect, unknown network": protect_args(factory="vgg99"),
    "protect, unknown module": protect_args(factory="nowhere:make"),
    "protect, unknown function": protect_args(factory="tests.support.guards:nothing"),
    "protect, factory is a shell": protect_args(factory="os:system"),
    "protect, factory makes no network": protect_args(factory="tests.support.guards:digits"),
    "protect, unknown layer": protect_args("--head", "nothing"),
    "protect, layer that is no head": protect_args("--head", "0"),
    "protect, argument without a value": protect_args("--arg", "width"),
    "protect, argument without a name": protect_args("--arg", "=32"),
    "protect, factory that crashes": protect_args(factory="tests.support.commands:crash"),
    "protect, unknown argument": protect_args("--arg", "depth=3"),
    "protect, argument of another type": protect_args("--arg", "width=wide"),
    "protect, negative argument": protect_args("--arg", "width=-1"),
    "protect, missing argument": protect_args(factory="small_cnn"),
    "protect, pickled weights": protect_args(weights="mlp.pt"),
    "protect, missing weights": protect_args(weights="nowhere.safetensors"),
    "protect, text for weights": protect_args(weights="text.safetensors"),
    "protect, weights of another network": protect_args(weights="cnn.safetensors"),
    "protect, missing data": protect_args(data="nowhere.npz"),
    "protect, npy for data": protect_args(data="one.npy"),
    "protect, image for data": protect_args(data="digit.png"),
    "protect, data without y": protect_args(data="only_x.npz"),
    "protect, objects for data": protect_args(data="objects.npz"),
    "protect, words for labels": protect_args(data="words.npz"),
    "protect, fewer labels than images": protect_args(data="fewer_labels.npz"),
    "protect, empty data": protect_args(data="empty.npz"),
    "protect, truncated data": protect_args(data="truncated.npz"),
    "protect, data of another shape": protect_args(data="train_images.npz"),
    "protect, calibration without x": protect_args("--calibration", "only_y.npz"),
    "protect, missing foreign images": protect_args("--calibration", "held_out.npz", "--foreign", "nowhere"),
    "protect, foreign images for a model of vectors": protect_args("--calibration", "held_out.npz", "--foreign", "."),
    "calibrate, no data": ["calibrate", "head"],
    "calibrate, a log without clients": ["calibrate", "head", "--from-log", "."],
    "calibrate, clients without a log": ["calibrate", "head", "--data", "held_out.npz", "--clients", "notes.txt"],
    "calibrate, no log there": ["calibrate", "head", "--from-log", ".", "--clients", "notes.txt"],
    "calibrate, no clients there": ["calibrate", "head", "--from-log", ".", "--clients", "nowhere.txt"],
    "certify, a ledger without a bundle": ["certify", "--ledger", "nowhere.sqlite"],
    "certify, no ledger there": ["certify", "watched", "--ledger", "nowhere.sqlite"],
    "protect, device nobody knows": protect_args("--device", "abacus"),
    "protect, out in a file": protect_args("--out", "one.npy/b", "--json"),
    "protect, text for data": protect_args(data="notes.txt"),
    "protect, text for calibration images": protect_args("--calibration", "notes.txt"),
    "protect, a network here and one elsewhere": protect_args("--upstream", "http://127.0.0.1:1"),
    "protect, nobody upstream": ["protect", "--upstream", "http://127.0.0.1:1", "--data", "train.npz"],
    "check, missing data": ["check", FACTORY, "--weights", "mlp.safetensors", "--data", "nowhere.npz"],
    "text for a query": ["ask", "head", "notes.npy"],
    "several arrays for a query": ["ask", "head", "train.npz"],
    "clients of nothing": ["clients"],
    "clients of two places": ["clients", "--ledger", "a.sqlite", "--server", "http://127.0.0.1:1"],
    "clients, nobody there": ["clients", "--server", "http://127.0.0.1:1", "--key", "mine"],
    "serve, text for settings": ["serve", "head", "--config", "notes.txt"],
    "serve, weights for settings": ["serve", "head", "--config", "mlp.safetensors"],
    "serve, half of TLS": ["serve", "head", "--tls-cert", "notes.txt"],
}


@pytest.mark.parametrize("args", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(here, tmp_path, args, exit_code, capsys):
    out = ["--out", tmp_path / "b"] if args[0] == "protect" and "--out" not in args else []
    assert exit_code(*args, *out) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    said = shown.err.splitlines()
    assert [line.partition(": ")[0] for line in said] == (["warning"] if "--key" in args else []) + ["error"]
    assert [word for word in ("Traceback", "[Errno", "pickle.load", "setting 'settings'") if word in shown.err] == []
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "args",
    [["ask", "head", "big_endian.npy"], protect_args("--out", "made", data="float64.npz")],
    ids=["endian", "float64"],
)
def test_numbers_in_another_form_are_fine(here, args, exit_code, capsys):
    assert exit_code(*args) == 0
    assert "error" not in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("args", [["ask", "head", "one.npy"], protect_args("--out", "never")], ids=["ask", "protect"])
def test_cuda_without_a_gpu_is_one_line(here, args, exit_code, capsys):
    assert exit_code(*args, "--device", "cuda") == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_message_for_an_unknown_device_does_not_blame_the_bundle(here, exit_code, capsys):
    exit_code("ask", "head", "one.npy", "--device", "abacus")
    assert "damaged" not in capsys.readouterr().err


def test_a_mistaken_bundle_leaves_no_ledger_behind(here, tmp_path, exit_code):
    exit_code("ask", "nowhere", "one.npy", "--ledger", tmp_path / "new.sqlite")
    assert not (tmp_path / "new.sqlite").exists()


def test_a_mistake_says_what_is_wrong(here, exit_code, capsys):
    words = {
        "missing bundle": "nowhere",
        "tampered bundle": "checksum",
        "protect, unknown policy": "paper, strict, sentinel, artifact",
        "protect, unknown shadows": "head, network",
        "protect, pickled weights": "safetensors.torch.save_model",
        "protect, text for data": "'notes.txt': it is neither an .npy nor an .npz file",
        "protect, a network here and one elsewhere": "got both",
        "protect, nobody upstream": "cannot connect to 127.0.0.1:1: Connection refused",
        "protect, unknown network": "small_cnn",
        "protect, factory that crashes": "cannot build 'tests.support.commands:crash': KeyError: 'width'",
        "protect, missing data": "cannot read data 'nowhere.npz': No such file or directory",
        "text for a query": "neither an .npy nor an .npz file",
        "several arrays for a query": "train.npz",
        "device nobody knows": "expected cpu, cuda",
        "model is a shell": "cannot rebuild the bundle's model: factory",
        "clients of two places": "not both",
        "clients, nobody there": "http://127.0.0.1:1: Connection refused",
        "serve, text for settings": "expected a line for every setting in 'notes.txt'",
        "serve, half of TLS": "error: tls_cert and tls_key go together",
        "protect, weights of another network": "cnn.safetensors",
        "protect, data without y": "x and y",
        "image for a model of numbers": ".npy",
        "NaN query": "NaN",
        "epsilon 2": "epsilon",
    }
    for name, word in words.items():
        args = MISTAKES[name] + (["--out", "never"] if name.startswith("protect") else [])
        exit_code(*args)
        assert word in capsys.readouterr().err


# The real program


def program(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queen", *map(str, args)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_the_program_answers_on_standard_output_and_ends_with_0():
    done = program("certify", "--json", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["records_per_class"] == 185


@pytest.mark.slow
def test_the_program_ends_with_2_and_one_line_on_standard_error(files, tmp_path):
    done = program("ask", files / "tampered", files / "one.npy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert program("ask", cwd=tmp_path).returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk here")
@pytest.mark.parametrize("option", [[], ["--json"]], ids=["words", "json"])
def test_a_full_disk_is_one_line(option):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "queen", "certify", *option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@pytest.mark.slow
def test_a_factory_beside_the_user_is_found_when_protecting_and_when_asking(files, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef make(width: int) -> nn.Module:\n"
        "    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))\n"
    )
    args = protect_args(
        "--arg", "width=32", factory="mine:make", weights=files / "mlp.safetensors", data=files / "train.npz"
    )
    done = program(*args, "--out", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = program("ask", "b", files / "one.npy", "--json", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["labels"] == [0]
    assert json.loads((tmp_path / "b" / MANIFEST).read_text())["model"]["recipe"]["factory"] == "mine:make"
    assert (tmp_path / "b.secret").stat().st_mode & 0o077 == 0


def test_the_version_is_that_of_the_package(capsys, exit_code):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"queen {queen.__version__}\n"
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == queen.__version__


def test_a_missing_extra_is_one_line(monkeypatch, exit_code, capsys):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    assert exit_code("demo") == 2
    assert "pip install 'queen-guard[demo]'" in capsys.readouterr().err
