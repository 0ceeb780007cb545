"""Running a spec: every cell once, in parallel; a run that was stopped goes on where it stopped."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from queen.atomic import make_folder, write_atomically
from queen.attacks import ATTACKS, ONCE_EACH
from queen.bench.naming import as_json
from queen.bench.parsing import SpecError
from queen.bench.protectee import Protectee, make_protectee
from queen.bench.ray import Outcome, Place, Task, on_ray
from queen.bench.spec import VERSION, Cell, ProtecteeSpec, Spec, make_spec
from queen.bench.trials.cell import run_trial
from queen.bench.trials.trial import Trial
from queen.bench.workers import on_cores
from queen.cache import Cache
from queen.core.inputs import find_device
from queen.defenses import DEFENSES
from queen.errors import OptionError, QueenError
from queen.progress import Progress
from queen.training import one_thread

SPECS = ".specs"  # folder of the specs that were run into a folder of results
GPU_JOBS = 3  # processes that share one GPU, unless asked otherwise: more of them gain little and take its memory
# Of a config, what differs between cells of one spec; a query strategy has one budget.
CELL_KEYS = ("defense", "options", "query", "attack", "seed", "budget")
NOT_BEGUN = {"begun": False}  # in place of a cell's result, when time was up


@dataclass(frozen=True)
class RunSummary:
    """How many cells a run finished, how many were finished before, the errors of those that failed, and how many were
    not begun because time was up."""

    done: int
    skipped: int
    failed: dict[str, str]
    left: int = 0


def run_spec(
    spec: Spec,
    out: Path,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    root: Path | None = None,
    jobs: int | None = None,
    ray_address: str | None = None,
    progress: bool | None = None,
    selected: Sequence[Cell] | None = None,
    minutes: float = math.inf,
) -> RunSummary:
    """Run the cells of a spec, or those `selected` of them, that have no result in `out` yet; one file per cell.

    A cell that fails does not stop the others. `ray_address` sends them to a Ray cluster ("local" starts one here).
    After `minutes` no other cell is begun; those that run are finished.
    """
    until = time.time() + 60 * minutes
    find_device(device)
    if jobs is not None and jobs < 1:
        raise OptionError(f"jobs must be a whole number of at least 1, got {jobs}")
    if not minutes > 0:
        raise OptionError(f"minutes must be a number above 0, got {minutes}")
    cells = list(spec.cells())
    wanted = cells if selected is None else selected
    open_cells = [cell for cell in wanted if not is_finished(cell, make_folder(out))]
    workers = jobs or (GPU_JOBS if device.startswith("cuda") else os.cpu_count() or 1)
    at_once = 1 if ray_address else max(1, min(workers, len(open_cells)))
    place = Place(str(cache or out / ".cache"), device, str(root) if root else None, at_once, until)
    content = as_json(spec)
    numbers = {cell.path: index for index, cell in enumerate(cells)}
    tasks = [(content, numbers[cell.path]) for cell in put_in_order(open_cells)]
    failed: dict[str, str] = {}
    left = 0
    _write_if_changed(out / SPECS / f"{spec.name}.json", json.dumps(content) + "\n")
    with Progress(progress) as show:
        if tasks and not ray_address:
            _prepare(open_cells, out, place, show)
        outcomes = on_ray(work, tasks, place, ray_address) if ray_address else on_cores(work, tasks, place)
        for index, result in show.each("cells", outcomes, len(tasks)):
            cell = cells[index]
            if result == NOT_BEGUN:
                left += 1
            elif "error" in result:
                failed[str(cell.path)] = result["error"]
                show.say([f"failed: {cell.path}: {result['error']}"])
            else:
                write_result(out / cell.path, {"hash": cell.hash, "config": cell.config, **result})
    return RunSummary(len(tasks) - len(failed) - left, len(wanted) - len(tasks), failed, left)


def put_in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Victim by victim, and for each first one cell of every column: it sets up the defense for all others.

    So processes set up different defenses at the same time, and hardly ever wait for one that another sets up.
    """
    columns: set[tuple[int, str]] = set()
    late: dict[Path, bool] = {}
    for cell in cells:
        late[cell.path] = (cell.seed, cell.column) in columns
        columns.add((cell.seed, cell.column))
    return sorted(cells, key=lambda cell: (cell.seed, late[cell.path]))


