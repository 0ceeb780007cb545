"""A secret that was used is not replaced without a word: ledgers remember it, and who lost it is told the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import queen
from queen.errors import BindingError, ProtectionWarning, SecretError
from queen.ledger import Ledger, MemoryLedger, SqliteLedger
from queen.secret import new_secret, remember_secret, secret_path, write_secret
from queen.serve.load import load_guard
from queen.serve.settings import Settings
from tests.support.commands import mistake, run
from tests.support.guards import fitted, queries
from tests.support.server import run_queen
from tests.support.serving import retrained_bundle


@pytest.fixture
def bundle(tmp_path) -> Path:
    fitted(policy="strict").save(tmp_path / "bundle")
    return tmp_path / "bundle"


def used(bundle: Path) -> Ledger:
    """A ledger that the bundle was used with, and a client has asked."""
    ledger = MemoryLedger()
    queen.load(bundle, ledger=ledger).answer(queries()[:3], client="alice")
    return ledger


def test_a_lost_secret_is_refused_where_the_ledger_has_been_used(bundle):
    ledger = used(bundle)
    secret_path(bundle).unlink()
    with pytest.raises(SecretError, match=r"no secret '.*bundle\.secret'.*Put back the file.*--new-secret"):
        queen.load(bundle, ledger=ledger)
    assert not secret_path(bundle).exists()  # so nothing was made by the way
    with pytest.warns(ProtectionWarning, match="made a secret"):
        accepted = queen.load(bundle, ledger=ledger, new_secret=True)
    again = queen.load(bundle, ledger=ledger)  # from now on it is the ledger's
    assert torch.equal(*(one.fresh().answer(queries(), client="a").probabilities for one in (accepted, again)))


def test_so_is_one_of_a_ledger_that_remembers_no_secret_yet(bundle):
    ledger = MemoryLedger()
    queen.Guard(fitted(policy="strict").bundle, ledger=ledger).answer(queries()[:1], client="alice")
    secret_path(bundle).unlink()
    with pytest.raises(SecretError, match="this ledger was used"):
        queen.load(bundle, ledger=ledger)


def test_a_first_start_makes_one_and_says_so(bundle):
    secret_path(bundle).unlink()
    with pytest.warns(ProtectionWarning, match=r"made a secret for this bundle, '.*bundle\.secret'"):
        queen.load(bundle, ledger=MemoryLedger())
    queen.load(bundle, ledger=MemoryLedger())


def test_another_secret_of_the_same_bundle_is_refused(bundle):
    ledger, right = used(bundle), secret_path(bundle).read_text()
    write_secret(secret_path(bundle), new_secret())
    with pytest.raises(SecretError, match="not the one that this ledger was used with"):
        queen.load(bundle, ledger=ledger)
    with pytest.raises(SecretError):
        queen.load(bundle, ledger=ledger, secret=new_secret())
    secret_path(bundle).write_text(right)
    queen.load(bundle, ledger=ledger)


def test_another_bundle_has_its_own_secret(bundle):
    ledger = used(bundle)
    for identity in ("a" * 64, "b" * 64):
        remember_secret(ledger, identity, np.random.default_rng(0).bytes(32))
    for identity in ("a" * 64, "b" * 64):
        with pytest.raises(SecretError):
            remember_secret(ledger, identity, np.random.default_rng(1).bytes(32))


def test_another_bundle_that_is_refused_leaves_nothing_in_the_ledger(bundle):
    ledger, other = used(bundle), retrained_bundle()
    before = dict(ledger._facts)
    for options in ({}, {"new_secret": True}):
        with pytest.raises(BindingError):
            queen.load(other, ledger=ledger, policy="strict", **options).bind()
    load_guard(Settings(bundle=other, policy="none"), ledger=ledger)  # which asks the ledger nothing
    assert ledger._facts == before
    write_secret(secret_path(bundle), new_secret())
    with pytest.raises(SecretError, match="not the one that this ledger was used with"):
        queen.load(bundle, ledger=ledger)


def test_the_ledger_does_not_hold_the_secret(bundle, tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    queen.load(bundle, ledger=ledger).answer(queries()[:1], client="alice")
    ledger.close()
    secret = secret_path(bundle).read_text().strip()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.sqlite*"))
    assert b"secret" in stored
    for part in (secret, secret[:32], secret[32:]):
        assert part.encode() not in stored
        assert bytes.fromhex(part) not in stored


def test_the_command_line_asks_for_the_lost_secret_too(bundle, tmp_path):
    np.save(tmp_path / "x.npy", queries()[:2].numpy())
    run("ask", bundle, tmp_path / "x.npy", "--ledger", tmp_path / "c.sqlite")
    secret_path(bundle).unlink()
    assert "no secret" in mistake("ask", bundle, tmp_path / "x.npy", "--ledger", tmp_path / "c.sqlite")
    served = run_queen("serve", str(bundle), "--ledger", f"sqlite:///{tmp_path}/c.sqlite", "--home", str(tmp_path))
    assert served.returncode == 2
    assert "--new-secret" in served.stderr
