from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

import queen
from queen import cli
from queen.bundle.store import MANIFEST
from queen.core.certify import records_bound
from queen.fit.files import write_image
from queen.options import Limits
from tests.bundle.test_store import read, sign
from tests.support.commands import as_json, run
from tests.support.guards import ALL_LETTERS, fitted, held_out, images, queries, train_set, trained
from tests.support.paths import ROOT

FACTORY = "tests.support.guards:make_mlp"
COMMANDS = [
    "demo", "protect", "ask", "inspect", "certify", "speed",
    "calibrate", "clients", "alarms", "pardon", "allow", "budget", "revoke",
    "serve", "audit",
]  # fmt: skip
GROUPS = ["bench", "keys"]  # of commands of their own: test_cli_bench.py, test_cli_keys.py


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder of everything a user may bring, right and wrong."""
    folder = tmp_path_factory.mktemp("files")
    fitted().save(folder / "head")
    fitted("network").save(folder / "cnn")
    fitted().save(folder / "tampered")
    guard_file = read(folder / "tampered")["files"]["guard"]["name"]
    (folder / "tampered" / guard_file).write_bytes((folder / "tampered" / guard_file).read_bytes()[:-1] + b"x")
    fitted("network").save(folder / "other_shadows")
    content = read(folder / "other_shadows")
    for recipe in content["shadows"]:
        recipe["args"]["width"] = 3
    sign(folder / "other_shadows", content)
    for kind in ("mlp", "cnn"):
        safetensors.torch.save_file(trained(kind).state_dict(), folder / f"{kind}.safetensors")
    torch.save(trained("mlp").state_dict(), folder / "mlp.pt")
    (folder / "text.safetensors").write_text("no weights")
    x, y = (t[:300].numpy() for t in train_set())
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "held_out.npz", **dict(zip("xy", (t.numpy() for t in held_out()), strict=True)))
    np.savez(folder / "train_images.npz", x=x.reshape(-1, 1, 8, 8), y=y)
    np.savez(folder / "only_x.npz", x=x)
    np.savez(folder / "float64.npz", x=x.astype(np.float64), y=y)
    np.savez(folder / "objects.npz", x=np.array([None, 1], object), y=y)
    np.savez(folder / "words.npz", x=x, y=np.array(["zero"] * len(x)))
    np.savez(folder / "fewer_labels.npz", x=x, y=y[:-1])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "truncated.npz").write_bytes((folder / "train.npz").read_bytes()[:9999])
    np.save(folder / "one.npy", x[0])
    np.save(folder / "nan.npy", x[:2] * np.nan)
    np.save(folder / "objects.npy", np.array([None, 1], object))
    np.save(folder / "words.npy", np.array(["zero"]))
    np.save(folder / "no_rows.npy", x[:0])
    np.save(folder / "narrow.npy", x[:2, :63])
    np.save(folder / "bytes.npy", x[:2].astype(np.uint8))
    np.save(folder / "big_endian.npy", x[:2].astype(">f4"))
    (folder / "truncated.npy").write_bytes((folder / "one.npy").read_bytes()[:200])
    (folder / "zip.npy").write_bytes((folder / "train.npz").read_bytes()[:9999])
    write_image(torch.from_numpy(x[0]).view(1, 8, 8), folder / "digit.png")
    (folder / "truncated.png").write_bytes((folder / "digit.png").read_bytes()[:60])
    (folder / "text.png").write_text("no image")
    (folder / "notes.txt").write_text("no database")
    return folder


@pytest.fixture
def here(files, monkeypatch) -> Path:
    monkeypatch.chdir(files)
    return files


def protect(*options: object, factory: str = FACTORY, weights="mlp.safetensors", data="train.npz") -> list[object]:
    return ["protect", factory, "--weights", weights, "--data", data, *options]


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example_that_parses(command):
    shown = " ".join(run(command, "--help").stdout.split())
    assert f"Example: queen {command}" in shown
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


# certify


def test_certify_gives_the_numbers_of_the_paper_and_the_sound_ones():
    found = as_json("certify", "--epsilon", ".1", "--delta", ".05", "--threshold", ".2")
    assert round(found["eta_hat"], 1) == 184.4
    assert round(found["rho_paper"], 4) == 0.0329
    assert round(found["rho_sound"], 4) == 0.0659
    assert found["records_per_class"] == 185
    assert found["radius"] == found["rho_sound"]
    assert set(found) == {
        "epsilon", "delta", "threshold", "radius", "eta_hat", "rho_paper", "rho_sound", "records_per_class",
        "statements",
    }  # fmt: skip


def test_certify_at_a_radius_changes_the_records_and_nothing_of_theorem_2():
    default, chosen = as_json("certify"), as_json("certify", "--radius", ".1")
    assert chosen["radius"] == 0.1
    assert chosen["records_per_class"] == records_bound(0.1, 0.2) == 80
    assert [chosen[k] for k in ("eta_hat", "rho_paper", "rho_sound")] == [
        default[k] for k in ("eta_hat", "rho_paper", "rho_sound")
    ]


def test_certify_in_words_names_every_number_and_statement():
    shown = " ".join(run("certify").stdout.split())
    assert all(word in shown for word in ("eta_hat", "184.444", "rho_paper", "0.0329", "rho_sound", "0.0659", "185"))
    assert all(statement in shown for statement in queen.certify(0.1, 0.05, 0.2).statements)


def test_certify_of_a_bundle_uses_its_limits_and_tells_of_its_held_out_data(here):
    found, report = as_json("certify", "head"), fitted().report
    assert (found["radius"], found["threshold"]) == (ALL_LETTERS.radius, ALL_LETTERS.threshold)
    assert found["benign_queries_before_first_spent_class"] == report["calibration_first_spent"] is not None
    assert found["benign_queries_replayed"] == report["calibration_images"] == len(held_out()[0])
    assert f"spent after {report['calibration_first_spent']} of them" in " ".join(run("certify", "head").stdout.split())
    assert as_json("certify", "head", "--radius", ".1", "--threshold", ".3")["radius"] == 0.1
    assert as_json("certify", "cnn")["benign_queries_before_first_spent_class"] is None


def test_certify_with_queries_estimates_theorem_3_for_every_verdict(here, tmp_path):
    np.save(tmp_path / "many.npy", queries().numpy())
    found = as_json("certify", "head", "--queries", tmp_path / "many.npy")["theorem3"]
    assert set(found) == set("ABCD")
    assert sum(one["rows"] for one in found.values()) == len(queries())
    assert all(found[letter]["bound"] == found[letter]["fitted"] == 0 for letter in "CD")
    assert all(0 <= found[letter]["bound"] <= found[letter]["fitted"] > 0 for letter in "AB")
    shown = " ".join(run("certify", "head", "--queries", tmp_path / "many.npy").stdout.split())
    assert all(f"Verdict {letter}, {one['rows']} queries" in shown for letter, one in found.items())


# protect


def test_protect_writes_the_bundle_the_library_would_fit(here, tmp_path):
    shown = run(*protect("--out", tmp_path / "b", "--radius", ".1", "--threshold", ".05", "--policy", "strict"))
    x, y = train_set()
    limits = Limits(radius=0.1, threshold=0.05)
    expected = queen.protect(trained("mlp"), (x[:300], y[:300]), limits=limits, policy="strict")
    guard = queen.load(tmp_path / "b")
    assert guard.bundle.identity == expected.bundle.identity
    assert guard.bundle.limits == limits
    assert (guard.bundle.policy, guard.bundle.observe) == ("strict", False)
    assert guard.bundle.recipe == queen.zoo.Recipe(FACTORY)
    assert "identity " + guard.bundle.identity[:16] in " ".join(shown.stdout.split())
    assert "training images are nearest" in shown.stderr


def test_protect_a_network_of_the_zoo_with_calibration_and_json(here, tmp_path):
    np.savez(tmp_path / "cal.npz", x=images(held_out()[0])[:200].numpy(), y=held_out()[1][:200].numpy())
    args = protect(
        "--arg", "classes=10", "--arg", "width=4", "--calibration", tmp_path / "cal.npz", "--out", tmp_path / "b",
        "--observe", "--seed", 1, "--head", "head",
        factory="small_cnn", weights="cnn.safetensors", data="train_images.npz",
    )  # fmt: skip
    result = CliRunner().invoke(cli.app, [str(a) for a in args] + ["--json"])
    found = json.loads(result.stdout)
    guard = queen.load(tmp_path / "b")
    assert result.stderr == ""
    assert found["bundle"] == str(tmp_path / "b")
    assert found["identity"] == guard.bundle.identity
    assert found["report"] == guard.report
    assert found["report"]["calibration_images"] == 200
    assert guard.bundle.recipe == queen.zoo.Recipe("queen.zoo:build", {"name": "small_cnn", "classes": 10, "width": 4})
    assert guard.bundle.observe


# ask


def test_ask_returns_what_the_guard_answers(here):
    expected = queen.load("head").answer(train_set()[0][:1], client="cli")
    found = as_json("ask", "head", "one.npy")
    assert found["verdicts"] == [verdict.value for verdict in expected.verdicts]
    assert found["probabilities"] == expected.probabilities.tolist()
    assert found["labels"] == expected.probabilities.argmax(1).tolist()


def test_ask_a_batch_meets_every_verdict_and_explain_shows_the_honest_answer_beside(here, tmp_path):
    x = queries()
    np.save(tmp_path / "batch.npy", x.numpy())
    found = as_json("ask", "head", tmp_path / "batch.npy", "--explain")
    guard = queen.load("head")
    with torch.inference_mode():
        honest = guard.bundle.split(x)[1].softmax(1)
    assert torch.equal(torch.tensor(found["honest"]), honest)
    letters = np.array(found["verdicts"])
    assert set(letters) == set("ABCD")
    same = np.array([a == b for a, b in zip(found["honest"], found["probabilities"], strict=True)])
    assert same[(letters == "C") | (letters == "D")].all()
    assert not same[letters == "B"].any()
    assert same[letters == "A"].mean() < 0.05  # at the border of its class a feature has no room to walk
    assert "honest" not in as_json("ask", "head", tmp_path / "batch.npy")


def test_ask_in_words_names_classes_and_only_explain_tells_verdict_and_honest_answer(here, tmp_path):
    reply = fitted().answer(queries(), client="a")
    row = [verdict.value for verdict in reply.verdicts].index("A")
    np.save(tmp_path / "outside.npy", queries()[row].numpy())
    plain = run("ask", "head", tmp_path / "outside.npy").stdout
    explained = run("ask", "head", tmp_path / "outside.npy", "--explain").stdout
    found = as_json("ask", "head", tmp_path / "outside.npy", "--explain")
    best = found["labels"][0]
    assert f"digit {best}" in plain
    assert "verdict" not in plain
    assert "honest" not in plain
    assert "query 0, verdict A (outside)" in " ".join(explained.split())
    line = next(line for line in explained.splitlines() if line.startswith(f"digit {best}"))
    assert line.split()[2:] == [f"{found['probabilities'][0][best]:.4f}", f"{found['honest'][0][best]:.4f}"]
    assert line.split()[2] != line.split()[3]


def test_ask_with_an_image_equals_ask_with_its_pixels(here, tmp_path):
    np.save(tmp_path / "pixels.npy", np.asarray(Image.open("digit.png"), np.float32)[None] / 255)
    found = as_json("ask", "cnn", "digit.png")
    assert found == as_json("ask", "cnn", tmp_path / "pixels.npy")
    assert len(found["probabilities"]) == 1


def test_a_ledger_remembers_between_calls_and_for_each_client(here, tmp_path):
    x = queries()
    fresh = [verdict.value for verdict in fitted().answer(x, client="a").verdicts].index("C")
    np.save(tmp_path / "fresh.npy", x[fresh].numpy())

    def ask(*options: object) -> str:
        return as_json("ask", "head", tmp_path / "fresh.npy", *options)["verdicts"][0]

    ledger = ["--ledger", tmp_path / "ledger.sqlite"]
    assert [ask(*ledger), ask(*ledger, "--explain"), ask(*ledger)] == ["C", "D", "D"]
    assert ask(*ledger, "--client", "another") == "C"
    assert [ask(), ask()] == ["C", "C"]


@pytest.mark.slow
def test_class_names_with_square_brackets_are_shown_as_they_are(here, tmp_path):
    guard = queen.protect(trained("mlp"), train_set(), factory=FACTORY, class_names=[f"[b]{k}" for k in range(10)])
    guard.save(tmp_path / "b")
    assert "[b]0" in run("ask", tmp_path / "b", "one.npy").stdout
    assert "[b]9" in run("inspect", tmp_path / "b").stdout


# inspect


def test_inspect_tells_all_about_a_bundle(here):
    guard = queen.load("head")
    found = as_json("inspect", "head")
    assert found["identity"] == guard.bundle.identity
    assert (found["policy"], found["head"], found["factory"]) == ("paper", "3", FACTORY)
    assert found["threshold"] == ALL_LETTERS.threshold
    assert found["report"] == guard.report
    assert [c["class"] for c in found["classes"]] == [f"digit {k}" for k in range(10)]
    assert [c["spread"] for c in found["classes"]] == guard.bundle.geometry.spreads.tolist()
    assert {c["radius"] for c in found["classes"]} == {ALL_LETTERS.radius}
    assert [c["records_bound"] for c in found["classes"]] == guard.report["records_per_class"]
    shown = run("inspect", "head").stdout
    spreads = [f"{c['class']} {c['spread']:.4g}" for c in found["classes"]]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert all(any(line.startswith(spread) for line in lines) for spread in spreads)
    assert all(word in shown for word in (found["identity"], "paper", FACTORY, f"{guard.report['agreement']:.1%}"))


def test_inspect_says_when_a_bundle_only_observes_and_shows_a_radius_for_each_class(here, tmp_path):
    radii = tuple(0.1 + k / 100 for k in range(10))
    fitted(observe=True, limits=Limits(radius=radii)).save(tmp_path / "b")
    assert "observe only" in run("inspect", tmp_path / "b").stdout
    assert [c["radius"] for c in as_json("inspect", tmp_path / "b")["classes"]] == list(radii)


@pytest.mark.parametrize("bundle", ["head", "cnn"])
def test_the_map_is_a_picture_that_is_not_blank(here, tmp_path, bundle):
    shown = run("inspect", bundle, "--map", tmp_path / "map.png").stdout
    assert "map.png" in "".join(shown.split())
    with Image.open(tmp_path / "map.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 100
    assert 0.5 < (pixels == 255).all(1).mean() < 0.99


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
    "protect, radius -1": protect("--radius", "-1"),
    "protect, threshold nan": protect("--threshold", "nan"),
    "protect, unknown policy": protect("--policy", "kind"),
    "protect, unknown shadows": protect("--shadows", "long"),
    "protect, unknown network": protect(factory="vgg99"),
    "protect, unknown module": protect(factory="nowhere:make"),
    "protect, unknown function": protect(factory="tests.support.guards:nothing"),
    "protect, factory is a shell": protect(factory="os:system"),
    "protect, factory makes no network": protect(factory="tests.support.guards:digits"),
    "protect, unknown layer": protect("--head", "nothing"),
    "protect, layer that is no head": protect("--head", "0"),
    "protect, argument without a value": protect("--arg", "width"),
    "protect, argument without a name": protect("--arg", "=32"),
    "protect, unknown argument": protect("--arg", "depth=3"),
    "protect, argument of another type": protect("--arg", "width=wide"),
    "protect, negative argument": protect("--arg", "width=-1"),
    "protect, missing argument": protect(factory="small_cnn"),
    "protect, pickled weights": protect(weights="mlp.pt"),
    "protect, missing weights": protect(weights="nowhere.safetensors"),
    "protect, text for weights": protect(weights="text.safetensors"),
    "protect, weights of another network": protect(weights="cnn.safetensors"),
    "protect, missing data": protect(data="nowhere.npz"),
    "protect, npy for data": protect(data="one.npy"),
    "protect, image for data": protect(data="digit.png"),
    "protect, data without y": protect(data="only_x.npz"),
    "protect, objects for data": protect(data="objects.npz"),
    "protect, words for labels": protect(data="words.npz"),
    "protect, fewer labels than images": protect(data="fewer_labels.npz"),
    "protect, empty data": protect(data="empty.npz"),
    "protect, truncated data": protect(data="truncated.npz"),
    "protect, data of another shape": protect(data="train_images.npz"),
    "protect, calibration without y": protect("--calibration", "only_x.npz"),
    "protect, device nobody knows": protect("--device", "abacus"),
    "protect, out in a file": protect("--out", "one.npy/b", "--json"),
}


@pytest.mark.parametrize("args", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(here, tmp_path, args, monkeypatch, capsys):
    out = ["--out", tmp_path / "b"] if args[0] == "protect" and "--out" not in args else []
    monkeypatch.setattr(sys, "argv", ["queen", *map(str, [*args, *out])])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "args", [["ask", "head", "big_endian.npy"], protect("--out", "made", data="float64.npz")], ids=["endian", "float64"]
)
def test_numbers_in_another_form_are_fine(here, args, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["queen", *map(str, args)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    assert "error" not in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("args", [["ask", "head", "one.npy"], protect("--out", "never")], ids=["ask", "protect"])
def test_cuda_without_a_gpu_is_one_line(here, args, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["queen", *map(str, args), "--device", "cuda"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_message_for_an_unknown_device_does_not_blame_the_bundle(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["queen", "ask", "head", "one.npy", "--device", "abacus"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "damaged" not in capsys.readouterr().err


def test_a_mistaken_bundle_leaves_no_ledger_behind(here, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["queen", "ask", "nowhere", "one.npy", "--ledger", str(tmp_path / "new.sqlite")])
    with pytest.raises(SystemExit):
        cli.main()
    assert not (tmp_path / "new.sqlite").exists()


def test_a_mistake_says_what_is_wrong(here, monkeypatch, capsys):
    words = {
        "missing bundle": "nowhere",
        "tampered bundle": "checksum",
        "protect, unknown policy": "paper, strict, sentinel, artifact",
        "protect, unknown shadows": "head, network",
        "protect, pickled weights": "safetensors.torch.save_file",
        "protect, weights of another network": "cnn.safetensors",
        "protect, data without y": "x and y",
        "image for a model of numbers": ".npy",
        "NaN query": "NaN",
        "epsilon 2": "epsilon",
    }
    for name, word in words.items():
        args = MISTAKES[name] + (["--out", "never"] if name.startswith("protect") else [])
        monkeypatch.setattr(sys, "argv", ["queen", *map(str, args)])
        with pytest.raises(SystemExit):
            cli.main()
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
def test_a_factory_beside_the_user_is_found_when_protecting_and_when_asking(files, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef make(width: int) -> nn.Module:\n"
        "    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))\n"
    )
    args = protect(
        "--arg", "width=32", factory="mine:make", weights=files / "mlp.safetensors", data=files / "train.npz"
    )
    done = program(*args, "--out", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = program("ask", "b", files / "one.npy", "--json", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["labels"] == [0]
    assert json.loads((tmp_path / "b" / MANIFEST).read_text())["model"]["recipe"]["factory"] == "mine:make"
    assert (tmp_path / "b.secret").stat().st_mode & 0o077 == 0


def test_a_missing_extra_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "queen.demo", None)
    monkeypatch.setattr(sys, "argv", ["queen", "demo"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: this command needs 'queen.demo': pip install 'queen[demo]'\n"
