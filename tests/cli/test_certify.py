from __future__ import annotations

import numpy as np

import queen
from queen.core.certify import records_bound
from queen.options import SENTINEL_LIMITS
from tests.support.commands import as_json, run
from tests.support.guards import ALL_LETTERS, fitted, held_out, queries


def test_certify_gives_the_numbers_of_the_paper_and_the_sound_ones():
    found = as_json("certify", "--epsilon", ".1", "--delta", ".05", "--threshold", ".2")
    assert round(found["answers_per_class"], 1) == 184.4
    assert round(found["rho_paper"], 4) == 0.0329
    assert round(found["rho_sound"], 4) == 0.0659
    assert found["records_per_class"] == 185
    assert found["radius"] == found["rho_sound"]
    assert set(found) == {
        "epsilon", "delta", "threshold", "radius", "answers_per_class", "rho_paper", "rho_sound",
        "records_per_class", "statements",
    }  # fmt: skip


def test_certify_at_a_radius_changes_the_records_and_nothing_of_theorem_2():
    default, chosen = as_json("certify"), as_json("certify", "--radius", ".1")
    assert chosen["radius"] == 0.1
    assert chosen["records_per_class"] == records_bound(0.1, 0.2) == 80
    assert [chosen[k] for k in ("answers_per_class", "rho_paper", "rho_sound")] == [
        default[k] for k in ("answers_per_class", "rho_paper", "rho_sound")
    ]


def test_certify_in_words_names_every_number_and_statement():
    shown = " ".join(run("certify").stdout.split())
    assert all(word in shown for word in ("answers a class may give", "184.444", "0.0329", "0.0659", "185"))
    assert "eta_hat" not in shown  # operators need not know the paper's letters
    assert all(statement in shown for statement in queen.certify(0.1, 0.05, 0.2).statements)


def test_certify_of_a_bundle_uses_its_limits_and_tells_of_its_held_out_data(here):
    found, report = as_json("certify", "head"), fitted().report
    assert (found["radius"], found["threshold"]) == (ALL_LETTERS.radius, ALL_LETTERS.threshold)
    assert found["benign_queries_before_first_spent_class"] == report["calibration_first_spent"] is not None
    assert found["benign_queries_replayed"] == report["calibration_images"] == len(held_out()[0])
    assert f"spent after {report['calibration_first_spent']} of them" in " ".join(run("certify", "head").stdout.split())
    assert as_json("certify", "head", "--radius", ".1", "--threshold", ".3")["radius"] == 0.1
    assert as_json("certify", "cnn")["benign_queries_before_first_spent_class"] is None


def test_certify_with_queries_estimates_theorem_3_for_every_verdict(here, tmp_path):
    np.save(tmp_path / "many.npy", queries().numpy())
    found = as_json("certify", "head", "--queries", tmp_path / "many.npy")["theorem3"]
    assert set(found) == set("ABCD")
    assert sum(one["rows"] for one in found.values()) == len(queries())
    assert all(found[letter]["bound"] == found[letter]["fitted"] == 0 for letter in "CD")
    assert all(0 <= found[letter]["bound"] <= found[letter]["fitted"] > 0 for letter in "AB")
    shown = " ".join(run("certify", "head", "--queries", tmp_path / "many.npy").stdout.split())
    assert all(f"Verdict {letter}, {one['rows']} queries" in shown for letter, one in found.items())


def test_theorem_2_is_left_out_where_no_class_is_ever_spent_unless_somebody_asks(tmp_path):
    guard = fitted(policy="sentinel", limits=SENTINEL_LIMITS)
    guard.save(tmp_path / "counting")
    guard.fresh(limits=ALL_LETTERS).save(tmp_path / "spending")
    shown = " ".join(run("certify", tmp_path / "counting").stdout.split())
    assert "No class is ever spent" in shown
    assert "10000 per day" in shown
    theorem = "by Theorem 2"
    assert theorem not in shown
    assert theorem in run("certify", tmp_path / "counting", "--radius", ".1").stdout
    assert theorem in run("certify", tmp_path / "spending").stdout
    assert as_json("certify", tmp_path / "counting")["answers_per_class"] > 0