def _prepare(cells: Sequence[Cell], out: Path, place: Place, show: Progress) -> None:
    """Refuse cells that no worker could run, and train their victims, before any of them starts."""
    for cell in cells:
        check_needs(cell.spec.protectee, cell.column, cell.defense, cell.attack)
    firsts = {cell.seed: cell for cell in reversed(cells)}
    with one_thread():
        for seed in show.each("victims", sorted(firsts), len(firsts)):
            cell = firsts[seed]
            protectee, _ = _load_task(json.dumps(as_json(cell.spec.for_seed(seed))), place)
            _check_budgets(cells, len(protectee.pool))
            _check_victim(cell, protectee.weights, out)
            if time.time() >= place.until:
                break
    _load_task.cache_clear()  # workers have their own, and a GPU's memory is theirs
    if place.device.startswith("cuda"):
        torch.cuda.empty_cache()


def _check_victim(cell: Cell, weights: str, out: Path) -> None:
    """Refuse to attack another victim than the results that are there already: no table could hold both."""
    varied = cell.spec.protectee.victim_per_seed
    for other in cell.spec.cells():
        path, comparable = out / other.path, not varied or other.seed == cell.seed
        there = read_result(path)["protectee"].get("weights") if comparable and path.exists() else weights
        if there != weights:
            raise SpecError(
                f"results in '{out}' attacked a victim with weights {_short(there)}, the one at hand has "
                f"{_short(weights)}: put the former's victim-* files into the cache, or choose another --out folder"
            )


def _check_budgets(cells: Sequence[Cell], pool: int) -> None:
    """Refuse a budget that buys more images than the pool has."""
    for cell in cells:
        images = cell.budget // ATTACKS[cell.attack].cost(cell.spec.sizes)
        if cell.query in ONCE_EACH and images > pool:
            raise SpecError(
                f"a budget of {cell.budget} queries is larger than the pool of {pool} images "
                f"(attack '{cell.attack}'): lower budget, or give a larger pool"
            )


def check_needs(protectee: ProtecteeSpec, column: str, defense: str, attack: str) -> None:
    """Refuse a defense or an attack that lacks images, before hours of work."""
    if "calibration" in DEFENSES[defense].needs and not protectee.calibration:
        raise SpecError(f"defense '{column}' needs held-out images: give protectee: calibration")
    if "benign" in ATTACKS[attack].knows and not protectee.benign:
        raise SpecError(f"attack '{attack}' owns images of the victim's kind: give protectee: benign")


def is_finished(cell: Cell, out: Path) -> bool:
    """Whether the cell has its result; a result of another spec or version is refused, not mixed."""
    path = out / cell.path
    if not path.exists():
        return False
    if read_result(path).get("hash") != cell.hash:
        raise SpecError(f"'{path}' is a result of another spec: choose another --out folder, or remove it")
    return True


