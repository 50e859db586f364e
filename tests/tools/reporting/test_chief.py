"""Who reports."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

import replicax.contracts.group as groups
import replicax.tools.reporting.chief as chief
from replicax.contracts.group import ALONE, Incarnation, World
from replicax.group.membership.elastic_group import ElasticGroup


def elastic(is_member: bool, index: int, incarnation: int = 0) -> ElasticGroup:
    """Returns the group of a worker, or of a newcomer, which is alone in a world of its own."""
    meeting: Any = SimpleNamespace(index=0, names=("worker:0", "worker:1"), incarnation=Incarnation(0, incarnation))
    made = ElasticGroup(meeting, SimpleNamespace(), 1)
    made._world = World(1 if is_member else ALONE, index, (0, 1), meeting.names)
    return made


@pytest.mark.parametrize(
    ("is_member", "index", "expected"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)  # A newcomer is alone in a world of its own.
def test_where_workers_come_and_go(monkeypatch, is_member, index, expected):
    monkeypatch.setattr(groups, "_present", elastic(is_member, index))
    assert chief.is_chief() is expected


@pytest.mark.parametrize(
    ("is_member", "incarnation", "expected"), [(True, 0, False), (False, 0, True), (True, 1, True)]
)
def test_newcomers_and_replacements_follow_others(monkeypatch, is_member, incarnation, expected):
    monkeypatch.setattr(groups, "_present", elastic(is_member, 0, incarnation))
    assert chief.follows_others() is expected


def test_a_process_alone_follows_nobody():
    assert not chief.follows_others()


@pytest.mark.parametrize(
    ("task", "expected"),
    [(("worker", 0), True), (("worker", 1), False), (("evaluator", 0), True)],
)
def test_as_the_environment_says_before_jax_is_connected(monkeypatch, task, expected):
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    told = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(told))
    assert chief.is_chief() is expected


def test_a_process_alone_is_its_own_chief():
    assert chief.is_chief()
