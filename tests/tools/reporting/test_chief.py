"""Who reports."""

import json
from types import SimpleNamespace

import pytest

import replicax.tools.reporting.chief as chief


@pytest.mark.parametrize(
    ("is_taken_in", "index", "expected"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)  # A newcomer is alone in a world of its own.
def test_where_workers_come_and_go(monkeypatch, is_taken_in, index, expected):
    worlds = SimpleNamespace(is_taken_in=is_taken_in, world=SimpleNamespace(index=index))
    monkeypatch.setattr(chief, "running", lambda: worlds)
    assert chief.is_chief() is expected


@pytest.mark.parametrize(
    ("is_taken_in", "incarnation", "expected"), [(True, 0, False), (False, 0, True), (True, 1, True)]
)
def test_newcomers_and_replacements_follow_others(monkeypatch, is_taken_in, incarnation, expected):
    worlds = SimpleNamespace(is_taken_in=is_taken_in, incarnation=SimpleNamespace(number=incarnation))
    monkeypatch.setattr(chief, "running", lambda: worlds)
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
