"""Attackers, who want a copy of the model: how they pick their queries (`QUERIES`) and what they do then (`ATTACKS`).

`base` says what an attack is, `queries/` and `strategies/` hold the parts, and `art` lets attacks of another library
run against ours. Only the benchmark and the demo import this package; it imports `queen.defenses`, never the other
way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from queen.attacks.base import Attack, QueryStrategy
from queen.attacks.queries.active import active_thief
from queen.attacks.queries.data_free import data_free
from queen.attacks.queries.jbda_tr import jbda_tr
from queen.attacks.queries.knockoff import knockoff
from queen.attacks.strategies import (
    accused,
    averaging,
    cleaning,
    consistency,
    ddae,
    disguise,
    evasion,
    heads,
    informed,
    labels,
    path,
    rotation,
)
from queen.attacks.strategies.pairs import answers_prior, clean_prior
from queen.attacks.strategies.pbayes import pbayes
from queen.defenses.base import nearest
from queen.errors import OptionError

QUERIES: Mapping[str, QueryStrategy] = {
    "knockoff": knockoff,
    "jbda_tr": jbda_tr,
    "active_thief": active_thief,
    "data_free": data_free,
}
ONCE_EACH = ("knockoff", "active_thief")  # query strategies that ask for an image of the pool at most once

_KNOCKOFF = ("knockoff",)
_adaptive = partial(Attack, queries=_KNOCKOFF, adaptive=True)
_path = partial(_adaptive, cost=path.path_cost(lambda sizes: sizes.honest_anchors))
_path_labelled = partial(_adaptive, cost=path.path_cost(lambda sizes: sizes.labelled_anchors), knows=("benign",))

ATTACKS: Mapping[str, Attack] = {
    "direct": Attack(queries=tuple(QUERIES)),
    "label_only": Attack(believe=labels.top_label, queries=tuple(QUERIES)),
    "s4l": Attack(learn=rotation.learn_turns, queries=_KNOCKOFF),
    "s4l_average": Attack(ask=averaging.average_views, cost=lambda sizes: sizes.views, queries=_KNOCKOFF),
    "smoothing": Attack(
        ask=averaging.smooth,
        cost=averaging.smoothing_cost,
        overspend=averaging.smoothing_overspend,
        queries=_KNOCKOFF,
    ),
    # Recovery of the clean answers from the defended ones.
    "ddae": Attack(believe=ddae.ddae),
    "ddae_plus": Attack(believe=ddae.ddae_plus(clean_prior), knows=("prior",)),
    "ddae_plus_answers": Attack(believe=ddae.ddae_plus(answers_prior)),
    "pbayes": Attack(believe=pbayes(clean_prior), knows=("prior",)),
    "pbayes_answers": Attack(believe=pbayes(answers_prior)),
    # Made against our own policies.
    "informed_oracle": _adaptive(believe=pbayes(clean_prior), knows=("prior", "defense")),  # pbayes by an insider
    "informed_proxy": _adaptive(believe=informed.informed_proxy),
    "sanitiser": _adaptive(believe=cleaning.sanitise),
    "emdp_inverse": _adaptive(believe=cleaning.undo_emdp),
    "agreement_filter": _adaptive(believe=cleaning.keep_agreed),
    "drop_after_alarm": _adaptive(believe=cleaning.keep_honest, knows=("prior",)),
    "repeat_average": _adaptive(ask=averaging.repeat, cost=lambda sizes: sizes.repeats),
    "many_accounts": _adaptive(ask=disguise.ask_in_turn),
    "near_record": _adaptive(ask=disguise.ask_near_records, cost=lambda sizes: 1 + sizes.repeats),
    "look_alike": _adaptive(choose=disguise.choose_most_usual, knows=("benign",)),
    "warm_up": _adaptive(ask=disguise.ask_after_warm_up, knows=("benign",)),
    "cover_1": _adaptive(ask=disguise.ask_behind_cover(1), cost=lambda _: 2, knows=("benign",)),
    "cover_3": _adaptive(ask=disguise.ask_behind_cover(3), cost=lambda _: 4, knows=("benign",)),
    "cover_10": _adaptive(ask=disguise.ask_behind_cover(10), cost=lambda _: 11, knows=("benign",)),
    "own_kind": _adaptive(ask=disguise.ask_for_own_kind, knows=("benign",)),
    "drop_after_alarm_own_kind": _adaptive(
        ask=disguise.ask_for_own_kind, believe=cleaning.keep_honest, knows=("prior", "benign")
    ),
    "remap": _adaptive(ask=disguise.ask_and_remap, knows=("benign",)),
    # Made against what the accused get.
    "path": _path(ask=path.ask_along_paths(path.read_gaps)),
    "path_changes": _path(ask=path.ask_along_paths(path.read_changes)),
    "path_labelled": _path_labelled(ask=path.ask_along_paths(path.read_gaps, labelled=True)),
    "path_labelled_changes": _path_labelled(ask=path.ask_along_paths(path.read_changes, labelled=True)),
    "provoked_alarm": _adaptive(ask=accused.ask_when_accused),
    "two_accounts": _adaptive(ask=accused.ask_from_two_accounts, cost=lambda _: 2),
    "two_accounts_differ": _adaptive(ask=accused.ask_where_accounts_differ, cost=lambda _: 2),
    "small_steps": _adaptive(ask=accused.ask_in_small_steps, cost=lambda sizes: sizes.small_steps),
    "label_on_top": _adaptive(ask=accused.vote_on_labels, cost=accused.vote_cost),
    # Making the most of the few honest answers before the alarm.
    "greybox_head": _adaptive(learn=heads.solve_on_victims_encoder, knows=("encoder",)),
    "own_encoder_head": _adaptive(learn=heads.solve_on_own_encoder),
    "few_label": _adaptive(learn=consistency.learn_from_pool),
    "few_label_own_kind": _adaptive(learn=consistency.learn_from_own_kind, knows=("benign",)),
    "evade_score": _adaptive(ask=evasion.ask_usual_to_pool),
    "evade_score_own_kind": _adaptive(ask=evasion.ask_usual_to_own_kind, knows=("benign",)),
}


def find_attack(name: str) -> Attack:
    """The attack of this name."""
    if name not in ATTACKS:
        raise OptionError(f"no attack '{name}'{nearest(name, ATTACKS)}")
    return ATTACKS[name]


def find_queries(name: str) -> QueryStrategy:
    """The query strategy of this name."""
    if name not in QUERIES:
        raise OptionError(f"no query strategy '{name}'{nearest(name, QUERIES)}")
    return QUERIES[name]
