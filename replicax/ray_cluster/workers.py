"""Clusters of workers that train in step for this process: where the actor of each worker goes."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from replicax.checks import is_int
from replicax.cluster import ClusterSpec, Task
from replicax.cluster.own_address import own_ip
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.ray_cluster.actor_placement import alive_resources, gpu_share, gpus_of
from replicax.ray_cluster.attaching import attach, attach_to_tasks
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import PATIENCE, Deadline
from replicax.ray_cluster.ending_actors import end_process
from replicax.ray_cluster.head import Head
from replicax.ray_cluster.tasks import (
    CLIENT,
    ROOM,
    WORKER,
    check_workers,
    describe,
    head_address,
    head_task,
    resource_name,
    serving_tasks,
)

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_TRACE = 0.001
_AUTO = "auto"


class Place(NamedTuple):
    """The place that a worker has in a cluster."""

    task: Task
    name: str  # in messages, such as `"worker:1 at host1:2222"`
    bundle: dict[str, float]  # the resources that are reserved for it


class WorkerCluster:
    """A Ray cluster that this process is connected with, and the workers that it may place there, the chief first."""

    def __init__(
        self, places: list[Place], head: Head | None, ending: contextlib.ExitStack, address: str | None = None
    ):
        self.places, self.head, self._ending = tuple(places), head, ending
        self._address = address  # of the cluster, as the user has told it; None if that of the head is known
        self.is_of_servers = head is not None  # Each worker has a server of its own, which serves one client at a time.

    def lost_head(self) -> str | None:
        """Returns the name of the server with Ray's head if nobody listens there any more, at two looks; else None."""
        return self.head.name if self.head is not None and self.head.is_gone() else None

    def own_ip(self, timeout_s: float) -> str:
        """Returns the address of this machine at which the workers reach it; names may take `timeout_s` to resolve."""
        import ray

        if self.head is not None:
            there = self.head.address
        elif ray.util.client.ray.is_connected():
            told = self._address if self._address != _AUTO else os.environ.get("RAY_ADDRESS")
            there = str(told).removeprefix("ray://")
        else:
            there = ray.get_runtime_context().gcs_address
        return own_ip("This launcher", "", [there], timeout_s)

    def options(self, number: int) -> dict[str, object]:
        """Returns the keyword arguments for `ActorClass.options` of an actor that waits, alone, for room for a worker.

        Ray finds it a place as soon as some machine has room, also one that joins later.
        """
        bundle = self.places[number].bundle
        own = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "resources": own,
            "scheduling_strategy": "SPREAD",
        }

    def reserve(self) -> Reservation:
        """Asks for the places of all workers at once; `Reservation.is_ready` says when they are there."""
        import ray

        bundles = [place.bundle for place in self.places]
        strategy = "PACK" if self.is_of_servers else "SPREAD"
        return Reservation(ray.util.placement_group(bundles, strategy=strategy), self.places)

    def end_process(self, node_id: str, pid: int) -> None:
        """Kills the process of one of our actors, even if it is stopped. Nothing happens if it has ended already."""
        end_process(node_id, pid)

    def close(self) -> None:
        """Ends the connection, if `connect_workers` has made it."""
        self._ending.close()


class Reservation:
    """The places of all workers in a cluster, taken together or not at all (a placement group of Ray)."""

    def __init__(self, group: PlacementGroup, places: tuple[Place, ...]):
        self._group, self._places = group, places

    def is_ready(self, seconds: float) -> bool:
        """Waits for the places, at most so many seconds; returns whether they are there."""
        return bool(self._group.wait(seconds))

    def options(self, number: int) -> dict[str, object]:
        """Returns the keyword arguments for `ActorClass.options` that put an actor in the place of a worker."""
        import ray

        bundle = self._places[number].bundle
        own = {name: _TRACE for name in bundle if name not in ("CPU", "GPU")}
        there = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=number
        )
        gpus = bundle.get("GPU", 0)
        return {"num_cpus": 0, "num_gpus": gpus, "resources": own, "scheduling_strategy": there}

    def give_back(self) -> None:
        """Lets others have the places. Nothing happens if the cluster does not answer."""
        import ray

        done_within(PATIENCE.silence, lambda: ray.util.remove_placement_group(self._group))


def connect_workers(
    cluster: ClusterSpec | None = None,
    *,
    address: str | None = None,
    workers: int | None = None,
    start_timeout: float = PATIENCE.start,
    most: int | None = None,
) -> WorkerCluster:
    """Connects this process, as a client, with the servers of `cluster`, or with the Ray cluster at `address`.

    If `most` is given, there are as many places for workers that come and go, wherever machines have room.
    """
    deadline = Deadline(start_timeout)
    ray = sys.modules.get("ray")
    # A connection that the user has made by `ray.init` is used, and stays open.
    connected = ray is not None and bool(ray.is_initialized())
    if cluster is not None:
        if address is not None or workers is not None:
            raise ClusterError("remote_cluster", None, "tells all of it", "Leave the number of workers out.")
        check_workers(cluster, "remote_cluster")
        ending = attach_to_tasks(cluster, deadline, connected, CLIENT, waits=most is None)
        head = Head(describe(cluster, head_task(cluster)), head_address(cluster))
        return WorkerCluster(_places_of(cluster) if most is None else _places(most, ROOM, _gpu_if_any()), head, ending)
    count = workers if most is None else most
    if not is_int(count) or count < 1:
        raise ClusterError("workers", count, "must be an int of at least 1", "Say how many workers shall run there.")
    ending = contextlib.ExitStack() if connected or address is None else attach(address, deadline, CLIENT)
    gpus = gpu_share(gpus_of(alive_resources()), int(count)) if most is None else _gpu_if_any()
    return WorkerCluster(_places(int(count), "CPU", gpus), None, ending, address)


def _places_of(spec: ClusterSpec) -> list[Place]:
    nodes = alive_resources()
    found = []
    for task in serving_tasks(spec):
        name = resource_name(task)
        gpus = gpus_of(node for node in nodes if name in node)
        found.append(Place(task, describe(spec, task), {name: 1.0, ROOM: 1.0, **({"GPU": gpus} if gpus else {})}))
    return found


def _places(count: int, resource: str, gpus: float) -> list[Place]:
    """Returns places wherever one of a resource and so many GPUs are free."""
    bundle = {resource: 1.0, **({"GPU": gpus} if gpus else {})}
    return [Place(Task(WORKER, index), f"{WORKER}:{index}", dict(bundle)) for index in range(count)]


def _gpu_if_any() -> float:
    """Returns what a worker that comes and goes gets: one GPU if the cluster has any."""
    return min(1.0, gpus_of(alive_resources()))


def no_room(
    cluster: WorkerCluster, deadline: Deadline, fewest: int | None = None, why: str = ""
) -> ClusterTimeoutError:
    """Returns the error that says that the places of the workers, or of the fewest of them, are not free, or why."""
    wanted = [f"{place.name} (needs {place.bundle})" for place in cluster.places[:fewest]]
    note = f": {why or 'the cluster has no room for them, or something else runs there'}"
    return ClusterTimeoutError("The client", deadline.seconds, wanted, "the Ray cluster", note)
