"""One YAML file says what a benchmark runs: a protectee, defenses, queries, attacks and seeds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queen.attacks import ATTACKS, QUERIES
from queen.attacks.base import PUBLISHED_WIDTHS, Sizes
from queen.bench.naming import as_json, digest
from queen.bench.parsing import SpecError, make_checked, read_yaml
from queen.defenses import DEFENSES
from queen.defenses.base import nearest
from queen.errors import OptionError
from queen.training import Schedule
from queen.training.schedule import LATER

VERSION = 1  # of specs and results; results of another version are refused
DEFAULT_NETWORK = "small_cnn"
BENIGN = "benign"  # as a pool: the images that `benign` sets aside
FOLDER = re.compile(r"[^\W_][\w ()+.-]*")


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Which images: a set of `bench.datasets`, brought to a size and number of channels; `count` takes a random part.

    `margin` leaves an empty border of that many pixels within the size, as MNIST's digits have one.
    """

    set: str
    split: str = "train"
    size: int | None = None
    channels: int | None = None
    margin: int = 0
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """What networks have learned before they see anything else, as public weights have: these images and labels."""

    data: ImageSet
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, kw_only=True)
class ProtecteeSpec:
    """The victim and its surroundings.

    `data` are the owner's images, split by a fixed shuffle: `train` of them train the victim, `calibration` are held
    out for it, and attackers who own images like the victim's get `benign` of them. Everybody is tried on `test`: an
    image set, or how many of `data`. `pool` are the attacker's images, or "benign": those of the line before. With
    `outliers` the victim also learns to be unsure of these images. With `weights`, a file below the folder of image
    sets, the victim is not trained: these are `network`'s weights (`queen.bench.weights` says which files fit). With
    `victim_per_seed` each of the benchmark's seeds has a shuffle and a victim of its own, so that seeds also tell how
    much victims differ. With `start` the networks of the victim and of thieves begin with the same weights, all but the
    head trained on those images.
    """

    name: str
    data: ImageSet
    train: int
    calibration: int
    test: ImageSet | int
    pool: ImageSet | str
    benign: int = 0
    outliers: ImageSet | None = None
    outlier_weight: float = 1.0
    network: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    weights: str | None = field(default=None, metadata=LATER)
    victim_per_seed: bool = field(default=False, metadata=LATER)
    start: Start | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", {"name": DEFAULT_NETWORK, **self.network})
        if isinstance(self.pool, str) and (self.pool != BENIGN or not self.benign):
            raise OptionError(f"pool must be an image set, or '{BENIGN}' where benign is above 0, got {self.pool!r}")
        if self.weights is not None and self.victim_per_seed:
            raise OptionError(f"weights are those of one victim, got '{self.weights}' and victim_per_seed: give one")


@dataclass(frozen=True, kw_only=True)
class Thief:
    """What an attacker trains."""

    network: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, kw_only=True)
