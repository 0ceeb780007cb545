from __future__ import annotations

import pytest

from queen.sentinel import power


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch):
    """Thieves are followed for 60 queries instead of 5,000; tests/sentinel/test_power.py follows them further."""
    monkeypatch.setattr(power, "LONGEST", 60)
