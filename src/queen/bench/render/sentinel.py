"""What `benchmarks/evidence` measured of the sentinel, as the tables and the first figure of docs/sentinel.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queen.bench.render.markdown import markdown_table
from queen.options import Sentinel
from queen.plots import png

WAYS = {"plain": "plain", "1:1": "1:1", "3:1": "3:1", "10:1": "10:1", "10:1 central": "10:1 central", "warm-up": "late"}
MARGINS = ("0", "0.1", "0.2", "0.3")
REMEDIES = {"mixed": "mixed in", "own": "alone", "bar": "alone, and the bar", "again": "again and again"}
COLOURS = ("#e8a33d", "#b07aa1", "#7a7a85", "#c8102e")
Result = Mapping[str, Any]


def evidence_markdown(evidence: Result) -> str:
    """How soon thieves are caught, whom of the benign the test accuses, and the hard cases."""
    victims: Result = evidence["victims"]
    default = f"{Sentinel().margin:g}"
    rows = [
        (facts["about"], pool, f"{float(margin):g}", *(_alarm(by_margin[margin][way]) for way in WAYS))
        for facts, by_pool in ((one["facts"], one["thieves"]) for one in victims.values())
        for pool, by_margin in by_pool.items()
        for margin in dict.fromkeys(("0", default))
    ]
    first = next(iter(next(iter(victims.values()))["thieves"].values()))
    parts = [
        markdown_table(("victim", "foreign images", "margin", *WAYS.values()), rows),
        f"An entry is the median and the 95th percentile of {first['0']['plain']['orders']} orders; if not all were "
        f"caught within {evidence['queries']:,} queries, cover included, it is the share that was. Central: cover only "
        f"from the half of the images that look least foreign. Late: the attack begins after {evidence['warm_up']:,} "
        "benign queries. Images were packed, some with a little loss.\n",
        markdown_table(
            (
                "victim",
                "accuracy",
                "calibration images",
                "benign orders accused",
                "clients that send one predicted class only",
            ),
            [_benign(one) for one in victims.values()],
        ),
        "The benign clients were tried at margin 0, where they are accused most easily. The images were divided into "
        "calibration and held-out images many times. A thief who sends images of the victim's own kind looks like "
        "these clients, so it is never accused.\n",
        "Hard cases: few calibration images in every class (the median query at which plain thieves are accused, at "
        f"margin 0 / {default}, or the share that is caught), and "
        "cascade clients, who send only the fifth of their images that the model is least sure of.\n",
        markdown_table(
            ("victim", *(f"{count} images a class" for count in _first(victims)["few_images"]), "cascade accused"),
            [
                (
                    one["facts"]["about"],
                    *(f"{_median(few['0'])} / {_median(few[default])}" for few in one["few_images"].values()),
                    f"{_percent(one['cascade'][default]['caught'])}, median query {_median(one['cascade'][default])}",
                )
                for one in victims.values()
            ],
        ),
    ]
    return "\n".join(parts)


def tolerance_markdown(tolerance: Result, evidence: Result) -> str:
    """Honest clients with cameras of their own who are accused at every margin, beside the thieves."""
    queries, tolerance, evidence = evidence["queries"], tolerance["victims"], evidence["victims"]
    clients = _first(tolerance)["unchanged"]
    margins = " / ".join(f"{float(margin):g}" for margin in MARGINS)
    changes = list(_first(tolerance))
    rows = [
        (_words(change), *(_accused(one[change], clients["clients"]) for one in tolerance.values()))
        for change in changes
    ]
    for way in ("plain", "1:1", "3:1", "10:1"):
        caught = [_over_margins(next(iter(one["thieves"].values())), way) for one in evidence.values()]
        rows.append((f"thief, {way}", *caught))
    header = ("client", *(evidence[name]["facts"]["about"] for name in tolerance))
    return (
        f"How many of {clients['clients']} honest clients are accused at margin {margins}. Each sends "
        f"{clients['queries']:,} queries, changed with one strength. The last rows show thieves: the median attack "
        f"query at which they are accused, or the share caught within {queries:,} queries, cover included.\n\n"
        + markdown_table(header, rows)
        + "\n"
    )


def odd_markdown(odd: Result) -> str:
    """Benign but odd clients who are accused, and after every remedy; then what the remedy costs against thieves."""
    victims = list(odd["victims"].values())
    kinds = {name: [one["kinds"][name] for one in victims] for name in victims[0]["kinds"]}
    default = f"{Sentinel().margin:g}"
    margins = (default, "0.3", "0.5")
    usual, retry = kinds["cascade"][0], victims[0]["retry"]
    accused = [
        (
            _words(name),
            *(_numbers(str(one["margins"][margin]["accused"]) for one in kind) for margin in margins),
            *(_numbers(str(one["accused"]) if one else None for one in _after(kind, remedy)) for remedy in REMEDIES),
        )
        for name, kind in kinds.items()
    ]
    thieves = [
        (
            _words(name),
            *(
                _numbers(_median(one["thieves"][way]) if one else None for one in _after(kind, remedy))
                for way in ("plain", "3:1")
                for remedy in REMEDIES
            ),
        )
        for name, kind in kinds.items()
        if any(one["margins"][default]["accused"] for one in kind)
    ]
    shorter = [
        f"{_words(name)}, {one['about']}: {kind['queries']:,}"
        for one in victims
        for name, kind in one["kinds"].items()
        if kind["queries"] < retry["queries"]
    ]
    wrongly = [
        f"{_words(name)}, {words}: {_numbers(str(one['usual_accused']) if one else None for one in after)}"
        for name, kind in kinds.items()
        for after, words in ((_after(kind, remedy), words) for remedy, words in REMEDIES.items())
        if any(one["usual_accused"] for one in after if one)
    ]
    plain, hidden = (_numbers(_median(one["thieves"][way]) for one in victims) for way in ("plain", "3:1"))
    parts = [
        f"How many of {usual['clients']} benign clients with {retry['queries']:,} queries each are accused"
        + (f" ({'; '.join(shorter)})" if shorter else "")
        + f". A cell has one number for each victim: {'; '.join(one['about'] for one in victims)}.\n",
        markdown_table(("client", *(f"margin {margin}" for margin in margins), *REMEDIES.values()), accused),
        '"None": no bar is above what such clients reach. '
        f"Retry loops: of the {retry['clients']} oddest inputs, each sent {retry['queries']:,} times at margin 0, "
        f"{_numbers(str(one['retry']['accused']) for one in victims)} are accused. Of {usual['clients']} usual clients "
        f"nobody is accused under these calibrations{', except with ' + '; '.join(wrongly) if wrongly else ''}.\n",
        "What the remedies cost, for kinds that need one: the median attack query at which a thief is accused, or the "
        f"share caught within {odd['queries']:,} queries, cover included. With the usual calibration it is {plain} for "
        f"a plain thief and {hidden} for a thief with 3:1 cover.\n",
        markdown_table(
            ("calibrated on", *(f"{way}: {words}" for way in ("plain", "3:1") for words in REMEDIES.values())), thieves
        ),
    ]
    return "\n".join(parts)


def _after(kind: Sequence[Result], remedy: str) -> list[Result | None]:
    """What a remedy did for clients of a kind, for each victim; None where there is no such remedy."""
    return [one["remedies"].get(remedy) for one in kind]


def _numbers(texts: Iterable[str | None]) -> str:
    """One text for each victim; "none" where a remedy does not exist, nothing where it does for nobody."""
    listed = list(texts)
    return " / ".join(text or "none" for text in listed) if any(listed) else ""


def threshold_markdown(result: Result) -> str:
    """The first figure and what it shows."""
    fixed, certified = result["fixed"], result["certified"]
    rules = markdown_table(
        (
            "accuses once",
            f"thief at {result['cover']} cover is caught after (queries, cover included)",
            f"benign clients accused, of {result['clients']:,}",
        ),
        [
            *((_rule(rule), f"{rule['thief_median']:.0f}", f"{rule['accused'][-1]:,}") for rule in fixed),
            ("certified test, margin 0", f"{certified['thief_median']:.0f}", f"{certified['accused'][-1]:,}"),
        ],
    )
    return (
        "![Benign clients accused over the queries they have sent, by fixed thresholds and by the certified test]"
        "(threshold.png)\n\n"
        f"{rules}\n"
        f"Victim: {result['victim']}; foreign images: {result['pool']}. Every fixed rule was tuned: it has the score "
        "and the share that catch this thief as soon as the certified test does and accuse the fewest benign clients. "
        "No operator can know these beforehand. With the right window such a rule is as good, but nobody knows which "
        "window is right, and nothing bounds how many other clients it accuses. The certified test was not tuned.\n"
    )


def draw_threshold(result: Result) -> bytes:
    """A PNG: benign clients accused so far, over the number of queries each has sent."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axis = figure.subplots()
    lines = [(_rule(rule), rule["accused"], colour) for rule, colour in zip(result["fixed"], COLOURS, strict=True)]
    for label, accused, colour in [*lines, ("certified test", result["certified"]["accused"], "#1b7f4d")]:
        axis.plot(result["queries"], accused, marker="o", markersize=3.5, color=colour, label=label)
    axis.set(xlabel="queries each client has sent", ylabel=f"accused of {result['clients']:,} benign clients")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="center right")
    return png(figure)


