"""The leaderboard: what every defense leaves to the best thief, beside what it costs benign clients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queen.attacks import ATTACKS, QUERIES
from queen.bench.render.table import (
    Entry,
    knowledge_marks,
    make_entry,
    open_flags,
    sort_by,
)
from queen.errors import OptionError

Result = Mapping[str, Any]
Planned = tuple[str, str, str, int]  # column, query strategy, attack, seed
BOTH = ("direct", "label_only", "ddae", "ddae_plus", "pbayes")
# The cells of the paper's tables.
PAPERS_CELLS = (
    *(("knockoff", attack) for attack in ("direct", "label_only", "s4l", "smoothing", "ddae", "ddae_plus", "pbayes")),
    *(("jbda_tr", attack) for attack in BOTH),
)
LABELS = "label_only"  # the column of bare labels
AS_GIVEN = ("direct", "label_only")  # attacks that ask for each image once and look at the answer itself
KEEPS = 0.999  # share of right labels from which on a thief may take nothing but them
TAKEN = "¶"
FAR_FEWER = 0.75  # of the attackers on another defense
FARTHEST = 2.0  # that two vectors of probabilities can be apart (L1)
RANDOM = "knockoff"  # the usual way to ask
DASH = "-"


@dataclass(frozen=True)
class Best:
    """The best of `count` attackers on one defense."""

    query: str
    attack: str
    entry: Entry
    count: int

    @property
    def name(self) -> str:
        """The attack, with how it asks unless that is at random."""
        return self.attack if self.query == RANDOM else f"{self.query} {self.attack}"


@dataclass(frozen=True)
class BoardRow:
    """One defense. Shares are in 0..1; what was not measured is None.

    `best` is over all attackers but those who own the victim's encoder, `published` over those of `PAPERS_CELLS`, and
    `encoder` over the owners. Of a defense that keeps labels, the first and the last are at least what the same
    attackers get from bare labels. `l1` and `refused` are what one benign client meets who sends the whole test set,
    `honest` the honest answers that a direct thief with random images collects, `time` that of a query as a multiple
    of the undefended one. `attackers` counts the ways to steal that were tried, `run` the cells. `missing` are the
    cells that the spec plans and nobody has run, `untried` those of them whose attack was run with no other seed.
    """

    column: str
    best: Best | None
    published: Best | None
    encoder: Best | None
    one_client: Entry
    many_clients: Entry
    l1: float | None
    refused: float | None
    honest: float | None
    time: float | None
    attackers: int
    run: int
    missing: tuple[tuple[str, str, int], ...]
    untried: tuple[tuple[str, str, int], ...]
    flagged: int
    explained: int

    @property
    def complete(self) -> bool:
        """Whether every planned cell was run."""
        return not self.missing

    @property
    def stolen(self) -> float | None:
        """The accuracy of the best thief who does not own the victim's encoder."""
        return None if self.best is None else self.best.entry.mean


@dataclass(frozen=True)
class Leaderboard:
    """All defenses, the one that leaves least to the paper's attackers first; `not_run` has no result."""

    standings: tuple[BoardRow, ...]
    victim: float
    chance: float
    not_run: tuple[str, ...]

    def find(self, column: str) -> BoardRow | None:
        """The defense of this name, if it was run."""
        return next((standing for standing in self.standings if standing.column == column), None)

    @property
    def less_tried(self) -> list[str]:
        """The defenses that are to meet far fewer attackers than others did, and have no bound by bare labels."""
        most = max((one.attackers for one in self.standings), default=0)
        few = [one for one in self.standings if one.complete and one.attackers < FAR_FEWER * most]
        return [one.column for one in few if one.best is None or TAKEN not in one.best.attack]


def make_leaderboard(results: Sequence[Result], planned: Iterable[Planned], time: Mapping[str, float]) -> Leaderboard:
    """The leaderboard of one protectee; `time` is what a query takes by column, as a multiple of the undefended one."""
    names = {r["protectee"]["name"] for r in results}
    if len(names) != 1:
        raise OptionError(f"a leaderboard is of one protectee, got results of {sorted(names)}: read one of them")
    cells = list(planned)
    run = dict.fromkeys(r["column"] for r in results)
    bare = [r for r in results if r["column"] == LABELS]
    standings = []
    for column in run:
        own = [r for r in results if r["column"] == column]
        labels = bare if column != LABELS and keeps_labels(own) else []
        standings.append(_standing(own, [cell for cell in cells if cell[0] == column], time.get(column), labels))
    return Leaderboard(
        tuple(sorted(standings, key=_rank)),
        statistics.mean({r["seed"]: r["protectee"]["accuracy"] for r in results}.values()),
        results[0]["protectee"]["chance"],
        tuple(dict.fromkeys(column for column, *_ in cells if column not in run)),
    )


