"""Signs of life."""

import time

import jax
import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.membership.heartbeat import Heartbeat, Watch, doing
from replicax.group.membership.job_store import JobStore
from replicax.runtime.activity import COMPILE, IDLE, Activity
from tests.clock import Clock
from tests.group.membership.fakes import MemoryStore

A, B = Incarnation(0, 0), Incarnation(1, 3)


def test_ages_are_counted_from_the_beginning_of_a_wait():
    clock = Clock(100.0)
    watch = Watch(clock)
    beats = {A: b"7:idle", B: b"9:idle"}
    assert watch.silent([A, B], beats, 10.0, 5.0) == set()
    clock.now += 4
    assert watch.silent([A, B], {**beats, B: b"10:idle"}, 10.0, 5.0) == set()
    clock.now += 3
    assert watch.silent([A, B], {**beats, B: b"11:idle"}, 10.0, 5.0) == {A}
    watch.begin()
    assert watch.silent([A, B], beats, 10.0, 5.0) == set()


def test_a_pulse_alone_is_not_enough():
    clock = Clock(100.0)
    watch = Watch(clock)
    for count in range(12):
        clock.now += 1
        found = watch.silent([A], {A: f"{count}:input 3".encode()}, 10.0, 5.0)
    assert found == {A}


def test_one_that_never_gave_a_sign_is_silent_after_the_same_time():
    clock = Clock(100.0)
    watch = Watch(clock)
    watch.silent([A], {}, 10.0, 5.0)
    clock.now += 6
    assert watch.silent([A], {}, 10.0, 5.0) == {A}


def test_in_slow_phases_the_pulse_is_enough():
    activity = Activity()
    activity.at = (IDLE, 1.0)
    assert doing(1, activity) == doing(2, activity)
    activity.calls += 1
    changed = doing(2, activity)
    activity.at = (COMPILE, 1.0)
    assert len({changed, doing(1, activity), doing(2, activity)}) == 3


def test_a_pulse_beats_until_it_is_stopped():
    job_store = JobStore(MemoryStore())
    heartbeat = Heartbeat(job_store, B)
    first = job_store.beats()
    deadline = time.monotonic() + 20
    while job_store.beats() == first:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    heartbeat.stop()
    assert [*job_store.beats()] == [B]
    last = job_store.beats()
    time.sleep(0.6)
    assert job_store.beats() == last


@pytest.mark.parametrize("error", [MeetingError("cut off"), jax.errors.JaxRuntimeError("INTERNAL: no")])
def test_a_pulse_outlasts_an_outage(error, caplog):
    class CutOff(MemoryStore):
        errors = [error, error]  # noqa: RUF012

        def put(self, key, value):
            if self.errors:
                raise self.errors.pop()
            super().put(key, value)

    job_store = JobStore(CutOff())
    heartbeat = Heartbeat(job_store, B)
    deadline = time.monotonic() + 20
    while not job_store.beats():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    heartbeat.stop()
    assert ("No sign of life" in caplog.text) == (not isinstance(error, MeetingError))
