"""Running a study, which gives one JSON file and one picture."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from queen.atomic import write_atomically
from queen.bench.code import describe_code
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError
from queen.bench.protectee import make_protectee
from queen.bench.run import read_result, write_result
from queen.bench.spec import VERSION
from queen.bench.studies.base import Study, StudyContext, base_config, read_study
from queen.bench.trials.cell import hardware
from queen.cache import Cache
from queen.core.inputs import find_device
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
    progress: bool | None = None,
) -> dict[str, Any]:
    """Measure, and write OUT/NAME.json and OUT/NAME.png; parts of an earlier, stopped run come from the cache."""
    find_device(device)
    spec, parameters = read_study(study, path)
    config = {"study": name, "parameters": as_json(parameters), "base": base_config(spec)}
    with one_thread(), Progress(progress) as show:
        store = Cache(cache or out / ".cache")
        context = StudyContext(spec, make_protectee(spec.protectee, spec.thief, store, device, root), store, show)
        start = time.perf_counter()
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
            "hardware": hardware(context.protectee.pool.device),
        }
    result = json.loads(json.dumps(result))  # what readers of the file will see
    write_result(out / f"{name}.json", result)
    write_atomically(out / f"{name}.png", study.draw(result))
    return dict(result)


def read_study_result(name: str, folder: Path) -> dict[str, Any]:
    """The result of a study; a file of another study or version is an error."""
    result = read_result(folder / f"{name}.json")
    if result.get("study") != name:
        raise SpecError(f"'{folder / name}.json' is not a result of the study '{name}'")
    return result
