"""What a coordinator tells of itself."""

from __future__ import annotations

import numpy as np
import pytest

from replicax.parameter_server.actors.messages import Done
from replicax.parameter_server.scheduling.stats import Queue, StatsRecorder
from tests.clock import Clock

IDLE = Queue(0, 0, 2)


def done(behind=None, versions=None, compute=0.5, pulled=100, pushed=10):
    seconds = {"input": 0.25, "pull": 0.0, "compute": compute, "push": 0.25}
    return Done([np.zeros(1)], versions or {}, behind or {}, seconds, pulled, pushed)


def test_nothing_has_happened():
    stats = StatsRecorder(2, 1).snapshot(IDLE)
    assert (stats.steps, stats.seconds, stats.steps_per_second, stats.mean_staleness) == (0, 0.0, 0.0, 0.0)
    assert stats.scalars()["staleness_max"] == 0.0


def test_steps_times_and_bytes_add_up():
    recorder = StatsRecorder(2, 1, clock := Clock())
    for worker in (0, 0, 1):
        recorder.note(worker, done())
        clock.now += 1
    stats = recorder.snapshot(IDLE)
    assert stats.steps == 3
    assert stats.seconds == 3.0  # from the beginning of the first step, which took one second, to the end of the last
    assert [worker.steps for worker in stats.workers] == [2, 1]
    assert stats.workers[0].seconds == {"input": 0.5, "pull": 0.0, "compute": 1.0, "push": 0.5}
    assert (stats.bytes_pulled, stats.bytes_pushed) == (300, 30)
    assert stats.queue == IDLE


def test_a_rate_counts_the_time_of_the_first_step():
    recorder = StatsRecorder(1, 1, Clock())
    recorder.note(0, done())
    assert recorder.snapshot(IDLE).steps_per_second == pytest.approx(1.0)


def test_rates_are_of_the_last_few_seconds():
    recorder = StatsRecorder(2, 1, clock := Clock())
    for _ in range(100):
        recorder.note(0, done())
        clock.now += 0.1
    assert recorder.snapshot(IDLE).steps_per_second == pytest.approx(10.0, rel=0.1)
    clock.now += 5
    assert recorder.snapshot(IDLE).steps_per_second == pytest.approx(5.0, rel=0.1)
    clock.now += 100
    assert recorder.snapshot(IDLE).steps_per_second == 0.0


def test_staleness_is_that_of_the_oldest_part():
    recorder = StatsRecorder(1, 2)
    for behind in ({0: 1, 1: 3}, {0: 0}, {}, {1: 3}):
        recorder.note(0, done(behind))
    stats = recorder.snapshot(IDLE)
    assert stats.staleness == {0: 1, 3: 2}  # A step that pushes nothing is never behind.
    assert stats.mean_staleness == pytest.approx(2.0)
    assert stats.scalars()["staleness_max"] == 3.0


def test_versions_go_on_and_begin_anew_with_a_new_server():
    recorder = StatsRecorder(1, 2)
    recorder.note(0, done(versions={0: 5, 1: 7}))
    recorder.note(0, done(versions={0: 4}))
    assert recorder.versions == [5, 7]
    recorder.servers_replaced([1])
    assert recorder.versions == [5, 0]
    assert recorder.snapshot(IDLE).server_restarts == 1


def test_figures_by_name():
    recorder = StatsRecorder(2, 1)
    recorder.restarts[1] += 2
    recorder.note(1, done())
    scalars = recorder.snapshot(Queue(7, 1, 2)).scalars()
    assert scalars.keys() == {
        "steps", "steps_per_second", "queue", "staleness_mean", "staleness_max", "bytes_pulled", "bytes_pushed",
        "worker_restarts", "server_restarts", "steps_per_second/worker_0", "steps_per_second/worker_1",
    }  # fmt: skip
    assert scalars["queue"] == 7.0
    assert scalars["worker_restarts"] == 2.0
    assert all(isinstance(value, float) for value in scalars.values())


def test_the_queue_in_words():
    assert str(Queue(3, 2, 1)) == "3 waiting, 2 under way, 1 workers ready"
