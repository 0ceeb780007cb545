"""The paper's tables, run again: what docs/results.md and docs/honest-rerun.md say of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import mean

from queen.attacks import ATTACKS
from queen.bench.plan import minutes_taken, plan_phases
from queen.bench.render.comparison import SHARE_MARGIN, Paper, accuracy_markdown, share_markdown, summary_markdown
from queen.bench.render.leaderboard import (
    PAPERS_CELLS,
    Best,
    BoardRow,
    Leaderboard,
    Result,
    make_leaderboard,
)
from queen.bench.render.leaderboard_table import MEANINGS, fairness_note, leaderboard_markdown
from queen.bench.render.markdown import markdown_list, markdown_table
from queen.bench.render.plots import draw_leaderboard
from queen.bench.render.table import EXPLAINED, MARKS, knowledge_marks, make_entry, tables, to_markdown
from queen.bench.run import has_results, read_results
from queen.bench.spec import Spec, read_spec

ROOT = Path(__file__).parents[1]
SPEED = ROOT / "results/speed/rivals-cpu-2-cores.json"
PAPERS, ACCUSED = ROOT / "results/paper", ROOT / "results/accused"
PAPER_OF = {"cifar10": "cifar10", "cifar100": "cifar100", "cub200-64": "cub200", "caltech101-64": "caltech256"}
TIMED = "cifar10"  # whose columns' times were measured
OWN = "queen-sentinel"
NEARLY = 0.98  # of the labels are right
WEAKER = 0.05  # by how much a direct thief must fall short of the best one to be named
WORDS = {
    "vgg16_bn": "VGG16-BN",
    "resnet18": "ResNet18",
    "svhn": "SVHN",
    "tinyimagenet": "TinyImageNet",
    "caltech101": "Caltech-101",
    "cub200": "CUB-200",
}


@dataclass(frozen=True)
class Rerun:
    """One of the paper's tables: our spec, our results so far, the paper's figures, and times of a query by column."""

    spec: Spec
    results: Sequence[Result]
    paper: Paper
    times: Mapping[str, float]

    @cached_property
    def board(self) -> Leaderboard:
        """The leaderboard of all that was run."""
        planned = [(cell.column, cell.query, cell.attack, cell.seed) for cell in self.spec.cells()]
        return make_leaderboard(self.results, planned, heads_only(self.times, self.results))

    def leaderboard_table(self) -> str:
        """The leaderboard, with what it lacks."""
        return leaderboard_markdown(self.board)

    def headline(self) -> str:
        """The leaderboard in short, for readers who want one table, and what it says of the sentinel."""
        header = ("defense", "best of the paper's thieves", "best thief of all", "benign client right", "distortion")
        rows = [
            (
                one.column + ("" if one.complete else " (not all run)"),
                _marked(one.published),
                _marked(one.best),
                one.one_client.text(),
                "-" if one.l1 is None else f"{one.l1:.3f}",
            )
            for one in self.board.standings
        ]
        own = self.board.find(OWN)
        lines = [] if own is None else [self._own_line(own), *self._foreign_line(), self._price_line(own)]
        lines += fairness_note(self.board)
        text = f"{markdown_table(header, rows)}\n{''.join(lines)}"
        lines += [f"{mark} {meaning}" for mark, meaning in MEANINGS.items() if mark in text]
        return f"{markdown_table(header, rows)}\n{markdown_list(lines)}"

    def leaderboard_picture(self) -> bytes:
        """The leaderboard as a PNG."""
        return draw_leaderboard(self.board)

    def accuracy_table(self) -> str:
        """Our accuracies beside the paper's."""
        return accuracy_markdown(self.results, self.paper)

    def share_table(self) -> str:
        """Our shares of an undefended copy beside the paper's."""
        return share_markdown(self.results, self.paper)

    def summary_table(self) -> str:
        """Which thieves keep as large a share as the paper's, and which not."""
        return (
            f"{summary_markdown(self.results, self.paper)}\nCompared are shares of an undefended copy; alike means "
            f"within {SHARE_MARGIN:g} points ([cell by cell](results.md#beside-the-papers-figures)).\n"
        )

    def whole_table(self) -> str:
        """Every cell that was run."""
        return "\n".join(to_markdown(table) for table in tables(self.results))

    def sentinel_table(self) -> str:
        """What every attacker sent the sentinel, how much of it was answered, and the copy; the best copy first."""
        cells: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            if result["column"] == OWN:
                cells.setdefault((result["query"], result["attack"]), []).append(result)
        entries = {cell: make_entry(own) for cell, own in cells.items()}
        rows = [
            (
                query,
                attack + knowledge_marks(own),
                f"{mean(r['queries']['sent'] for r in own):,.0f}",
                f"{mean(r['queries']['answered'] for r in own):,.0f}",
                f"{mean(r['verdicts']['alarmed'] for r in own):.1%}",
                entries[query, attack].text(),
            )
            for (query, attack), own in sorted(cells.items(), key=lambda cell: -(entries[cell[0]].mean or 0.0))
        ]
        header = ("query", "attack", "queries", "answered", "sent after the alarm", "thief")
        notes = [f"{mark} {EXPLAINED[mark]}" for mark in MARKS.values() if any(mark in row[1] for row in rows)]
        first = [own[0]["thief"] for own in cells.values()]
        different = {(thief["accuracy"], thief["agreement"]) for thief in first}
        if len(different) < len(first):
            notes.append(
                "Many attackers begin with the same images, and hold the same few answers when the alarm comes: the "
                f"{len(first)} rows are {len(different)} different thieves, compared by one seed."
            )
        return f"{markdown_table(header, rows)}\n{markdown_list(notes)}"

    def scope_line(self) -> str:
        """What was run, of what, and where."""
        spec, victim, asked = self.spec, self.results[0]["protectee"], self.spec.protectee
        devices = sorted({r["hardware"]["device"] for r in self.results})
        total, run = len(list(spec.cells())), len(self.results)
        count = f"All {total} cells" if run == total else f"{run} of the {total} cells"
        network = WORDS[asked.network["name"]]
        start = "from scratch" if asked.start is None else f"from weights of {WORDS[asked.start.data.set]}"
        outliers = "" if asked.outliers is None else f" with {WORDS[asked.outliers.set]} as outliers"
        pool = "its own kind" if isinstance(asked.pool, str) else WORDS[asked.pool.set]
        return (
            f"{count} of `benchmarks/paper/{spec.name}.yaml`{'' if run == total else ' so far'}, seeds "
            f"{sorted({r['seed'] for r in self.results})}, on {', '.join(devices)}: a {network} of "
            f"{self.board.victim:.1%}, trained {start} on {victim['images']['train']:,} images{outliers} (the paper's "
            f"has {self.paper['benign_accuracy']['none']:.1f}% and starts from ImageNet weights); thieves of the same "
            f"kind with {spec.budget:,} queries, images of {pool}. Files: "
            f"{', '.join(victim['sources'])}. {self._time_line()}\n"
        )

    def _time_line(self) -> str:
        """How long it took, beside what the plan expects."""
        phases = plan_phases(list(self.spec.cells()), self.results)
        least = "at least " if any(phase.unknown for phase in phases) else ""
        planned = f"{least}{sum(phase.minutes for phase in phases):.0f}"
        return (
            f"These cells took at most {minutes_taken(self.results):.0f} minutes of the GPU; by their times `queen "
            f"bench plan` expects {planned} for the whole table (commands that ran beside each other count twice in "
            "both)."
        )

    def section(self) -> str:
        """All of it in one piece, or that it was not run yet."""
        if not self.results:
            path = f"benchmarks/paper/{self.spec.name}.yaml"
            return f"Not run yet: `{path}` has {len(list(self.spec.cells()))} cells.\n"
        parts = (self.scope_line, self.leaderboard_table, self.story, self.accuracy_table, self.share_table)
        return "\n".join(part() for part in (*parts, self.whole_table))

    def story(self) -> str:
        """What the leaderboard shows, the sentinel first, whatever it has."""
        own = self.board.find(OWN)
        lines = [f"`{OWN}` was not run yet."]
        if own is not None:
            lines = [self._own_line(own), *self._foreign_line(), self._price_line(own)]
        lines += self._rivals_line([one for one in self.board.standings if one.column not in (OWN, "none")])
        lines += self._believers_line()
        lines.append(self._caution_line())
        return markdown_list(lines)

    def _own_line(self, own: BoardRow) -> str:
        undefended = self.board.find("none")
        none = f", the best undefended thief {_percent(undefended.stolen)}" if undefended else ""
        text = (
            f"Behind `{OWN}` the best of the paper's twelve attackers ({_count(own)}) gets {_named(own.published)}, "
            f"and the best of all that were run {_named(own.best)}. Always guessing one class gets "
            f"{self.board.chance:.1%}{none}."
        )
        if own.honest is not None:
            text += f" A direct thief gets {own.honest:,.0f} honest answers to its {self.spec.budget:,} queries."
        if own.encoder:
            text += f" Not counted here, because it owns the victim's encoder: {_named(own.encoder)}."
        return text

    def _foreign_line(self) -> list[str]:
        """What thieves get from the sentinel who own nothing of the victim's: neither such images nor its encoder."""
        here = [r for r in self.results if r["column"] == OWN and not {"benign", "encoder"} & set(r["knows"])]
        if not here:
            return []
        [own] = make_leaderboard(here, [], {}).standings
        return [
            f"Of thieves who own neither images of the victim's kind nor its encoder the best gets {_named(own.best)}."
        ]

    def _price_line(self, own: BoardRow) -> str:
        some = next(r for r in self.results if r["column"] == OWN)["utility"]
        one, many = some["one_client"], some["many_clients"]
        return (
            f"What it costs: one client that sends all {one['queries']:,} test images gets no answer to "
            f"{own.refused or 0:.1%} of them, and {_percent(own.one_client.mean)} are right; the victim itself gets "
            f"{self.board.victim:.1%} right. {many['clients']} clients with {many['queries']} queries each get the "
            f"victim's label for {many['agreement']:.1%} of them."
        )

    def _rivals_line(self, rivals: Sequence[BoardRow]) -> list[str]:
        """What the others leave to the paper's attackers, which they all met, and how far that is from no defense."""
        undefended = self.board.find("none")
        ranked = sorted((one for one in rivals if one.published), key=lambda one: _accuracy(one.published))
        if not ranked or undefended is None or undefended.published is None:
            return []
        least, most = (f"{_percent(_accuracy(one.published))} (`{one.column}`)" for one in (ranked[0], ranked[-1]))
        between = f"{least} to {most}" if len(ranked) > 1 else least
        some = [one for one in [*ranked, undefended] if one.published and one.published.count < len(PAPERS_CELLS)]
        lacking = f" Of {', '.join(f'`{one.column}`' for one in some)} not all of them were run yet." if some else ""
        return [
            f"The other defenses leave {between} to the best of the paper's attackers. Without a defense it gets "
            f"{_named(undefended.published)}. One run can differ by as much, so this does not rank them.{lacking}"
        ]

    def _believers_line(self) -> list[str]:
        """Defenses that look stronger against a thief who believes every answer than they are."""
        found = []
        for one in self.board.standings:
            here = [
                r for r in self.results if (r["column"], r["query"], r["attack"]) == (one.column, "knockoff", "direct")
            ]
            direct = make_entry(here).mean
            if direct is not None and one.published and _accuracy(one.published) - direct > WEAKER:
                found.append(f"{direct:.1%} and {_accuracy(one.published):.1%} behind `{one.column}`")
        if not found:
            return []
        told = (
            "A thief that believes every answer (`direct`) says little about a defense. It and the best of the paper's"
        )
        return [f"{told} get {'; '.join(found)}."]

    def _caution_line(self) -> str:
        """How many figures are of one run, and what that means."""
        seeds: dict[tuple[str, str, str], int] = {}
        for r in self.results:
            cell = (r["column"], r["query"], r["attack"])
            seeds[cell] = seeds.get(cell, 0) + 1
        several = sum(count > 1 for count in seeds.values())
        which = f"{several} of the {len(seeds)} figures are means over seeds and show their spread (±); all others are"
        text = (
            f"{which if several else 'Each figure is'} of one run. It may differ by one or two points with `knockoff`, "
            f"and by many with `jbda_tr`{self._spread_of_labels()}."
        )
        if not any(r["attack"] in ATTACKS and ATTACKS[r["attack"]].adaptive for r in self.results):
            text += f" Attackers made against our own policies were not run here. {_adaptive_line()}"
        return text

    def _spread_of_labels(self) -> str:
        """How far thieves of the same kind are apart who believe nearly the same labels."""
        found = [
            r["thief"]["accuracy"]
            for r in self.results
            if (r["query"], r["attack"], r["seed"]) == ("jbda_tr", "label_only", 0)
            and r["believed"]["label_right"] >= NEARLY
            and r["queries"]["answered"] == r["queries"]["sent"]
        ]
        if len(found) < 2:
            return ""
        return (
            f": {len(found)} thieves who took the labels alone, at least {NEARLY:.0%} of them right, have "
            f"{min(found):.1%} to {max(found):.1%}"
        )


