"""What processes do together, asked of the group: alone, in a fixed job, and in one whose members come and go."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import replicax.contracts.group as groups
from replicax.contracts.group import Group, World, as_arrays, as_messages, current_group
from replicax.errors import WorkersDisagreeError
from replicax.group.fixed_group import FixedGroup


class Pair(Group):
    """A member of a group of two; the other says what it is told to."""

    def __init__(self, says, is_member=True):
        super().__init__()
        self.says, self._is_member, self.adopts = says, is_member, False
        self.attempts = 0

    @property
    def is_member(self):
        return self._is_member

    def attempt(self, call):
        self.attempts += 1
        return call()

    def executed(self, run, outcome_of, adopted, nbytes=0):
        return adopted(outcome_of(run())) if self.adopts else run()

    def messages(self, own):
        return [own, self.says(own)]


def test_a_process_is_a_group_of_one():
    group = current_group()
    assert type(group) is FixedGroup
    assert (group.members, group.number, group.calls) == ((0,), 0, 0)
    assert group.is_member
    assert group.is_chief
    assert not group.may_change
    assert not group.came_later
    assert group.ballot(1.0, None) is None
    assert not group.join()


def test_a_group_that_may_not_change_makes_the_call():
    group, made = Group(), []
    assert group.attempt(lambda: made.append(1)) is None
    assert group.together(lambda: 7, None, None) == 7
    tree = {"x": object()}
    assert group.renewed(tree) is tree
    group.offer(SimpleNamespace())
    assert group.state is None  # Nobody comes who could get it.
    group.boundary()
    assert made == [1]


def test_values_are_exchanged_by_name():
    group = Pair(lambda own: json.dumps({**json.loads(own), "value": [3]}).encode())
    assert group.exchange("the end", [2], before=lambda: None) == [[2], [3]]
    assert Group().exchange("the end", (2,)) == [[2]]
    group.barrier("data")
    assert group.attempts == 2


@pytest.mark.parametrize("other", [b"no JSON", b"[]", json.dumps({"what": "the beginning", "value": 1}).encode()])
def test_who_comes_to_something_else_is_told(other):
    with pytest.raises(WorkersDisagreeError, match=r"process 0.*the end"):
        Pair(lambda own: other).exchange("the end", 1)


def test_one_that_lags_adopts_the_values_of_another():
    group = Pair(lambda own: own)
    group.adopts = True
    assert group.exchange("the end", 5) == [5, 5]


def test_a_newcomer_does_together_with_nobody():
    group = Pair(lambda own: own, is_member=False)
    group.exchange("the end", 5)
    assert group.attempts == 0


def test_messages_are_arrays_and_back():
    sent = [b"", b"abc", bytes(range(256))]
    assert all(array.dtype == np.uint8 for array in as_arrays(sent))
    assert as_messages(as_arrays(sent)) == sent


def test_what_is_installed_is_the_group(monkeypatch):
    monkeypatch.setattr(groups, "_present", None)
    mine = Group()
    groups.install(mine)
    assert current_group() is mine
    assert mine.world == World(0, 0, (0,), ("worker:0",))


def test_a_launcher_names_incarnations_without_jax():
    code = "import sys, replicax.job.supervision.elastic_policy; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
