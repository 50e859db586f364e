"""Who gets the workers of a cluster, and what is said to those who do not."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.job.elsewhere.agent import WorkerAgent
from replicax.job.elsewhere.messages import Client
from replicax.job.elsewhere.worker_actors import PATIENCE, WorkerGroup
from tests.job.processes.fakes import FakeWorkerCluster, RayOfHosts

GONE = Client(socket.gethostname(), 2**22 + 1, 0.0)  # no process has such a number


QUICK = PATIENCE._replace(end=0.5)


def test_a_second_client_is_told_of_the_first(hosts: RayOfHosts):
    cluster = FakeWorkerCluster()
    first = WorkerGroup(cluster)
    assert first.names == ("worker:0 at 127.0.0.1:1000", "worker:1 at 127.0.0.1:1001")
    with pytest.raises(ClusterError, match=rf"in use by another client: process {os.getpid()} on .*, since \d{{4}}-"):
        WorkerGroup(cluster, QUICK)
    assert cluster.taken_by is not None
    first.close()
    assert cluster.taken_by is None
    WorkerGroup(cluster).close()


def test_a_client_that_has_just_ended_is_waited_for(hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch):
    cluster = FakeWorkerCluster(1)
    first = WorkerGroup(cluster)
    monkeypatch.setattr(WorkerAgent, "client", lambda self: GONE)
    timer = threading.Timer(1.5, first.close)
    timer.start()
    begin = time.monotonic()
    WorkerGroup(cluster).close()
    assert time.monotonic() - begin > 1
    timer.join()


def test_no_room_is_said_in_time_and_nothing_stays(hosts: RayOfHosts):
    cluster = FakeWorkerCluster()
    cluster.room = False
    with pytest.raises(ClusterTimeoutError, match=r"The client waited 0.3 s .* worker:1 at .* has no room for them"):
        WorkerGroup(cluster, PATIENCE._replace(start=0.3))
    assert cluster.is_closed
    assert not hosts.hosts


def test_a_host_that_does_not_start_is_named(hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch):
    about = WorkerAgent.about
    monkeypatch.setattr(
        WorkerAgent, "about", lambda self: about(self) if self is hosts.hosts[0] else hosts.kill(hosts.actors[1])
    )
    cluster = FakeWorkerCluster()
    with pytest.raises(ClusterError, match=r"worker:1 at 127.0.0.1:1001 cannot run anything: it is gone"):
        WorkerGroup(cluster, PATIENCE._replace(start=5.0))
    assert cluster.is_closed
    assert cluster.taken_by is None


def test_a_host_that_is_stopped_is_killed_at_the_end(hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch):
    cluster = FakeWorkerCluster()
    group = WorkerGroup(cluster, PATIENCE._replace(end=0.2))
    monkeypatch.setattr("ray.kill", lambda handle: hosts.kill(handle) if handle is hosts.actors[0] else None)
    group.close()
    assert [pid for _, pid in cluster.ended] == [os.getpid()]


def test_who_is_gone():
    assert GONE.is_gone()
    assert not Client.here().is_gone()
    assert not Client("another machine", 2**22 + 1, 0.0).is_gone()
