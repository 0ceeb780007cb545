"""Defenses, one per file: ways to answer clients that make a stolen copy of the model worse.

`DEFENSES` lists the published rivals and QUEEN itself by name; `base` says what a defense is, and `checks` tests
their numbers. Attacks, the benchmark and the demo import this package; it imports the guard, never an attack.
"""

from __future__ import annotations

from collections.abc import Mapping

from queen.defenses import (
    adaptive_misinformation,
    emdp,
    label_only,
    mad,
    modelguard_s,
    modelguard_w,
    none,
    queen,
    queen_artifact,
    reverse_sigmoid,
    rounding,
)
from queen.defenses.base import Defense, Endpoint, MappedEndpoint, Victim, nearest
from queen.defenses.detectors import dadd, mmd, prada, seat
from queen.errors import OptionError

DEFENSES: Mapping[str, Defense] = {
    "none": none.DEFENSE,
    "reverse_sigmoid": reverse_sigmoid.DEFENSE,
    "mad": mad.DEFENSE,
    "adaptive_misinformation": adaptive_misinformation.DEFENSE,
    "label_only": label_only.DEFENSE,
    "rounding": rounding.DEFENSE,
    "emdp": emdp.DEFENSE,
    "modelguard_w": modelguard_w.DEFENSE,
    "modelguard_s": modelguard_s.DEFENSE,
    "prada": prada.DEFENSE,
    "seat": seat.DEFENSE,
    "d_add": dadd.DEFENSE,
    "mmd": mmd.DEFENSE,
    "queen": queen.DEFENSES["queen"],
    "queen-strict": queen.DEFENSES["queen-strict"],
    "queen-artifact": queen_artifact.DEFENSE,
    "queen-sentinel": queen.DEFENSES["queen-sentinel"],
}


def find_defense(name: str) -> Defense:
    """The defense of this name."""
    if name not in DEFENSES:
        raise OptionError(f"no defense '{name}'{nearest(name, DEFENSES)}")
    return DEFENSES[name]


__all__ = ["DEFENSES", "Defense", "Endpoint", "MappedEndpoint", "Victim", "find_defense"]
