"""Documents from result files: `python -m queen.bench.page` puts tables and sentences between a page's markers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from queen.bench.run import read_results
from queen.bench.table import tables, to_markdown

SMOKE, CIFAR, PROTOTYPE = Path("results/smoke"), Path("results/cifar10-h200"), Path("results/prototype/cifar10.json")
Result = Mapping[str, Any]


def markers(name: str) -> tuple[str, str]:
    """The comments between which a page holds something generated."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def filled(page: str, text: str, begin: str, end: str) -> str:
    """A page with text between its markers."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}{end}{after}"


def smoke_table() -> str:
    """The smoke matrix."""
    return _table(SMOKE)


def cifar_table() -> str:
    """CIFAR-10 on one GPU."""
    return _table(CIFAR)


def _table(folder: Path) -> str:
    return "\n".join(to_markdown(one) for one in tables(read_results(folder)))


def cifar_story() -> str:
    """What the CIFAR-10 run shows, and where it differs from an earlier prototype."""
    results = read_results(CIFAR)
    earlier = json.loads(PROTOTYPE.read_text())

    def thief(column: str, attack: str) -> str:
        return _percent(_one(results, column, attack)["thief"]["accuracy"])

    def before(name: str, attack: str) -> str:
        return " / ".join(_percent(value) for value in earlier["thief_accuracy"][name][attack])

    sentinel, paper = _one(results, "queen-sentinel", "direct"), _one(results, "queen", "direct")
    honest = round((1 - sentinel["verdicts"]["alarmed"]) * sentinel["queries"]["sent"])
    one_client = sentinel["utility"]["one_client"]
    # Equal beliefs are trained on once: a rate that several cells share counts once. Those who drop most of their
    # answers train in tiny batches, at a rate of their own.
    trained = [r["thief"] for r in results if r["attack"] not in ("agreement_filter", "drop_after_alarm")]
    rates = sorted({(one["images_per_second"], one["training_seconds"]) for one in trained})
    slow, fastest = [rate for rate, _ in rates[:8]], rates[-1][0]
    lines = [
        f"The undefended copy reaches {thief('none', 'direct')} %, label-only {thief('none', 'label_only')} %; the "
        f"prototype had {before('none', 'direct')} % and {before('none', 'label_only')} % "
        f"({', '.join(earlier['thief_accuracy']['none']['training'])}). A likely reason for the lower end: the victim "
        "here was trained with outlier exposure (SVHN), which makes its answers to foreign images flatter.",
        f"Under the paper's policy a direct thief gets {thief('queen', 'direct')} % (prototype "
        f"{before('queen, rho .02, 1200 steps', 'direct')} %), but one that keeps only labels "
        f"{thief('queen', 'label_only')} %, and one that recovers answers {thief('queen', 'pbayes')} %: as before, the "
        f"policy does not stop extraction. {_percent(paper['verdicts']['A'])} % of the queries lie outside their disc "
        f"(prototype {_percent(earlier['share_outside_the_disc']['pool'])} %), so gradient reverse answers only "
        f"{_percent(paper['verdicts'].get('B', 0.0))} % of them.",
        f"ModelGuard-W holds a direct thief at {thief('modelguard_w', 'direct')} %, but pBayes undoes it "
        f"({thief('modelguard_w', 'pbayes')} %), and the label is never hidden "
        f"({thief('modelguard_w', 'label_only')} %).",
        f"The sentinel accuses after {honest} honest answers (prototype: "
        f"{earlier['alarm_at_median_energy_5000_calibration_images']}, the median over orders; this is one order) and "
        f"leaves all of these four at chance: {thief('queen-sentinel', 'direct')} % direct, "
        f"{thief('queen-sentinel', 'label_only')} % label-only, {thief('queen-sentinel', 'pbayes')} % recovered "
        "(prototype "
        f"{before('queen-sentinel', 'direct')} %). Its price: one client that sends all {one_client['queries']:,} test "
        f"images has spent its budget of extra answers and is refused {_percent(one_client['refused'])} % of them; "
        "raise `extra_answers` for such a client. A hundred clients of a hundred queries lose nothing "
        f"({_percent(sentinel['utility']['many_clients']['agreement'])} % agreement). Ten accounts help no thief "
        f"({thief('queen-sentinel', 'many_accounts')} %); one who knew all clean answers and kept what equals them "
        f"would reach {thief('queen-sentinel', 'drop_after_alarm')} %. Attackers who own images of the victim's kind "
        "were not run here; the smoke matrix below and docs/policies.md show those who get through.",
        f"Thieves were trained by nine processes at once; the eight slowest full trainings ran at {slow[0]:,} to "
        f"{slow[-1]:,} images a second each, {sum(slow):,} together (one alone reached {fastest:,}); the prototype had "
        f"{earlier['training_images_per_second_8_processes']:,}.",
    ]
    return "".join(f"- {line}\n" for line in lines)


def _one(results: Sequence[Result], column: str, attack: str) -> Result:
    return next(r for r in results if r["column"] == column and r["attack"] == attack and r["query"] == "knockoff")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"cifar table": cifar_table},
    "docs/results.md": {"cifar table": cifar_table, "cifar story": cifar_story, "smoke table": smoke_table},
}


def render(page: str) -> str:
    """A page as the result files want it."""
    text = Path(page).read_text()
    for name, make in PARTS[page].items():
        text = filled(text, make(), *markers(name))
    return text


if __name__ == "__main__":
    for path in PARTS:
        Path(path).write_text(render(path))