def read_result(path: Path) -> dict[str, Any]:
    """One result, if it is of a version that this program reads."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the result '{path}': {error}") from error
    version = result.get("version") if isinstance(result, dict) else None
    if not isinstance(result, dict) or version != VERSION:
        raise SpecError(f"'{path}' is a result of version {version}, this program reads {VERSION}: run it again")
    return result


def has_results(folder: Path) -> bool:
    """Whether there is any result below a folder."""
    return any(not _is_hidden(path.relative_to(folder)) for path in folder.rglob("*-s*.json"))


def result_paths(folder: Path) -> list[Path]:
    """The files of all results below a folder; it is an error if there are none."""
    paths = sorted(path for path in folder.rglob("*-s*.json") if not _is_hidden(path.relative_to(folder)))
    if not paths:
        raise SpecError(f"no results below '{folder}': queen bench run SPEC --out {folder}")
    return paths


def read_results(folder: Path) -> list[dict[str, Any]]:
    """All results below a folder, in the order of `result_paths`."""
    paths = result_paths(folder)
    results = [read_result(path) for path in paths]
    shared: dict[str, dict[str, Any]] = {}
    budgets: dict[tuple[str, str], int | None] = {}
    for path, result in zip(paths, results, strict=True):
        config, name = result.get("config", {}), result["protectee"]["name"]
        common = {key: value for key, value in config.items() if key not in CELL_KEYS}
        common["sources"], budget = result["protectee"].get("sources"), config.get("budget")
        same_budget = budgets.setdefault((name, result["query"]), budget) == budget
        if not same_budget or shared.setdefault(name, common) != common:
            raise SpecError(
                f"'{path}' is of another spec or other images than results beside it: keep each in a folder of its own"
            )
    _refuse_mixed_victims(paths, results)
    return results


def _refuse_mixed_victims(paths: Sequence[Path], results: Sequence[dict[str, Any]]) -> None:
    """All cells attack one victim, or one per seed where the spec says so: others cannot be compared.

    Results older than this check do not name their victim; they go with each other, not with those that do.
    """
    first: dict[tuple[str, int | None], tuple[Path, str | None]] = {}
    for path, result in zip(paths, results, strict=True):
        name, weights = result["protectee"]["name"], result["protectee"].get("weights")
        varied = result.get("config", {}).get("protectee", {}).get("victim_per_seed", False)
        other, expected = first.setdefault((name, result["seed"] if varied else None), (path, weights))
        if weights != expected:
            raise SpecError(
                f"'{path}' attacked another victim than '{other}': expected weights {_short(expected)}, got "
                f"{_short(weights)}. Keep results of each victim in a folder of its own, or remove one of them and run "
                "it again with the victim-* files of the other in the cache"
            )


def _short(weights: str | None) -> str:
    return "that nobody noted" if weights is None else f"{weights[:16]}..."


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def missing_results(folder: Path) -> list[str]:
    """Cells of the specs that were run into a folder and have no result there: a run that was stopped, or failed."""
    specs = read_specs(folder).values()
    return [str(cell.path) for spec in specs for cell in spec.cells() if not (folder / cell.path).exists()]


def read_specs(folder: Path) -> dict[Path, Spec]:
    """The specs that were run into a folder, by the files that a run leaves of them there."""
    paths = sorted((folder / SPECS).glob("*.json"))
    return {path: make_spec(json.loads(path.read_text()), str(path)) for path in paths}


def write_result(path: Path, result: dict[str, Any]) -> None:
    """One result, whole or not at all."""
    write_atomically(path, json.dumps(result) + "\n")


def work(task: Task, place: Place) -> Outcome:
    """Run one cell in a process of its own; an error is a result, too, that says so."""
    content, index = task
    if time.time() >= place.until:
        return index, NOT_BEGUN
    torch.set_num_threads(1)  # so that a restart gives the same numbers
    try:
        spec = make_spec(content)
        cell = list(spec.cells())[index]
        protectee, cache = _load_task(json.dumps(as_json(spec.for_seed(cell.seed))), place)
        return index, run_trial(Trial.of(cell), protectee, cache, jobs=place.jobs)
    except QueenError as error:
        return index, {"error": " ".join(str(error).split())}
    except Exception as error:
        return index, {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


@lru_cache(maxsize=1)
def _load_task(content: str, place: Place) -> tuple[Protectee, Cache]:
    """The protectee of a spec; a worker makes it once for all its cells."""
    spec, cache = make_spec(json.loads(content)), Cache(Path(place.cache))
    root = Path(place.root) if place.root else None
    return make_protectee(spec.protectee, spec.thief, cache, place.device, root), cache
