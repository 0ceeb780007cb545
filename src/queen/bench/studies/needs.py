"""What a study needs of the benchmark spec it is based on, checked before a victim is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queen.attacks import find_attack
from queen.bench.parsing import SpecError
from queen.bench.run import check_needs
from queen.bench.spec import Spec
from queen.defenses import DEFENSES
from queen.defenses.base import nearest
from queen.errors import OptionError

FOREIGN, OWN_KIND = "foreign", "own_kind"
POOLS = (FOREIGN, OWN_KIND)
QUERY = "knockoff"  # how attackers ask in every study


@dataclass(frozen=True, kw_only=True)
class StudyNeeds:
    """The defenses, attacks and pools that a study uses."""

    defenses: Sequence[str] = ("none",)
    attacks: Sequence[str] = ("direct",)
    pools: Sequence[str] = (FOREIGN,)


def check_base(spec: Spec, needs: StudyNeeds) -> None:
    """Refuse a base spec that the study cannot use, and names that nobody knows."""
    for pool in needs.pools:
        check_pool(spec, pool)
    for attack in needs.attacks:
        if QUERY not in find_attack(attack).queries:
            raise OptionError(f"attack '{attack}' does not go with the queries '{QUERY}', which studies use")
        for defense in needs.defenses:
            check_needs(spec.protectee, defense, find_method(spec, defense), attack)


def find_method(spec: Spec, defense: str) -> str:
    """The method behind a column of the spec, or behind the name of any other defense."""
    method = str(spec.defenses.get(defense, {}).get("defense", defense))
    if method not in DEFENSES:
        raise OptionError(f"no defense '{defense}'{nearest(defense, {**spec.defenses, **DEFENSES})}")
    return method


def check_pool(spec: Spec, pool: str) -> None:
    """Refuse a pool that nobody knows, or that the spec sets no images aside for."""
    if pool not in POOLS:
        raise OptionError(f"no pool '{pool}'{nearest(pool, dict.fromkeys(POOLS))}")
    if pool == OWN_KIND and not spec.protectee.benign:
        raise SpecError("this study needs images of the victim's own kind: say protectee: benign: 600 in the spec")
