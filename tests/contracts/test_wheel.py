"""The wheel in an environment that has our base dependencies and nothing else: it holds every file, and every command
either works or names the extra that it needs.

The environment is a fresh one without pip. The dependencies are links to the packages that the tests run with, so that
neither a network nor a gigabyte is needed; that an index serves them is not tested.
"""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.torch import save_file

from tests.support.guards import held_out, images, train_set, trained
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


def run(*command: object, **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[str]:
    """Files of the repository, the new ones too, without those that are only made."""
    named = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    return [name for name in named if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, so that nothing left over from earlier gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked():
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", source / "dist")
    run(sys.executable, "-m", "pip", "wheel", *options, source)
    [built] = (source / "dist").iterdir()
    return built


def read_metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    assert wheel.name.startswith("queen_guard-")
    expected = {name.removeprefix("src/") for name in tracked() if name.startswith("src/queen/")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected
    endings = {".js", ".css", ".html", ".svg", ".lua", ".yaml", ".proto", ".pyi", ".typed", ".py"}
    assert endings <= {Path(name).suffix or Path(name).name for name in packed} | {".typed"}


def test_the_wheel_is_named_as_its_extras_and_its_hints_say(wheel):
    metadata = read_metadata(wheel)
    assert metadata["Name"] == "queen-guard"
    own = [line for line in metadata.get_all("Requires-Dist") if canonicalize_name(Requirement(line).name) == "queen"]
    assert own == []
    assert {"bench", "demo", "ray", "redis", "serve", "web"} <= set(metadata.get_all("Provides-Extra"))


def closure(requirements: list[str]) -> Iterator[Distribution]:
    """The installed packages that these need, with all that those need."""
    waiting, seen = [Requirement(line) for line in requirements], set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        wanted = [{"extra": extra} for extra in ("", *need.extras)]
        if name in seen or (need.marker and not any(map(need.marker.evaluate, wanted))):
            continue
        seen.add(name)
        found = distribution(name)
        yield found
        for line in found.requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(map(inner.marker.evaluate, wanted)):
                waiting.append(inner)


@pytest.fixture(scope="module")
def base_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and links to its base dependencies."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for package in closure(read_metadata(wheel).get_all("Requires-Dist")):
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
    return python


TRY = """
import contextlib, io, json, sys
from queen.cli import main

told = []
for arguments in json.load(open(sys.argv[1])):
    sys.argv, code = ["queen", *arguments], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
PROTECT = "protect small_cnn --arg classes=10 --arg width=4 --weights net.safetensors --data train.npz --policy paper"
WORKS = [
    "--version",
    "--help",
    f"{PROTECT} --out bundle",
    "inspect bundle",
    "ask bundle one.npy --ledger clients.sqlite",
    "clients --ledger clients.sqlite",
    "certify bundle",
    "keys new alice",
    "serve --help",
    "bench plan smoke.yaml",
    f"bench table {ROOT}/results/smoke",
]
NEEDS = {
    "ask bundle one.png": "bench",
    f"{PROTECT} --out other --calibration held.npy --foreign pictures": "bench",
    "inspect bundle --map map.png": "bench",
    "demo": "demo",
    "demo --adaptive --no-price": "demo",
    "bench run smoke.yaml --out results": "demo",
    "bench run smoke.yaml --out results --ray local": "ray",
    f"bench plot {ROOT}/results/smoke": "bench",
    "serve bundle": "serve",
    "serve bundle --port 9000 --policy strict": "serve",
    "serve bundle --ray": "ray",
    "guard bundle --upstream http://127.0.0.1:1": "serve",
    "protect --upstream http://127.0.0.1:1 --data train.npz --out other": "serve",
    "protect model.onnx --data train.npz --out other": "onnx",
    "check model.onnx --data train.npz": "onnx",
    "calibrate bundle --data held.npy --condition jpeg": "bench",
    "clients --ledger redis://127.0.0.1:1/0": "redis",
    "alarms --ledger rediss://127.0.0.1:1/0": "redis",
    "keys list --ledger redis://127.0.0.1:1/0": "redis",
    "pardon alice --ledger redis://127.0.0.1:1/0": "redis",
    "migrate redis://127.0.0.1:1/0": "redis",
}


@pytest.fixture(scope="module")
def told(base_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What every command says without any extra: exit code, standard output and standard error."""
    folder = tmp_path_factory.mktemp("told")
    save_file(trained("cnn").state_dict(), folder / "net.safetensors")
    x, y = train_set()
    np.savez(folder / "train.npz", x=images(x).numpy(), y=y.numpy())
    np.save(folder / "held.npy", images(held_out()[0]).numpy())
    np.save(folder / "one.npy", images(held_out()[0][:1]).numpy())
    (folder / "pictures").mkdir()
    for name in ("one.png", "pictures/one.png"):
        (folder / name).write_bytes(b"never read without Pillow")
    shutil.copy(ROOT / "benchmarks" / "smoke.yaml", folder)
    commands = [*WORKS, *NEEDS]
    (folder / "commands.json").write_text(json.dumps([command.split() for command in commands]))
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    answers = json.loads(run(base_python, "-c", TRY, "commands.json", cwd=folder, env=environment).splitlines()[-1])
    return dict(zip(commands, map(tuple, answers), strict=True))


@pytest.mark.parametrize("command", WORKS)
def test_without_extras_it_works(told, command):
    code, _, said = told[command]
    assert (code, "Traceback" in said) == (0, False), said


@pytest.mark.parametrize("command", NEEDS)
def test_without_its_extra_it_names_it(told, command):
    code, printed, said = told[command]
    assert (code, "Traceback" in said + printed) == (2, False), said
    assert f"pip install 'queen-guard[{NEEDS[command]}]'" in said


def test_in_python_a_missing_extra_is_named_too(base_python):
    code = "import queen\ntry:\n    import queen.web\nexcept ImportError as error:\n    print(error)"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    assert "pip install 'queen-guard[web]'" in run(base_python, "-c", code, env=environment)


def test_the_environment_has_the_wheels_own_package_and_no_extra(base_python):
    code = "import queen, importlib.util as u; print(queen.__file__, *map(u.find_spec, ['sklearn', 'redis', 'ray']))"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    where = run(base_python, "-c", code, env=environment).split()
    assert where[0].startswith(str(base_python.parents[1]))
    assert where[1:] == ["None"] * 3
