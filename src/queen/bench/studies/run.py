"""Making a study: one JSON file and one picture."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from queen.atomic import write_atomically
from queen.bench.cell import hardware
from queen.bench.checked import SpecError
from queen.bench.protectee import make_protectee
from queen.bench.run import read_result, write_result
from queen.bench.spec import VERSION, as_json, digest
from queen.bench.studies.base import Lab, Study, borrowed, read_study
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
    """Measure, write OUT/NAME.json and OUT/NAME.png; what the cache holds of an earlier, stopped run is not redone."""
    find_device(device)
    spec, parameters = read_study(study, path)
    config = {"study": name, "parameters": as_json(parameters), "base": borrowed(spec)}
    with one_thread(), Progress(progress) as show:
        kept = Cache(cache or out / ".cache")
        lab = Lab(spec, make_protectee(spec.protectee, spec.thief, kept, device, root), kept, show)
        start = time.perf_counter()
        found = study.measure(lab, parameters)
        result = {
            "version": VERSION,
            "study": name,
            "hash": digest(config),
            "config": config,
            "protectee": lab.protectee.facts(),
            **found,
            "seconds": round(time.perf_counter() - start, 1),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "hardware": hardware(lab.protectee.pool.device),
        }
    result = json.loads(json.dumps(result))  # what readers of the file will see
    write_result(out / f"{name}.json", result)
    picture = study.draw(result)
    write_atomically(out / f"{name}.png", picture)
    return dict(result)


def read_study_result(name: str, folder: Path) -> dict[str, Any]:
    """The result of a study, if it is one and of this version."""
    found = read_result(folder / f"{name}.json")
    if found.get("study") != name:
        raise SpecError(f"'{folder / name}.json' is not a result of the study '{name}'")
    return found
