"""`queen calibrate` on images alone, on recorded traffic, and with foreign images; what `certify` then says."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import queen
from queen.fit.files import write_image
from queen.fit.traffic import split_clients
from queen.ledger import open_ledger
from queen.serve.querylog.writer import QueryLog
from tests.support.commands import as_json, mistake, protect_args, run
from tests.support.guards import fitted, held_out, images

X = held_out()[0]
CLIENTS = {name: X[start : start + 100] for name, start in (("ann", 0), ("ben", 100), ("cleo", 200), ("dan", 300))}


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A folder with a bundle, held-out images, and a log of four clients and a thief."""
    monkeypatch.chdir(tmp_path)
    fitted(policy="sentinel").save("bundle")
    np.save("held_out.npy", X.numpy())
    _record(Path("log"), CLIENTS | {"thief": 1 - X[:40]})
    Path("trusted.txt").write_text("# our own\nann\nben\n\n  cleo\ndan\n")
    return tmp_path


def _record(folder: Path, traffic: dict[str, Tensor]) -> None:
    """Three queries a request, the clients in turn."""
    log = QueryLog(folder)
    requests = [(name, part, i) for name, x in traffic.items() for i, part in enumerate(x.split(3))]
    for at, (name, part, _) in enumerate(sorted(requests, key=lambda request: request[2])):
        log.write(name, (), part, 1e9 + at)
    log.close()


def test_images_alone_will_do(desk):
    report = as_json("calibrate", "bundle", "--data", "held_out.npy")
    expected = queen.calibrate(fitted(), held_out(), progress=False)
    loaded = queen.load("bundle").bundle
    assert torch.equal(loaded.calibration.scores, expected.bundle.calibration.scores)
    assert report["statement"] == loaded.statement
    assert report["alarm_after"] == loaded.report["alarm_after"] == expected.report["alarm_after"]


def test_trusted_clients_of_a_log_calibrate_and_set_the_bar(desk):
    result = run("calibrate", "bundle", "--from-log", "log", "--clients", "trusted.txt")
    calibration = queen.load("bundle").bundle.calibration
    expected = queen.calibrate(fitted(), trusted=CLIENTS, progress=False).bundle.calibration
    assert torch.allclose(calibration.scores, expected.scores, atol=1e-5)
    assert calibration.trusted.clients == 2
    assert calibration.trusted.highest == pytest.approx(expected.trusted.highest, rel=1e-3)
    assert len(split_clients(CLIENTS, has_data=False, seed=0).calibrating) == 2
    assert "what 2 trusted clients sent calibrates, 2 trusted clients set the bar" in " ".join(result.stderr.split())
    assert "at most 1/3" in " ".join(result.stdout.split())


def test_with_data_all_of_them_set_the_bar(desk):
    as_json("calibrate", "bundle", "--data", "held_out.npy", "--from-log", "log", "--clients", "trusted.txt")
    bundle = queen.load("bundle").bundle
    assert bundle.calibration.trusted.clients == 4
    assert len(bundle.calibration.labels) + bundle.calibration.repeated == len(X)
    statements = " ".join(as_json("certify", "bundle")["sentinel"])
    assert "at most 1/5" in statements
    assert "which is above their wealth" in statements


def test_a_thief_among_the_trusted_raises_the_bar_and_certify_says_so(desk):
    Path("trusted.txt").write_text("ann\nthief\n")
    run("calibrate", "bundle", "--data", "held_out.npy", "--from-log", "log", "--clients", "trusted.txt")
    assert "so the bar is raised above their wealth, and alarms take longer" in " ".join(
        as_json("certify", "bundle")["sentinel"]
    )


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ("ann\nzoe\nyan\n", "no query of: zoe, yan"),
        ("# nobody\n\n", "names no client"),
        ("ann\n", "at least two clients"),
    ],
    ids=["unknown", "none", "one"],
)
def test_mistakes_about_clients_are_named(desk, names, match):
    Path("trusted.txt").write_text(names)
    before = queen.load("bundle").bundle.test
    assert match in mistake("calibrate", "bundle", "--from-log", "log", "--clients", "trusted.txt")
    assert queen.load("bundle").bundle.test == before