class Utility:
    """How benign clients are simulated: how many, and how many test images each of them sends."""

    clients: int = 100
    queries: int = 100


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of the matrix: every defense with every query strategy and every attack that goes with the strategy."""

    queries: tuple[str, ...]
    attacks: tuple[str, ...]
    defenses: tuple[str, ...] | None = None  # None: all of the spec
    budget: int | None = None  # None: that of the spec
    seeds: tuple[int, ...] | None = None  # None: those of the spec


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A whole benchmark. `defenses` maps the name of a column to its options; `defense` there names another method, so
    that one method can have several columns."""

    name: str
    protectee: ProtecteeSpec
    thief: Thief
    budget: int
    defenses: Mapping[str, Mapping[str, Any]]
    matrix: tuple[Block, ...]
    seeds: tuple[int, ...] = (0,)
    sizes: Sizes = field(default_factory=Sizes)
    utility: Utility = field(default_factory=Utility)
    version: int = VERSION

    def cells(self) -> Iterator[Cell]:
        """All cells, each of them once."""
        listed = set()
        for block in self.matrix:
            for column in self.defenses if block.defenses is None else block.defenses:
                for query in block.queries:
                    for attack in block.attacks:
                        for seed in block.seeds or self.seeds if query in ATTACKS[attack].queries else ():
                            cell = Cell(self, column, query, attack, seed, block.budget or self.budget)
                            if cell.path not in listed:
                                listed.add(cell.path)
                                yield cell

    def select(
        self,
        columns: Sequence[str] = (),
        queries: Sequence[str] = (),
        attacks: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> list[Cell]:
        """The cells of these columns, query strategies, attacks and seeds; of all of them where none is named."""
        cells = list(self.cells())
        for kind, wanted in (("column", columns), ("query", queries), ("attack", attacks), ("seed", seeds)):
            known = dict.fromkeys(str(getattr(cell, kind)) for cell in cells)
            names = [_check_known(str(name), known, kind) for name in wanted]
            cells = [cell for cell in cells if not names or str(getattr(cell, kind)) in names]
        return cells

    def for_seed(self, seed: int) -> Spec:
        """The spec whose protectee the cells with this seed attack: this one, unless victims vary with seeds."""
        protectee = self.protectee
        if not protectee.victim_per_seed:
            return self
        own = dataclasses.replace(protectee, seed=protectee.seed + seed, victim_per_seed=False)
        return dataclasses.replace(self, protectee=own)

    def reduced_sizes(self, classes: int | None = None) -> dict[str, tuple[Any, Any]]:
        """Sizes that are not the published ones: name -> (here, published).

        Before the victim's number of classes is known, widths are compared with those published for any number.
        """
        default, widths = vars(Sizes()), dict(PUBLISHED_WIDTHS) if classes is None else Sizes().widths_for(classes)
        published: dict[str, Any] = {**default, "generator_widths": widths}
        return {
            name: (size, published[name])
            for name, size in vars(self.sizes).items()
            if size not in (default[name], published[name])
        }


@dataclass(frozen=True)
class Cell:
    """One attack on one defense with one seed: one entry of the benchmark's matrix."""

    spec: Spec
    column: str
    query: str
    attack: str
    seed: int
    budget: int

    @property
    def defense(self) -> str:
        """The method behind the column."""
        return str(self.spec.defenses[self.column].get("defense", self.column))

    @property
    def options(self) -> dict[str, Any]:
        """All of the method's options: those given here, defaults for the rest."""
        given = {name: value for name, value in self.spec.defenses[self.column].items() if name != "defense"}
        return {**DEFENSES[self.defense].options, **given}

    @property
    def path(self) -> Path:
        """Where the result goes, below the folder of results."""
        return Path(self.spec.protectee.name, self.column, f"{self.query}-{self.attack}-s{self.seed}.json")

    @property
    def config(self) -> dict[str, Any]:
        """All that the result depends on, except the images themselves and the machine, which the result names.

        Of the sizes only those that are not the published ones, of options `added` to a defense only those that are not
        at their defaults: new attacks and options bring new ones, on which no older result depends.
        """
        spec, method, published = self.spec, DEFENSES[self.defense], as_json(Sizes())
        return {
            "version": spec.version,
            "protectee": as_json(spec.protectee),
            "thief": as_json(spec.thief),
            "budget": self.budget,
            "sizes": {name: size for name, size in as_json(spec.sizes).items() if size != published[name]},
            "utility": as_json(spec.utility),
            "defense": self.defense,
            "options": {
                name: value
                for name, value in self.options.items()
                if name not in method.added or value != method.options[name]
            },
            "query": self.query,
            "attack": self.attack,
            "seed": self.seed,
        }

    @property
    def hash(self) -> str:
        """A short name for the config."""
        return digest(self.config)


def read_spec(path: Path) -> Spec:
    """A spec from a YAML file; mistakes say the key and the nearest known one."""
    return make_spec(read_yaml(path), str(path))


def make_spec(content: object, where: str = "spec") -> Spec:
    """A checked spec from the content of a YAML or JSON file; `where` names it in errors."""
    if isinstance(content, Mapping) and content.get("version", VERSION) != VERSION:
        raise SpecError(f"{where} is of version {content['version']}; this program reads version {VERSION}")
    spec = make_checked(Spec, content, where)
    _check_folder(spec.name, f"{where}: name")
    _check_folder(spec.protectee.name, f"{where}: protectee: name")
    for column, options in spec.defenses.items():
        _check_folder(column, f"{where}: defense")
        if not isinstance(options, Mapping):
            raise SpecError(f"{where}: defense '{column}': expected options and values, got {options!r}")
        method = DEFENSES[_check_known(str(options.get("defense", column)), DEFENSES, f"{where}: defense")]
        for name in options:
            if name != "defense":
                _check_known(name, method.options, f"{where}: option of defense '{column}'")
    for block in spec.matrix:
        for column in block.defenses or ():
            _check_known(column, spec.defenses, f"{where}: defense in matrix")
        for query in block.queries:
            _check_known(query, QUERIES, f"{where}: query strategy")
        for attack in block.attacks:
            _check_known(attack, ATTACKS, f"{where}: attack")
    _check_budgets(spec, where)
    return spec


def _check_budgets(spec: Spec, where: str) -> None:
    """Refuse two budgets for one query strategy: attacks that share one are compared, and their results share files."""
    budgets: dict[str, int] = {}
    for block in spec.matrix:
        budget = spec.budget if block.budget is None else block.budget
        if budget < 1:
            raise SpecError(f"{where}: budget must be at least 1 query, got {budget}")
        for query in block.queries:
            if budgets.setdefault(query, budget) != budget:
                raise SpecError(
                    f"{where}: query strategy '{query}' has budgets of {budgets[query]} and {budget} queries: give all "
                    "its blocks the same, or make two specs"
                )


def _check_folder(name: str, where: str) -> None:
    """Refuse a name that makes no folder: results go to folders of these names, and tables show them."""
    if not FOLDER.fullmatch(name):
        raise SpecError(f"{where}: expected letters, digits, spaces or ()+-._, a letter or digit first, got {name!r}")


def _check_known(name: str, known: Mapping[str, Any], where: str) -> str:
    if name not in known:
        raise SpecError(f"{where} '{name}' is not known{nearest(name, known)}")
    return name