def keeps_labels(results: Sequence[Result]) -> bool:
    """Whether all queries were answered and nearly all answers have the label of the model's own, measured on one
    column's attackers who look at each answer itself."""
    plain = [r for r in results if r["attack"] in AS_GIVEN]
    return bool(plain) and all(
        r["answers"]["label_kept"] >= KEEPS and r["queries"]["answered"] == r["queries"]["sent"] for r in plain
    )


def _rank(one: BoardRow) -> tuple[float, str]:
    """By the paper's attackers, whom all defenses met; where they were not run, by the best there is."""
    best = one.published or one.best
    return (float("inf") if best is None or best.entry.mean is None else best.entry.mean, one.column)


def _standing(
    results: Sequence[Result], planned: Sequence[Planned], time: float | None, labels: Sequence[Result]
) -> BoardRow:
    """One row; `labels` are results of bare labels, where a thief may take those alone."""
    owners, others = _by_encoder(results)
    label_owners, label_others = _by_encoder(labels)
    direct = [r for r in others if (r["query"], r["attack"]) == ("knockoff", "direct")]
    done = {(r["query"], r["attack"], r["seed"]) for r in results}
    tried, missing = {cell[:2] for cell in done}, tuple(cell[1:] for cell in planned if cell[1:] not in done)
    clients = {r["seed"]: r["utility"] for r in results}.values()
    return BoardRow(
        column=results[0]["column"],
        best=_better(_best(others), _best(label_others)),
        published=_best([r for r in others if (r["query"], r["attack"]) in PAPERS_CELLS]),
        encoder=_better(_best(owners), _best(label_owners)),
        one_client=Entry(tuple(utility["one_client"]["accuracy"] for utility in clients)),
        many_clients=Entry(tuple(utility["many_clients"]["accuracy"] for utility in clients)),
        l1=_mean(utility["one_client"].get("l1") for utility in clients),
        refused=_mean(utility["one_client"].get("refused") for utility in clients),
        honest=_mean(_honest_answers(r) for r in direct),
        time=time,
        attackers=len(tried),
        run=len(done),
        missing=missing,
        untried=tuple(cell for cell in missing if cell[:2] not in tried),
        flagged=sum(bool(open_flags(r)) for r in results),
        explained=sum(bool(r["flags"]) and not open_flags(r) for r in results),
    )


def _by_encoder(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Results of thieves who own the victim's encoder, and of the others."""
    owners = [r for r in results if "encoder" in r["knows"]]
    return owners, [r for r in results if "encoder" not in r["knows"]]


def _better(own: Best | None, labels: Best | None) -> Best | None:
    """The best thief on a defense, or the best one on bare labels if that is better; it is marked."""
    if labels is None or (own is not None and (own.entry.mean or 0.0) >= (labels.entry.mean or 0.0)):
        return own
    return replace(labels, attack=labels.attack + TAKEN)


def _best(results: Sequence[Result]) -> Best | None:
    """The attacker with the highest mean over seeds; None where no thief was trained."""
    cells = {(r["query"], r["attack"]): None for r in results}
    found = []
    for query, attack in cells:
        here = [r for r in results if (r["query"], r["attack"]) == (query, attack)]
        entry = make_entry(here)
        if entry.mean is not None:
            found.append((entry.mean, Best(query, attack + knowledge_marks(here), entry, len(cells))))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _honest_answers(result: Result) -> float | None:
    share = result.get("verdicts", {}).get("honest")
    return None if share is None else share * result["queries"]["sent"]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def name_cells(cells: Iterable[tuple[str, str, int]]) -> str:
    """Cells in words, query strategy by query strategy; seeds are left out."""
    listed = [cell[:2] for cell in cells]
    return "; ".join(
        f"{query} {', '.join(sort_by((attack for of, attack in listed if of == query), ATTACKS))}"
        for query in sort_by((query for query, _ in listed), QUERIES)
    )
