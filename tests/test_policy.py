import numpy as np
import pytest

from queen.ledger import Judgement
from queen.policy import POLICIES, Action, find_policy
from queen.types import PolicyError

# method.md section 3, copied by hand: letter -> (while the class is open, once it is spent).
TABLES = {
    "paper": {"A": "MOVE MOVE", "B": "REVERSE REVERSE", "C": "HONEST HONEST", "D": "HONEST HONEST"},
    "strict": {"A": "MOVE REVERSE", "B": "REVERSE REVERSE", "C": "HONEST HONEST", "D": "HONEST REVERSE"},
    "artifact": {"A": "MOVE MOVE", "B": "REVERSE REVERSE", "C": "MOVE MOVE", "D": "MOVE MOVE"},
}


def test_the_policies_are_those_of_the_tables():
    assert set(POLICIES) == set(TABLES)


@pytest.mark.parametrize("spent", [False, True], ids=["open", "spent"])
@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize("name", TABLES)
def test_each_verdict_gets_the_answer_of_the_table(name, letter, spent):
    action = find_policy(name).actions(Judgement(letter, np.array([spent])))
    assert Action(action[0]).name == TABLES[name][letter].split()[spent]


@pytest.mark.parametrize("name", TABLES)
def test_a_batch_is_looked_up_row_by_row(name):
    rng = np.random.default_rng(0)
    letters, spent = "".join(rng.choice(list("ABCD"), 500)), rng.random(500) < 0.5
    actions = find_policy(name).actions(Judgement(letters, spent))
    expected = [TABLES[name][letter].split()[s] for letter, s in zip(letters, spent.tolist(), strict=True)]
    assert [Action(a).name for a in actions] == expected


def test_only_the_artifact_stops_the_walk_early():
    assert {name: policy.max_steps for name, policy in POLICIES.items()} == {
        "paper": None,
        "strict": None,
        "artifact": 20,
    }


@pytest.mark.parametrize("name", ["quen", "", "PAPER", None, 5])
def test_an_unknown_policy_is_named_and_the_known_ones_listed(name):
    with pytest.raises(PolicyError, match=f"'{name}'.*paper, strict, artifact"):
        find_policy(name)