@pytest.fixture
def pictures(desk) -> Path:
    """A folder of foreign images, some of them further below."""
    folder = desk / "foreign"
    (folder / "more").mkdir(parents=True)
    for i, x in enumerate(images(1 - X[:30])):
        write_image(x, folder / ("more" if i % 3 else ".") / f"{i}.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_foreign_images_may_be_a_folder_or_a_file(desk, pictures):
    fitted("network").save("cnn")
    np.save("images.npy", images(X).numpy())
    np.savez("foreign.npz", x=images(1 - X[:30]).numpy())
    scores = []
    for foreign in (pictures, "foreign.npz"):
        run("calibrate", "cnn", "--data", "images.npy", "--foreign", foreign)
        found = queen.load("cnn").bundle.calibration.foreign
        assert found.name == "your foreign images"
        scores.append(found.scores.sort(0).values)
    assert scores[0].shape == (30, 4)
    assert torch.allclose(scores[0], scores[1], atol=0.05)  # a PNG has 256 shades
    assert "no images in" in mistake("calibrate", "cnn", "--data", "images.npy", "--foreign", "log")


def test_certify_tells_how_soon_thieves_are_caught(desk):
    run("calibrate", "bundle", "--data", "held_out.npy")
    found = as_json("certify", "bundle")
    assert found["alarm_after"] == queen.load("bundle").report["alarm_after"]
    assert list(found["alarm_after"]) == ["0:1", "1:1", "3:1", "10:1"]
    assert set(found["alarm_after"]["0:1"]) == {"median", "p95", "caught"}
    plain = found["alarm_after"]["0:1"]
    said = " ".join(run("certify", "bundle").stdout.split())
    assert f"by simulation with noise: plain foreign queries: caught after {plain['median']}" in said


def test_certify_prints_the_account_and_claims_no_number(desk):
    assert "calibration 1 of a new ledger: alpha 0.00061 (delta 0.05)" in " ".join(
        run("certify", "bundle").stdout.split()
    )
    old = queen.load("bundle").bundle.test
    with closing(open_ledger("ledger.sqlite")) as ledger:
        for number in (1, 2):
            ledger.number_of(queen.calibrate(fitted(), X[: 100 * number], progress=False).bundle.test)
    found = as_json("certify", "bundle", "--ledger", "ledger.sqlite")
    assert found["account"] == {
        "name": "",
        "number": 3,
        "alpha": pytest.approx(6.755e-5, rel=1e-3),
        "delta": 0.05,
        "ledger": "ledger.sqlite",
    }
    shown = " ".join(run("certify", "bundle", "--ledger", "ledger.sqlite").stdout.split())
    assert "calibration 3 of this ledger: alpha 6.8e-05 (delta 0.05)" in shown
    assert found["alarm_after"]["0:1"]["median"] > as_json("certify", "bundle")["alarm_after"]["0:1"]["median"]
    with closing(open_ledger("ledger.sqlite")) as ledger:
        assert ledger.number_of(old) == 3  # nobody had claimed it


def test_starting_over_begins_a_new_account(desk):
    report = as_json("calibrate", "bundle", "--data", "held_out.npy", "--start-over")
    assert "The account was started over" in report["statement"]
    account = as_json("certify", "bundle")["account"]
    assert account["name"] == queen.load("bundle").bundle.calibration.account != ""
    assert account["number"] == 1


def test_a_weak_sentinel_does_not_overwrite_the_bundle_unless_asked(desk):
    options = ["calibrate", "bundle", "--data", "held_out.npy", "--foreign", "held_out.npy"]
    before = queen.load("bundle").bundle.calibration
    said = mistake(*options)
    assert "got one that catches" in said
    assert "--weak" in said
    assert torch.equal(queen.load("bundle").bundle.calibration.foreign.scores, before.foreign.scores)
    run(*options, "--weak")
    assert queen.load("bundle").bundle.calibration.foreign.name == "your foreign images"


def test_a_folder_of_foreign_images_is_refused_where_their_units_are_unknown(desk, pictures):
    fitted("network").with_options(input_range=(-2.0, 2.0)).save("cnn")
    np.save("images.npy", images(X).numpy())
    said = mistake("calibrate", "cnn", "--data", "images.npy", "--foreign", pictures)
    assert "got training images in -2..2" in said
    assert "pixel_mean and pixel_std" in said


# The same in `queen protect`


def test_protect_takes_the_sentinel_where_there_are_calibration_images(here, tmp_path):
    run(*protect_args("--calibration", "only_x.npz", "--out", tmp_path / "b"))
    assert queen.load(tmp_path / "b").bundle.policy == "sentinel"


def test_protect_without_them_warns(here, tmp_path):
    shown = run(*protect_args("--out", tmp_path / "b")).stderr
    assert "warning: there are no calibration images, so the policy is 'paper'" in " ".join(shown.split())
    result = run(*protect_args("--out", tmp_path / "b"), "--json")
    assert "no calibration images" in result.stderr
    assert queen.load(tmp_path / "b").bundle.policy == "paper"
    assert "no calibration images" not in run(*protect_args("--out", tmp_path / "b", "--policy", "paper")).stderr


def test_protect_refuses_a_weak_sentinel_unless_asked(here, tmp_path):
    options = ["--calibration", "held_out.npz", "--foreign", "train.npz", "--out", tmp_path / "b"]
    assert "got one that catches" in mistake(*protect_args(*options))
    assert not (tmp_path / "b").exists()
    shown = run(*protect_args(*options, "--weak")).stderr
    assert "warning: calibration: expected a sentinel that catches plain foreign queries" in " ".join(shown.split())
    assert queen.load(tmp_path / "b").bundle.policy == "sentinel"


def test_protect_passes_other_warnings_on(here, tmp_path, monkeypatch):
    def protect(*args: object, **options: object) -> queen.Guard:
        warnings.warn("something else is odd", UserWarning, stacklevel=1)
        return real(*args, **options)

    real = queen.protect
    monkeypatch.setattr(queen, "protect", protect)
    with pytest.warns(UserWarning, match="something else is odd"):
        run(*protect_args("--policy", "paper", "--out", tmp_path / "b"))