def _rule(rule: Result) -> str:
    among = "all queries" if rule["window"] is None else f"the last {rule['window']} queries"
    return f"{rule['hits']} of {among} are above the {_percent(1 - rule['share'])} score"


def _benign(one: Result) -> tuple[str, ...]:
    facts, benign, single = one["facts"], one["benign"], one["benign"]["one_predicted_class"]
    return (
        facts["about"],
        f"{facts['accuracy']:.3f}".removeprefix("0"),
        f"{facts['images']['calibration']:,}",
        f"{benign['accused']} of {benign['clients']:,} of {benign['queries']:,} queries",
        f"{single['accused']} of {single['clients']:,}",
    )


def _alarm(times: Result) -> str:
    """Median and 95 % of the query that accuses; the share caught where not so many are."""
    if times["median"] is None:
        return _median(times)
    late = f"/{times['p95']:.0f}" if times["p95"] is not None else f", {_percent(times['caught'])}"
    return f"{_median(times)}{late}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _median(times: Result) -> str:
    """The median query that accuses, or the share caught where that is less than half."""
    if times["median"] is None:
        return _percent(times["caught"]) if times["caught"] else "never"
    return f"{times['median']:.0f}"


def _over_margins(by_margin: Result, way: str) -> str:
    return " / ".join(_median(by_margin[margin][way]) for margin in MARGINS)


def _accused(row: Result, usual: int) -> str:
    numbers = " / ".join(str(row["accused"][margin]) for margin in MARGINS)
    return numbers if row["clients"] == usual else f"{numbers} of {row['clients']:,}"


def _words(change: str) -> str:
    return change.replace("jpeg", "JPEG quality")


def _first(results: Result) -> Any:
    return next(iter(results.values()))
