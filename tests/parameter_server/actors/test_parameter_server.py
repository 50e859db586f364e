"""A parameter server, called directly."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from replicax.parameter_server.actors.parameter_server import ParameterServer, settings_for, take_over
from tests.parameter_server.fakes import FakeCluster
from tests.parameter_server.programs import COUNT, OTHER, W, descent, values

ONES = np.ones(4, np.float32)


@pytest.fixture
def server():
    platforms = jax.config.jax_platforms
    server = ParameterServer({})
    server.load(descent())
    server.put(values())
    yield server
    jax.config.update("jax_platforms", platforms)


def push(server, step, gradient=ONES, pulled=1, wanted=None):
    return server.push(0, step, pulled, [gradient], wanted)


def read(server, shard):
    return np.array(server.get([shard]).values[shard])


def test_pushes_are_applied(server):
    assert push(server, 7).version == 2
    assert push(server, 8, 2 * ONES).version == 3
    np.testing.assert_array_equal(read(server, W), -0.5 * ONES)
    assert read(server, COUNT) == 2
    assert read(server, OTHER) == 0.5


def test_a_step_is_applied_once_however_often_it_is_tried(server):
    assert not push(server, 7).repeated
    again = push(server, 7, wanted=(W,))
    assert again.repeated
    assert again.version == 2
    np.testing.assert_array_equal(again.values[W], 0.5 * ONES)
    assert read(server, COUNT) == 1


def test_after_a_recovery_steps_count_again_and_what_comes_late_does_not(server):
    push(server, 7)
    server.begin_era(1)
    server.put(values())  # those of the checkpoint
    late = push(server, 8)
    assert late.is_stale
    assert read(server, COUNT) == 0
    again = server.push(0, 7, 3, [ONES], None, 1)
    assert not again.repeated
    assert read(server, COUNT) == 1


def test_a_push_is_answered_with_the_variables_for_the_next_step(server):
    reply = push(server, 0, wanted=(W, OTHER))
    assert reply.values.keys() == {W, OTHER}
    np.testing.assert_array_equal(reply.values[W], 0.5 * ONES)
    assert reply.nbytes == 16 + 4
    assert push(server, 1).values is None


def test_what_was_sent_out_does_not_change_any_more(server):
    before = server.get([W]).values[W]
    push(server, 0)
    np.testing.assert_array_equal(before, ONES)


def test_what_a_worker_has_already_is_not_sent_again(server):
    assert server.get([W], known=0).values is not None
    reply = server.get([W], known=1)
    assert (reply.version, reply.values, reply.nbytes) == (1, None, 0)


def test_rows_are_looked_up(server):
    server.put({OTHER: np.arange(12, dtype=np.float32).reshape(6, 2)})
    reply = server.get([], known=2, rows=[(OTHER, np.array([4, 1]))])
    assert reply.values is None
    np.testing.assert_array_equal(reply.rows[0], [[8, 9], [2, 3]])


def test_a_push_is_behind_by_the_steps_since_the_pull(server):
    assert [push(server, i).behind for i in range(3)] == [0, 1, 2]
    assert push(server, 3, pulled=4).behind == 0


def test_what_the_coordinator_assigns_makes_no_push_older(server):
    push(server, 0)
    server.put({OTHER: np.float32(0.25)})
    server.put({OTHER: np.float32(0.25)})
    push(server, 1, pulled=4)
    assert push(server, 2, pulled=1).behind == 2
    assert server.get([], known=0).version == 6


def test_values_can_be_replaced_by_other_ones(server):
    server.put({W: 5 * ONES})
    np.testing.assert_array_equal(read(server, W), 5 * ONES)
    assert read(server, COUNT) == 0


def test_what_was_put_belongs_to_the_server(server):
    mine = ONES.copy()
    server.put({W: mine})
    mine[:] = 9
    np.testing.assert_array_equal(read(server, W), ONES)


@pytest.mark.parametrize("mistake", ["a missing variable", "another shape"])
def test_a_push_that_fails_leaves_the_variables_alone(server, mistake):
    if mistake == "a missing variable":
        server = ParameterServer({})
        server.load(descent())
        server.put({shard: value for shard, value in values().items() if shard != OTHER})
    with pytest.raises((KeyError, TypeError, ValueError)):
        push(server, 0, ONES if mistake == "a missing variable" else np.ones(3, np.float32))
    np.testing.assert_array_equal(read(server, W), ONES)


def test_settings_of_jax_travel():
    settings = settings_for(FakeCluster(1, 1))
    assert settings["jax_enable_x64"] is False
    take_over(settings)
    assert settings_for(FakeCluster(1, 1)) == settings
