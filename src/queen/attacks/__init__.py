"""Those who want the model: how they ask (`QUERIES`), and what they make of the answers (`ATTACKS`)."""

from __future__ import annotations

from collections.abc import Mapping

from queen.attacks.base import Attack, QueryStrategy
from queen.attacks.queries.jbda_tr import jbda_tr
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import averaging, cleaning, ddae, disguise, informed, labels, rotation
from queen.attacks.strategies.pairs import clean_prior, told_prior
from queen.attacks.strategies.pbayes import pbayes
from queen.defenses.base import nearest
from queen.errors import OptionError

QUERIES: Mapping[str, QueryStrategy] = {"knockoff": knockoff, "jbda_tr": jbda_tr}

_KNOCKOFF = ("knockoff",)

ATTACKS: Mapping[str, Attack] = {
    "direct": Attack(),
    "label_only": Attack(believe=labels.top_label),
    "s4l": Attack(learn=rotation.learn_turns, queries=_KNOCKOFF),
    "s4l_average": Attack(ask=averaging.averaged_views, cost=lambda sizes: sizes.views, queries=_KNOCKOFF),
    "smoothing": Attack(
        ask=averaging.smoothing,
        cost=averaging.smoothing_cost,
        overspend=averaging.smoothing_overspend,
        queries=_KNOCKOFF,
    ),
    # Recovery of the clean answers from the defended ones.
    "ddae": Attack(believe=ddae.ddae),
    "ddae_plus": Attack(believe=ddae.ddae_plus(clean_prior), knows=("prior",)),
    "ddae_plus_answers": Attack(believe=ddae.ddae_plus(told_prior)),
    "pbayes": Attack(believe=pbayes(clean_prior), knows=("prior",)),
    "pbayes_answers": Attack(believe=pbayes(told_prior)),
    # Made against our own policies.
    "informed_oracle": Attack(
        believe=informed.informed_oracle, queries=_KNOCKOFF, knows=("prior", "defense"), adaptive=True
    ),
    "informed_proxy": Attack(believe=informed.informed_proxy, queries=_KNOCKOFF, adaptive=True),
    "sanitiser": Attack(believe=cleaning.sanitised, queries=_KNOCKOFF, adaptive=True),
    "emdp_inverse": Attack(believe=cleaning.emdp_undone, queries=_KNOCKOFF, adaptive=True),
    "agreement_filter": Attack(believe=cleaning.agreed, queries=_KNOCKOFF, adaptive=True),
    "drop_after_alarm": Attack(believe=cleaning.honest_only, queries=_KNOCKOFF, knows=("prior",), adaptive=True),
    "repeat_average": Attack(
        ask=averaging.repeated, cost=lambda sizes: sizes.repeats, queries=_KNOCKOFF, adaptive=True
    ),
    "many_accounts": Attack(ask=disguise.in_turn, queries=_KNOCKOFF, adaptive=True),
    "near_record": Attack(
        ask=disguise.near_records, cost=lambda sizes: 1 + sizes.repeats, queries=_KNOCKOFF, adaptive=True
    ),
    "look_alike": Attack(choose=disguise.most_usual, queries=_KNOCKOFF, knows=("benign",), adaptive=True),
    "warm_up": Attack(ask=disguise.after_warm_up, queries=_KNOCKOFF, knows=("benign",), adaptive=True),
    "cover_1": Attack(
        ask=disguise.behind_cover(1), cost=lambda _: 2, queries=_KNOCKOFF, knows=("benign",), adaptive=True
    ),
    "cover_3": Attack(
        ask=disguise.behind_cover(3), cost=lambda _: 4, queries=_KNOCKOFF, knows=("benign",), adaptive=True
    ),
    "cover_10": Attack(
        ask=disguise.behind_cover(10), cost=lambda _: 11, queries=_KNOCKOFF, knows=("benign",), adaptive=True
    ),
    "remap": Attack(ask=disguise.remapped, queries=_KNOCKOFF, knows=("benign",), adaptive=True),
}


def find_attack(name: str) -> Attack:
    """An attack by its name."""
    if name not in ATTACKS:
        raise OptionError(f"no attack '{name}'{nearest(name, ATTACKS)}")
    return ATTACKS[name]


def find_queries(name: str) -> QueryStrategy:
    """A query strategy by its name."""
    if name not in QUERIES:
        raise OptionError(f"no query strategy '{name}'{nearest(name, QUERIES)}")
    return QUERIES[name]
