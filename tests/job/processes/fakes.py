"""Clusters for clients in this process: hosts are threads here, and their workers' processes are real."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from replicax.cluster import Task
from replicax.job.elsewhere.agent import WorkerAgent
from replicax.ray_cluster.workers import Place
from tests.parameter_server import fakes

IP = "127.0.0.1"


class FakeReservation:
    """The places of all workers; one client at a time has them."""

    def __init__(self, cluster: FakeWorkerCluster):
        self.cluster = cluster

    def is_ready(self, seconds: float) -> bool:
        del seconds
        if not self.cluster.room:
            return False
        if self.cluster.taken_by in (None, self):
            self.cluster.taken_by = self
        return self.cluster.taken_by is self

    def options(self, number: int) -> dict[str, object]:
        del number
        return {}

    def give_back(self) -> None:
        if self.cluster.taken_by is self:
            self.cluster.taken_by = None


class FakeWorkerCluster:
    """A cluster of servers."""

    is_of_servers = True

    def __init__(self, workers: int = 2, chief: bool = False):
        tasks = [Task("chief", 0)] * chief + [Task("worker", index) for index in range(workers - chief)]
        self.places = tuple(Place(task, f"{task} at {IP}:{1000 + i}", {}) for i, task in enumerate(tasks))
        self.taken_by: FakeReservation | None = None
        self.room, self.ended, self.is_closed = True, [], False
        self.lost: str | None = None

    def reserve(self) -> FakeReservation:
        return FakeReservation(self)

    def options(self, number: int) -> dict[str, object]:
        del number
        return {}

    def lost_head(self) -> str | None:
        return self.lost

    def end_process(self, node_id: str, pid: int) -> None:
        self.ended.append((node_id, pid))

    def close(self) -> None:
        self.is_closed = True


class RayOfHosts:
    """What of Ray the hosts of workers and their client use.

    Attributes:
        hosts: The hosts, in the order of their making.
        named: Actors by name.
        room: How many more actors find a place; None for all that come.
    """

    def __init__(self) -> None:
        self.room: threading.Semaphore | None = None
        self.hosts: list[WorkerAgent] = []
        self.actors: list[fakes.Handle] = []
        self.named: dict[str, fakes.Handle] = {}

    def remote(self, cls: type) -> Any:
        outer = self

        class Kept(cls):  # type: ignore[valid-type, misc]
            def __init__(self, *args: Any):
                if outer.room is not None:
                    outer.room.acquire()
                super().__init__(*args)
                outer.hosts.append(self)

        class Class(fakes._Class):
            def options(self, **options: Any) -> Class:
                made = Class(Kept, {}, **options)
                return made

            def remote(self, *args: Any) -> fakes.Handle:
                handle = super().remote(*args)
                if outer.room is None:
                    handle.actor._self.result()
                outer.actors.append(handle)
                if "name" in self._options:
                    outer.named[self._options["name"]] = handle
                return handle

        return Class(Kept, {})

    def get_actor(self, name: str, namespace: str) -> fakes.Handle:
        del namespace
        if name not in self.named:
            raise ValueError(name)
        return self.named[name]

    def kill(self, handle: fakes.Handle) -> None:
        """Ends an actor as the end of its process would: with the worker's process."""
        handle.actor.kill()
        self.named = {name: other for name, other in self.named.items() if other is not handle}
        made = handle.actor._self
        if made.done() and made.exception() is None:
            made.result().kill()


@contextlib.contextmanager
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayOfHosts]:
    """Lets hosts live in this process; their workers' processes end with the block."""
    with fakes.fake_ray(monkeypatch):
        cluster = RayOfHosts()
        monkeypatch.setattr(ray, "remote", cluster.remote)
        monkeypatch.setattr(ray, "kill", cluster.kill)
        monkeypatch.setattr(ray, "get_actor", cluster.get_actor)
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: IP)
        try:
            yield cluster
        finally:
            if cluster.room is not None:
                cluster.room.release(len(cluster.actors))
                for actor in cluster.actors:
                    actor.actor._self.result()
            for host in cluster.hosts:
                host.close()
