"""How the workers of an elastic job agree where to stop."""

import threading
import types

import pytest

from replicax.checkpoint.elastic_stop import ElasticStop
from replicax.contracts.worlds import Incarnation
from replicax.errors import CheckpointError
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.preemption import Preemption
from tests.group.membership.fakes import MemoryStore

LIMIT_S = 20.0


class Job:
    """Some workers in threads of this process."""

    def __init__(self, count):
        self.job_store = JobStore(MemoryStore())
        self.incarnations = tuple(Incarnation(index, 0) for index in range(count))
        self.members, self.stops, self.left = [], [], []
        for incarnation in self.incarnations:
            member = types.SimpleNamespace(
                incarnations=self.incarnations,
                incarnation=incarnation,
                calls=0,
                may_leave=True,
                leave_soon=self.left.append,
            )
            self.members.append(member)
            self.stops.append(ElasticStop(member, Preemption(self.job_store, member), timeout_s=2.0))

    def step(self, index):
        """Lets a worker make a call, and check; returns whether it stops."""
        self.members[index].calls += 1
        return self.stops[index].check()

    def close(self):
        for stop in self.stops:
            stop.close()
            stop._preemption.stop()


@pytest.fixture
def job():
    made = []

    def make(count):
        made.append(Job(count))
        return made[0]

    yield make
    for each in made:
        each.close()


def wait_until(condition):
    event, deadline = threading.Event(), LIMIT_S
    while not condition():
        event.wait(0.01)
        deadline -= 0.01
        assert deadline > 0, "waited in vain"


def test_nothing_stops_while_nobody_ends_the_job(job):
    found = job(2)
    assert not any(found.step(index) for _ in range(5) for index in (0, 1))


def test_one_that_is_preempted_leaves_alone(job):
    found = job(2)
    found.stops[0].preempt()
    wait_until(lambda: found.left)
    assert found.left == ["preempted"]
    assert not found.step(0)
    assert not found.step(1)


def test_all_stop_after_the_same_call_when_the_launcher_ends_them(job):
    found = job(3)
    for index, steps in enumerate((4, 3, 4)):  # Worker 1 has not passed its fourth check yet.
        for _ in range(steps):
            assert not found.step(index)
    found.job_store.tell_ending()
    wait_until(lambda: len(found.job_store.passed()) == 3)
    assert not found.step(1)
    assert [found.step(index) for index in range(3)] == [True] * 3
    assert {member.calls for member in found.members} == {5}


def test_who_is_lost_meanwhile_does_not_count(job):
    found = job(1)
    found.members[0].incarnations = (*found.incarnations, Incarnation(1, 0))
    found.job_store.end(Incarnation(1, 0))
    found.job_store.tell_ending()
    wait_until(lambda: found.stops[0]._agreed.is_set())
    assert found.step(0)


def test_who_says_nothing_is_named(job):
    found = job(1)
    found.members[0].incarnations = (*found.incarnations, Incarnation(1, 0))
    found.job_store.tell_ending()
    wait_until(lambda: found.stops[0]._agreed.is_set())
    with pytest.raises(CheckpointError, match="nothing was heard of worker 1"):
        found.step(0)


def test_a_function_may_tell_of_the_preemption(job):
    found = job(1)
    member = found.members[0]
    stop = ElasticStop(member, found.stops[0]._preemption, is_preempted=lambda: True)
    try:
        wait_until(lambda: found.left)
    finally:
        stop.close()
