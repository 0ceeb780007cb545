"""What a run will take before it is started: its cells, what they share, the expected time, the files it needs.

Times come from results: each says what its phases took, which of them others had done, and how many processes ran at
once. A cell is expected to take what the same query and attack took against the same column; where that was never
measured, the mean over the columns, then over the attacks of the query. Before the first cell of a victim was run,
results of another victim tell, in proportion to what there is to do, if networks and pool are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queen.attacks import ATTACKS
from queen.bench.datasets.load import files_of_set, find_root
from queen.bench.naming import as_json
from queen.bench.run import has_results, is_finished, read_results
from queen.bench.spec import Cell, ImageSet, Spec
from queen.bench.trials.asking import sends_plain_images
from queen.bench.trials.trial import Trial
from queen.bench.weights import files_of_weights
from queen.training import Schedule

ALONE = ("victim",)  # what is done before the workers start
PER_CELL = ("ask", "recover", "train", "other")  # phases that depend on the attack
LIKENESSES: Sequence[tuple[str, ...]] = (
    ("column", "query", "attack"),
    ("query", "attack"),
    ("query",),
    ("column",),
    (),
)
"""What a result must have in common with a cell to tell of it, the best first."""
WITHOUT_ATTACK: Mapping[str, Sequence[tuple[str, ...]]] = {
    "victim": [()],
    "fit": [("column",)],  # nobody knows what another defense trains
    "utility": [("column",), ()],
}
"""The same for the phases that do not depend on the attack."""

Result = Mapping[str, Any]
Config = Mapping[str, Any]  # of a cell, as results hold it


@dataclass(frozen=True)
class PhasePlan:
    """One phase of the work: how often it is done, how many cells need it, and the minutes expected for all of it.

    `minutes` leaves out the `unknown` ones, of which no result tells the time.
    """

    name: str
    times: int
    cells: int
    minutes: float
    unknown: int


@dataclass(frozen=True)
class Plan:
    """The cells of a spec, those that have a result already, the phases of the others, and the files they need."""

    name: str
    cells: int
    finished: int
    phases: tuple[PhasePlan, ...]
    files: tuple[tuple[str, int], ...]
    measured: int
    of_another_victim: bool = False

    @property
    def minutes(self) -> float:
        """Expected for everything that is open, as far as it is known."""
        return sum(phase.minutes for phase in self.phases)

    @property
    def complete(self) -> bool:
        """Whether every phase's time is known."""
        return not any(phase.unknown for phase in self.phases)


def make_plan(
    spec: Spec,
    *,
    measured: Sequence[Result] = (),
    out: Path | None = None,
    root: Path | None = None,
    cache: Path | None = None,
    selected: Sequence[Cell] | None = None,
) -> Plan:
    """The plan for the cells of a spec, or those `selected`, without a result in `out`, from what was `measured`."""
    cells = list(spec.cells()) if selected is None else selected
    open_cells = [cell for cell in cells if out is None or not is_finished(cell, out)]
    return Plan(
        name=spec.name,
        cells=len(cells),
        finished=len(cells) - len(open_cells),
        phases=plan_phases(open_cells, measured),
        files=tuple(_list_files(spec, root, cache)),
        measured=len(measured),
        of_another_victim=any(_victim_and_thief(r["config"]) != _victim_and_thief(_wanted(spec)) for r in measured),
    )


def plan_phases(cells: Sequence[Cell], measured: Sequence[Result]) -> tuple[PhasePlan, ...]:
    """The phases of these cells, in the order in which a run goes through them, from what was `measured`."""
    return tuple(_plan_phase(name, cells, measured) for name in PHASES)


def read_measured(folders: Iterable[Path], spec: Spec, device: str) -> list[dict[str, Any]]:
    """All results below the folders of the spec's protectee and thief, on this kind of device, that say what their
    phases took; where there is none, those of others with the same networks and the same pool."""
    on_gpu = device.startswith("cuda")
    timed = [
        result
        for folder in folders
        if has_results(folder)
        for result in read_results(folder)
        if "fit" in result["seconds"] and result["hardware"]["device"].startswith("NVIDIA") == on_gpu
    ]
    for kind in (_victim_and_thief, _networks_and_pool):
        alike = [result for result in timed if kind(result["config"]) == kind(_wanted(spec))]
        if alike:
            return alike
    return []


def minutes_taken(results: Iterable[Result]) -> float:
    """Minutes that the phases of these results took, each where it was done; processes at the same time count once."""
    listed = list(results)
    victims = {r["seed"]: float(r["seconds"]["victim"]) for r in listed}
    fits = {(r["seed"], r["column"]): float(r["seconds"]["fit"]) for r in listed if _was_fitted_before(r, listed)}
    seconds = sum(victims.values()) + sum(fits.values())
    for result in listed:
        done = [phase for phase in result["seconds"] if phase not in (*ALONE, *result["reused"])]
        seconds += sum(float(result["seconds"][phase]) for phase in done) / result["hardware"]["jobs"]
    return seconds / 60


