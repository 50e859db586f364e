"""Agents that wait for a machine with room, without Ray. Their workers' processes are real."""

from __future__ import annotations

import contextlib
import io
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from replicax.errors import ClusterTimeoutError
from replicax.job.elsewhere.remote_process import RemoteProcess
from replicax.job.elsewhere.worker_actors import PATIENCE, AgentPool, Job
from replicax.job.processes.call import Call, payload_of
from replicax.job.processes.events import Event, Events, ProcessEnded, Started
from replicax.job.processes.output import NoLog, Stream
from replicax.job.processes.processes import Outlets
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal
from tests.job.processes.fakes import FakeWorkerCluster, RayOfHosts

pytestmark = pytest.mark.multiprocess
LIMIT_S = 60.0
QUICK = PATIENCE._replace(start=0.5, end=0.3, again=0.1)


class Pool:
    """A pool for three workers, and what its processes tell."""

    def __init__(self, fewest: int, wanted: int):
        self.pool = AgentPool(FakeWorkerCluster(3), fewest, wanted, QUICK)
        self.pool.begin(Job(payload=payload_of(Call(int))), "0" * 32)
        self.events = Events[Event]()
        terminal = Terminal(io.StringIO(), io.StringIO())
        self._streams = Stream(terminal, "worker", 0, False), Stream(terminal, "worker", 0, True)

    def start(self, index: int) -> RemoteProcess:
        task = PlannedTask("worker", index, None, {})
        return self.pool.start(task, 0, Outlets(self._streams, NoLog()), self.events)

    def next(self, kind: type) -> Any:
        """Waits for the next event of a kind."""
        while True:
            found = self.events.get(timeout=LIMIT_S)
            if isinstance(found, kind):
                return found


@pytest.fixture
def room(hosts: RayOfHosts) -> threading.Semaphore:
    """Room for one worker; `release` makes more."""
    hosts.room = threading.Semaphore(1)
    return hosts.room


@contextlib.contextmanager
def pool_of(fewest: int, wanted: int) -> Iterator[Pool]:
    made = Pool(fewest, wanted)
    with contextlib.closing(made.pool):
        yield made


def test_it_begins_when_those_that_are_wanted_have_room(room: threading.Semaphore):
    room.release(2)
    with pool_of(1, 3) as made:
        assert made.pool.placed == 3


def test_it_begins_with_the_fewest_when_no_more_find_room(room: threading.Semaphore):
    with pool_of(1, 3) as made:
        assert made.pool.placed == 1
        first, second = made.start(0), made.start(1)
        assert made.next(Started).process is first
        assert made.next(ProcessEnded).process is first
        assert (first.tidy_up(), first.waits, second.waits) == (0, False, True)
        assert second.pid == 0
        room.release()
        room.release()
        assert made.next(Started).process is second
        assert made.next(ProcessEnded).process is second
        assert second.pid > 0


def test_fewer_than_the_fewest_are_an_error_that_names_them(room: threading.Semaphore, hosts: RayOfHosts):
    with pytest.raises(ClusterTimeoutError, match=r"worker:0 .*worker:1 .*: the cluster has no room") as raised:
        Pool(2, 3)
    assert "worker:2" not in str(raised.value)
    assert all(actor.actor.is_dead for actor in hosts.actors)


@pytest.mark.parametrize("end", [lambda it: it.send(signal.SIGTERM), lambda it: it.kill()])
def test_one_that_waits_is_ended_at_once_and_the_next_one_waits_anew(room: threading.Semaphore, end: Any):
    with pool_of(1, 3) as made:
        before = made.start(2)
        end(before)
        assert made.next(ProcessEnded).process is before
        assert before.tidy_up() in (-signal.SIGTERM, -signal.SIGKILL)
        after = made.start(2)
        assert after.waits
        with pytest.raises(queue.Empty):
            made.events.get(timeout=0.2)


def test_a_machine_that_is_to_go_gets_no_more_processes(hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch):
    with pool_of(3, 3) as made:
        made.pool._agents[1].is_spent = True
        made.start(1)
        made.next(ProcessEnded)
        assert len(hosts.actors) == 4
        made.start(1)
        made.next(ProcessEnded)
        assert len(hosts.actors) == 4
