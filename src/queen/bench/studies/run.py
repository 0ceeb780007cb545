"""Running a study, which gives one JSON file and one picture."""

from __future__ import annotations

import json
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from queen.atomic import write_atomically
from queen.bench.code import describe_code
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError
from queen.bench.protectee import make_protectee
from queen.bench.run import read_result, write_result
from queen.bench.spec import VERSION, Spec
from queen.bench.studies import find_study
from queen.bench.studies.base import Study, StudyContext, base_config, read_study
from queen.bench.trials.cell import hardware
from queen.cache import Cache
from queen.core.inputs import find_device
from queen.errors import OptionError
from queen.parallel.processes import at_the_same_time
from queen.progress import Progress
from queen.training import one_thread


def run_study(
    name: str,
    study: Study[Any],
    path: Path,
    out: Path,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    root: Path | None = None,
    jobs: int = 1,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Measure, and write OUT/NAME.json and OUT/NAME.png; parts of an earlier, stopped run come from the cache.

    With several `jobs`, other processes make the same study at the same time, each from another place on, and leave its
    parts in the cache. A study that takes times is made by one.
    """
    find_device(device)
    if jobs < 1:
        raise OptionError(f"jobs must be a whole number of at least 1, got {jobs}")
    spec, parameters = read_study(study, path)
    config = {"study": name, "parameters": as_json(parameters), "base": base_config(spec)}
    folder = cache or out / ".cache"
    helpers = 0 if study.takes_times else jobs - 1
    with one_thread(), Progress(progress) as show:
        context = _make_context(spec, folder, device, root, show)
        start = time.perf_counter()
        help_out = partial(_help_out, name, path, folder, device, root)
        with at_the_same_time(help_out, [number / jobs for number in range(1, 1 + helpers)]):
            measured = study.measure(context, parameters)
        result = {
            "version": VERSION,
            "study": name,
            "hash": digest(config),
            "config": config,
            "protectee": context.protectee.facts(),
            **measured,
            "seconds": round(time.perf_counter() - start, 1),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, **describe_code()},
            "hardware": hardware(context.protectee.pool.device) | {"jobs": 1 + helpers},
        }
    result = json.loads(json.dumps(result))  # what readers of the file will see
    write_result(out / f"{name}.json", result)
    write_atomically(out / f"{name}.png", study.draw(result))
    return dict(result)


def _make_context(
    spec: Spec, folder: Path, device: str, root: Path | None, show: Progress, begin: float = 0.0
) -> StudyContext:
    cache = Cache(folder)
    return StudyContext(spec, make_protectee(spec.protectee, spec.thief, cache, device, root), cache, show, begin)


def _help_out(name: str, path: Path, folder: Path, device: str, root: Path | None, begin: float) -> None:
    """Make the study from another place on, for what that leaves in the cache."""
    study = find_study(name)
    spec, parameters = read_study(study, path)
    with one_thread(), Progress(shown=False) as show:
        study.measure(_make_context(spec, folder, device, root, show, begin), parameters)


def read_study_result(name: str, folder: Path) -> dict[str, Any]:
    """The result of a study; a file of another study or version is an error."""
    result = read_result(folder / f"{name}.json")
    if result.get("study") != name:
        raise SpecError(f"'{folder / name}.json' is not a result of the study '{name}'")
    return result