def _was_fitted_before(result: Result, results: Iterable[Result]) -> bool:
    """Whether none of the cells set this one's defense up: earlier versions did before the workers started."""
    alike = [r for r in results if (r["seed"], r["column"]) == (result["seed"], result["column"])]
    return all("fit" in r["reused"] for r in alike)


def _wanted(spec: Spec) -> Config:
    """What results of the spec say of victim and thief."""
    return {"protectee": as_json(spec.protectee), "thief": as_json(spec.thief)}


def _victim_and_thief(config: Config) -> object:
    return config["protectee"], config["thief"]


def _networks_and_pool(config: Config) -> object:
    """What decides how long an image takes."""
    victims, thiefs = config["protectee"]["network"]["name"], config["thief"]["network"].get("name")
    return victims, thiefs or victims, config["protectee"]["pool"]


def _share_nothing(cell: Cell) -> Hashable:
    return cell.path


def _share_answers(cell: Cell) -> Hashable:
    if not sends_plain_images(Trial.of(cell)):
        return cell.path
    return (cell.column, cell.seed, cell.budget // ATTACKS[cell.attack].cost(cell.spec.sizes))


PHASES: Mapping[str, Callable[[Cell], Hashable]] = {
    "victim": lambda cell: cell.spec.for_seed(cell.seed).protectee.seed,
    "fit": lambda cell: (cell.column, cell.seed),
    "utility": lambda cell: (cell.column, cell.seed),
    "ask": _share_answers,
    "recover": _share_nothing,
    "train": _share_nothing,
    "other": _share_nothing,
}
"""The phases of a cell, and what cells must have in common to share one."""


def _plan_phase(name: str, cells: Iterable[Cell], measured: Sequence[Result]) -> PhasePlan:
    listed = list(cells)
    groups = {PHASES[name](cell): cell for cell in listed}
    seconds = [_expect(name, cell, measured) for cell in groups.values()]
    known = [value for value in seconds if value is not None]
    return PhasePlan(name, len(groups), len(listed), sum(known) / 60, len(seconds) - len(known))


def _expect(phase: str, cell: Cell, measured: Sequence[Result]) -> float | None:
    """Seconds that a phase of a cell is expected to take out of the whole run's; None if no result tells."""
    for names in LIKENESSES if phase in PER_CELL else WITHOUT_ATTACK[phase]:
        alike = [r for r in measured if all(r[name] == getattr(cell, name) for name in names)]
        spent = [(_spent(phase, result), _count_rows(phase, result["config"])) for result in alike]
        known = [seconds * (_count_rows(phase, cell.config) / rows) for seconds, rows in spent if seconds is not None]
        if known:
            return statistics.mean(known)
    return None


def _count_rows(phase: str, config: Config) -> int:
    """About how many images a phase works on, to which its time is in proportion."""
    protectee, budget = config["protectee"], int(config["budget"])
    if phase == "victim":
        return int(protectee["train"] * protectee["schedule"]["epochs"])
    if phase == "fit":
        return int(protectee["train"])
    if phase == "utility":
        return int(config["utility"]["clients"] * config["utility"]["queries"])
    if phase == "train":
        schedule = Schedule(**config["thief"]["schedule"])
        epochs, per_epoch = schedule.plan(budget)
        return epochs * per_epoch * min(schedule.batch, budget)
    return budget


def _spent(phase: str, result: Result) -> float | None:
    """What a phase took of a run's time. Equal beliefs train one thief: its training counts where it was done."""
    seconds = result["seconds"].get(phase)
    if seconds is None:
        return None
    if phase == "train" and phase in result.get("reused", ()):
        return 0.0
    return float(seconds) / (1 if phase in ALONE else result["hardware"].get("jobs", 1))


def _list_files(spec: Spec, root: Path | None, cache: Path | None) -> Iterable[tuple[str, int]]:
    """The files that another machine needs to run the spec, and their sizes: image sets, and the weights of victims,
    those that the spec names or those trained here, with what networks start from."""
    protectee = spec.protectee
    wanted = [protectee.data, protectee.test, protectee.pool, protectee.outliers]
    wanted += [protectee.start.data] if protectee.start else []
    names = dict.fromkeys(images.set for images in wanted if isinstance(images, ImageSet))
    paths = [path for name in names for path in files_of_set(name, root)]
    if protectee.weights is not None:
        paths += files_of_weights(find_root(root) / protectee.weights)
    elif cache is not None:
        paths += sorted(cache.glob("victim-*"))
    if protectee.start is not None and cache is not None:
        paths += sorted(cache.glob("start-*"))
    for path in paths:
        inside = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        yield str(path), sum(file.stat().st_size for file in inside)