@cache
def read_rerun(name: str) -> Rerun:
    """The re-run of one table by the name of its spec, from the committed results."""
    folder = ROOT / "results" / name
    times = json.loads(SPEED.read_text())["query_time_ratio"] if name == TIMED else {}
    results = read_results(folder) if folder.exists() and has_results(folder) else []
    return Rerun(read_spec(ROOT / f"benchmarks/paper/{name}.yaml"), results, read_paper(PAPER_OF[name]), times)


def read_paper(name: str) -> Paper:
    """The figures that the paper prints for a data set."""
    return dict(json.loads((PAPERS / f"{name}.json").read_text()))


def heads_only(times: Mapping[str, float], results: Sequence[Result]) -> dict[str, float]:
    """Those times of a query that hold for these columns: with networks for shadows they were not measured."""
    timed = {r["column"] for r in results if r["defense"]["options"].get("shadow_kind", "head") == "head"}
    return {column: time for column, time in times.items() if column in timed}


def _adaptive_line() -> str:
    """What such attackers got from the sentinel in a run of their own."""
    results = [r for r in read_results(ACCUSED) if r["column"] == OWN]
    [own] = make_leaderboard(results, [], {}).standings
    return (
        f"With another victim and {results[0]['queries']['budget']:,} queries the best of them got {_named(own.best)} "
        f"behind the sentinel, and the thief that owns the victim's encoder {_named(own.encoder)} "
        "([policies.md](policies.md#what-attackers-get-who-know-the-sentinel))."
    )


def _named(best: Best | None) -> str:
    return "nothing" if best is None else f"{_percent(best.entry.mean)} ({best.query} {best.attack})"


def _count(one: BoardRow) -> str:
    count = one.published.count if one.published else 0
    return "all of them run" if count == len(PAPERS_CELLS) else f"{count} of the {len(PAPERS_CELLS)} run so far"


def _marked(best: Best | None) -> str:
    """The accuracy of a thief, with the marks of what it knows or takes."""
    return "-" if best is None else best.entry.text() + "".join(mark for mark in MEANINGS if mark in best.attack)


def _accuracy(best: Best | None) -> float:
    return 0.0 if best is None else best.entry.mean or 0.0


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
