import numpy as np
import pytest

from queen.errors import PolicyError
from queen.ledger import Judgement
from queen.options import ON_ALARM, ON_SPENT, Sentinel
from queen.policy import POLICIES, Action, find_policy
from tests.reference.policies import TABLES

ALARM_ANSWERS = {"decoy": "DECOY", "reverse": "REVERSE", "label-only": "LABEL", "refuse": "REFUSE"}
SPENT_ANSWERS = {"refuse": "REFUSE", "decoy": "DECOY", "reverse": "REVERSE", "label-only": "LABEL"}


def judged(letters: str, spent: object, alarmed: object = None, trusted: object = None) -> Judgement:
    nobody = np.zeros(len(letters), bool)
    return Judgement(
        letters, np.array(spent), *(nobody if flags is None else np.array(flags) for flags in (alarmed, trusted))
    )


def names(actions: np.ndarray) -> list[str]:
    return [Action(a).name for a in actions]


def test_the_policies_are_those_of_the_tables():
    assert set(POLICIES) == set(TABLES)


@pytest.mark.parametrize("spent", [False, True], ids=["open", "spent"])
@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize("name", TABLES)
def test_each_verdict_gets_the_answer_of_the_table(name, letter, spent):
    assert names(find_policy(name).actions(judged(letter, [spent]))) == [TABLES[name][letter].split()[spent]]


@pytest.mark.parametrize("name", TABLES)
def test_a_batch_is_looked_up_row_by_row(name):
    rng = np.random.default_rng(0)
    letters, spent = "".join(rng.choice(list("ABCD"), 500)), rng.random(500) < 0.5
    actions = find_policy(name).actions(judged(letters, spent))
    expected = [TABLES[name][letter].split()[s] for letter, s in zip(letters, spent.tolist(), strict=True)]
    assert names(actions) == expected


def test_every_choice_of_the_sentinel_is_in_these_tables():
    assert {*ALARM_ANSWERS, "observe"} == set(ON_ALARM)
    assert set(SPENT_ANSWERS) == set(ON_SPENT)


def random_judgement() -> Judgement:
    rng = np.random.default_rng(1)
    letters = "".join(rng.choice(list("ABCD"), 500))
    return judged(letters, rng.random(500) < 0.5, rng.random(500) < 0.5, rng.random(500) < 0.2)


@pytest.mark.parametrize("on_spent", ON_SPENT)
@pytest.mark.parametrize("on_alarm", ON_ALARM)
def test_the_sentinel_answers_as_the_operator_chose(on_alarm, on_spent):
    judgement = random_judgement()
    actions = find_policy("sentinel", Sentinel(on_alarm=on_alarm, on_spent=on_spent)).actions(judgement)
    flags = zip(judgement.letters, judgement.spent, judgement.alarmed, judgement.trusted, strict=True)
    expected = []
    for letter, spent, alarmed, trusted in flags:
        if trusted:
            expected.append("HONEST")
        elif alarmed and on_alarm != "observe":
            expected.append(ALARM_ANSWERS[on_alarm])
        else:
            expected.append(SPENT_ANSWERS[on_spent] if spent or letter == "B" else "HONEST")
    assert names(actions) == expected
    assert len(set(expected)) == 2 + (on_alarm != "observe" and ALARM_ANSWERS[on_alarm] != SPENT_ANSWERS[on_spent])


def test_without_settings_the_sentinel_refuses_the_accused_and_the_spent():
    judgement = random_judgement()
    assert names(find_policy("sentinel").actions(judgement)) == names(
        find_policy("sentinel", Sentinel()).actions(judgement)
    )


@pytest.mark.parametrize("on_alarm", [choice for choice in ON_ALARM if choice != "observe"])
def test_of_the_accused_some_are_cut_off_and_some_repeat_an_old_question(on_alarm):
    none, all_ = np.zeros(4, np.bool_), np.ones(4, np.bool_)
    judgement = Judgement(
        "ABCD",
        spent=all_,
        alarmed=np.array([True, True, True, False]),
        trusted=none,
        repeated=np.array([True, False, False, True]),
        cut_off=np.array([False, True, False, True]),
    )
    policy = find_policy("sentinel", Sentinel(on_alarm=on_alarm, on_spent="decoy"))
    assert names(policy.actions(judgement)) == ["HONEST", "REFUSE", ALARM_ANSWERS[on_alarm], "DECOY"]
    assert {*names(policy.actions(judgement))} <= {"HONEST", *(action.name for action in policy.possible)}


def test_who_is_only_observed_is_neither_cut_off_nor_answered_otherwise():
    all_ = np.ones(4, np.bool_)
    judgement = Judgement("AACC", spent=~all_, alarmed=all_, trusted=~all_, repeated=all_, cut_off=all_)
    policy = find_policy("sentinel", Sentinel(on_alarm="observe"))
    assert names(policy.actions(judgement)) == ["HONEST"] * 4
    assert policy.possible == (Action.REFUSE,)  # of the spent


@pytest.mark.parametrize("name", ["paper", "strict", "artifact"])
def test_the_sentinels_settings_do_not_touch_another_policy(name):
    settings = Sentinel(on_alarm="refuse", on_spent="decoy")
    letters, spent = "ABCD" * 2, [False] * 4 + [True] * 4
    accused = judged(letters, spent, [True] * 8)
    expected = [TABLES[name][letter].split()[s] for letter, s in zip(letters, spent, strict=True)]
    assert names(find_policy(name, settings).actions(accused)) == expected


@pytest.mark.parametrize("name", TABLES)
def test_whoever_is_on_the_allow_list_gets_the_truth_under_every_policy(name):
    judgement = judged("ABCD" * 2, [False] * 4 + [True] * 4, [True] * 8, [True] * 8)
    assert names(find_policy(name).actions(judgement)) == ["HONEST"] * 8


def test_looking_up_changes_neither_the_policy_nor_the_judgement():
    judgement, policy = random_judgement(), find_policy("sentinel", Sentinel(on_alarm="reverse"))
    before = [judgement.spent.copy(), judgement.alarmed.copy(), judgement.trusted.copy()]
    first = names(policy.actions(judgement))
    assert names(policy.actions(judgement)) == first
    for flags, old in zip((judgement.spent, judgement.alarmed, judgement.trusted), before, strict=True):
        assert (flags == old).all()
    assert POLICIES["sentinel"].alarmed is Action.REFUSE


def test_only_the_artifact_stops_the_walk_early():
    assert {name: policy.max_steps for name, policy in POLICIES.items()} == {
        "paper": None,
        "strict": None,
        "sentinel": None,
        "artifact": 20,
    }


@pytest.mark.parametrize("name", ["quen", "", "PAPER", None, 5])
def test_an_unknown_policy_is_named_and_the_known_ones_listed(name):
    with pytest.raises(PolicyError, match=f"'{name}'.*paper, strict, sentinel, artifact"):
        find_policy(name)
