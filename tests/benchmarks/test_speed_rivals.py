"""The speed benchmark of the rivals runs and measures what it says. No test here looks at a speed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks.speed import rivals
from benchmarks.speed.rivals import BATCH, SOLVERS, InBatches, defense_costs, measure_rivals, solver_ratios
from queen.bench.studies.runtime import PAPER_RATIOS
from queen.defenses import DEFENSES
from tests.support.detectors import DETECTORS
from tests.support.paths import ROOT

COMMITTED = ROOT / "results" / "speed" / "rivals-cpu-2-cores.json"


@pytest.fixture(scope="module")
def result() -> dict:
    """A measurement too small to mean anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "solver_ratios", lambda scale: solver_ratios(100 * scale))
        patch.setattr(rivals, "defense_costs", lambda scale: defense_costs(10 * scale, "small_cnn"))
        return json.loads(json.dumps(measure_rivals(quick=True)))


def check(result: dict) -> None:
    keys = "solver_ratio query_time_ratio query_time_seconds query_time_verdicts query_time_network"
    assert set(result) == {*keys.split(), "paper_query_time_ratio", "machine", "quick"}
    assert set(result["solver_ratio"]) == set(SOLVERS)
    assert set(result["query_time_ratio"]) == set(result["query_time_seconds"]) == {*DEFENSES} - {*DETECTORS}
    assert set(result["query_time_verdicts"]) == {name for name in DEFENSES if name.startswith("queen")}
    assert set(result["machine"]) == {"threads", "processor", "python", "torch"}
    assert result["paper_query_time_ratio"].items() <= PAPER_RATIOS.items()
    figures = [*result["solver_ratio"].values(), *result["query_time_ratio"].values()]
    assert all(math.isfinite(number) and number > 0 for number in [*figures, *result["query_time_seconds"].values()])
    assert all(math.isclose(sum(shares.values()), 1) for shares in result["query_time_verdicts"].values())
    assert result["query_time_ratio"]["none"] == 1


@pytest.mark.long
def test_every_promised_number_is_there(result):
    check(result)
    assert result["quick"] is True
    assert result["query_time_network"] == f"small_cnn, untrained, {BATCH} images of 32x32, {BATCH} at a time"


def test_the_committed_measurement_holds_the_same():
    committed = json.loads(COMMITTED.read_text())
    check(committed)
    assert committed["quick"] is False
    assert committed["query_time_network"].startswith("vgg16_bn, untrained, 1000 images ")


@pytest.mark.long
def test_the_program_prints_json_or_tables(result, monkeypatch, capsys):
    monkeypatch.setattr(rivals, "measure_rivals", lambda quick: result | {"quick": quick})
    rivals.main(["--json", "--quick"])
    assert json.loads(capsys.readouterr().out) == result
    rivals.main([])
    text = capsys.readouterr().out
    assert f"| {SOLVERS['modelguard_w_k100']} | {result['solver_ratio']['modelguard_w_k100']:,.0f} |" in text
    assert result["query_time_network"] in text
    for name, ratio in result["query_time_ratio"].items():
        paper = f"{PAPER_RATIOS[name]:g}" if name in PAPER_RATIOS else ""
        assert f"| {name} | {result['query_time_seconds'][name]:.2f} | {ratio:.3f} | {paper} |" in text


def test_the_papers_ratios_are_of_defenses_that_exist():
    assert set(PAPER_RATIOS) < set(DEFENSES)


def test_clients_ask_in_batches_and_get_every_answer():
    sizes: list[int] = []

    class Service:
        def client(self, name: str):
            return lambda x: (sizes.append(len(x)), x + len(name))[1]

    x = torch.arange(2 * BATCH + 5.0)
    assert torch.equal(InBatches(Service()).client("abc")(x), x + 3)
    assert sizes == [BATCH, BATCH, 5]
