"""The workers of a client on a cluster: one actor for each, which runs one process after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from replicax.checks.environment_names import LEDGER
from replicax.cluster.addresses import join_address
from replicax.cluster.patience import Patience
from replicax.cluster.signing import new_token
from replicax.errors import ClusterError, RemoteWorkerError
from replicax.job.elsewhere.agent import WorkerAgent
from replicax.job.elsewhere.messages import Client, HostFacts, Order
from replicax.job.elsewhere.remote_process import AgentLostError, RemoteAgent, RemoteProcess
from replicax.job.processes.events import EventSink
from replicax.job.processes.processes import Outlets
from replicax.job.processes.task import PlannedTask, jax_environment
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import Deadline
from replicax.ray_cluster.ending_actors import end_actor
from replicax.ray_cluster.workers import Reservation, WorkerCluster, no_room
from replicax.runtime.threads import StoppedAtEnd

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: How a worker has ended whose server is not there any more, whether that is noticed in a call or before it.
SERVER_LOST = "its server or its host there was lost"
#: How long a client waits for the agents of its workers, and they for it.
PATIENCE = Patience(
    start=120.0,  # for places and actors
    silence=30.0,  # without an answer; then an agent counts as lost
    end=5.0,  # for actors, and for a client that has just ended: Ray has to notice
    again=3.0,
    stall=60.0,  # for a word from the client; then the agent ends its worker
)
_NAMESPACE, _NAME = "replicax", "replicax_worker_0"
_CALLS_AT_A_TIME = 8
_SECONDS_BETWEEN_LOOKS = 0.2


class Job(NamedTuple):
    """The work of all workers of a group."""

    kind: str = "call"  # as in `Program`
    target: str = ""  # the script, relative to its sources if they travel with it, or the module
    arguments: tuple[str, ...] = ()
    payload: bytes | None = None  # the pickled call, or `packed_sources`; None if each machine has the script
    environment: Mapping[str, str] = {}  # on top of each machine's
    devices: int | None = None  # virtual CPU devices in each process; None leaves that to its environment
    # Whether the result of a call is wanted from the worker with this number.
    wanted: Callable[[int], bool] = lambda number: number == 0

    def order(self, task: PlannedTask, arguments: tuple[str, ...], token: str, attempt: int, outlets: Outlets) -> Order:
        """Returns the order to run the process of a worker; it keeps a ledger where its log is kept."""
        keeps = outlets.log.path is not None and self.environment.get(LEDGER) != "0"
        return Order(task, self.kind, self.target, arguments, self.devices, token, attempt, outlets.size, keeps)


class WorkerGroup:
    """One actor for each worker of a cluster, in their places, until it is closed or this process ends in any way."""

    def __init__(self, cluster: WorkerCluster, patience: Patience = PATIENCE):
        self._cluster, self.places, self._patience = cluster, cluster.places, patience
        self._deadline = Deadline(patience.start)
        self._reservation: Reservation | None = None
        self._hosts: list[RemoteAgent] = []
        try:
            self._reservation = self._reserved()
            self._hosts = [self._host(number) for number in range(len(self.places))]
            asked = [host.ask("about") for host in self._hosts]
            for host, ref in zip(self._hosts, asked, strict=True):
                host.facts = self._about(host, ref)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The workers' names, such as `("worker:0 at host1:2222", "worker:1 at host2:2222")`."""
        return tuple(place.name for place in self.places)

    def start(
        self, job: Job, attempt: int, outlets: Callable[[int, PlannedTask], Outlets], events: EventSink
    ) -> Iterator[RemoteProcess]:
        """Starts a job's processes, one after the other, with fresh ports."""
        import ray

        token = new_token()
        ips = [host.facts.ip for host in self._hosts if host.facts is not None]
        asked = [host.ask("reserve_port", ip) for host, ip in zip(self._hosts, ips, strict=True)]
        addresses = []
        for place, host, ip, ref in zip(self.places, self._hosts, ips, asked, strict=True):
            try:
                addresses.append(join_address(ip, cast(int, host.answer(ref))))
            except AgentLostError as error:
                name = f"{place.task.type} {place.task.index}"
                raise RemoteWorkerError(name, SERVER_LOST, f"replicax: {host.name} {error}.") from error
        payload = None if job.payload is None else ray.put(job.payload)
        for number, host in enumerate(self._hosts):
            task = self._task(number, addresses, job)
            given = outlets(number, task)
            of_call = ("result",) if job.wanted(number) else ()
            arguments = of_call if job.kind == "call" else job.arguments
            order = job.order(task, arguments, token, attempt, given)
            yield RemoteProcess(host, order, payload, given, events)

    def _task(self, number: int, addresses: list[str], job: Job) -> PlannedTask:
        cluster: dict[str, list[str]] = {}
        for place, address in zip(self.places, addresses, strict=True):
            cluster.setdefault(place.task.type, []).append(address)
        task = self.places[number].task
        role = {"cluster": cluster, "task": {"type": task.type, "index": task.index}}
        own = {"TF_CONFIG": json.dumps(role), **jax_environment(addresses, number)}
        return PlannedTask(task.type, task.index, None, {**job.environment, **own})

    def close(self) -> None:
        """Ends all processes and actors, gives the places back, and closes the cluster. It takes bounded time."""
        is_lost = _end_all(self._hosts, self._cluster, self._patience)
        self._hosts.clear()
        if self._reservation is not None and not is_lost:
            self._reservation.give_back()
        self._reservation = None
        self._cluster.close()

    # Its start.

    def _left(self) -> float:
        return max(self._deadline.left, 1.0)

    def _reserved(self) -> Reservation:
        """Returns the places of all workers; waits for them, and refuses if another client has them."""
        reservation = self._cluster.reserve()
        seen: float | None = None
        try:
            while not reservation.is_ready(_SECONDS_BETWEEN_LOOKS):
                other = self._other_client()
                if other is None or other.is_gone():
                    seen = None
                elif seen is None:
                    seen = time.monotonic()
                elif time.monotonic() - seen > self._patience.end:
                    raise ClusterError(
                        "The cluster",
                        None,
                        f"is in use by another client: {other}",
                        "Servers train for one client at a time. Wait until it has ended, or end it.",
                    )
                if not self._deadline.left:
                    raise no_room(self._cluster, self._deadline)
        except BaseException:
            reservation.give_back()
            raise
        return reservation

    def _other_client(self) -> Client | None:
        """Returns for whom the first worker's host works; None if there is none, or it does not answer."""
        import ray

        if not self._cluster.is_of_servers:
            return None
        found: list[Client] = []

        def ask() -> None:
            try:
                other = ray.get_actor(_NAME, namespace=_NAMESPACE)
                found.append(cast(Client, ray.get(other.client.remote(), timeout=self._patience.silence)))
            except (ValueError, ray.exceptions.RayError):  # There is none, or it is just ending.
                return

        done_within(self._patience.silence, ask)
        return found[0] if found else None

    def _about(self, host: RemoteAgent, asked: ObjectRef[object]) -> HostFacts:
        try:
            return cast(HostFacts, host.answer(asked, self._left()))
        except AgentLostError as error:
            cure = "Look at its server: is it running, and can this machine reach it?"
            raise ClusterError(host.name, None, f"cannot run anything: it {error}", cure) from error

    def _host(self, number: int) -> RemoteAgent:
        assert self._reservation is not None
        named = {"name": _NAME, "namespace": _NAMESPACE} if number == 0 and self._cluster.is_of_servers else {}
        return _agent(self._cluster, number, {**self._reservation.options(number), **named}, self._patience)


class AgentPool:
    """The agents of workers that come and go, one for each that there may be.

    Ray finds each a place as soon as there is room for it, also on a machine that joins later. An agent whose machine
    is lost, or about to go, has a successor, which waits for room in its turn.
    """

    def __init__(self, cluster: WorkerCluster, fewest: int, wanted: int, patience: Patience = PATIENCE):
        self._cluster, self._patience = cluster, patience
        self.placed = 0  # How many of them had room at the start: those of the first workers.
        self._agents: list[RemoteAgent] = []
        self._payload: ObjectRef[bytes] | None = None
        self._token, self._job = "", Job()
        try:
            self._agents = [self._agent(number) for number in range(len(cluster.places))]
            self._await_room(fewest, wanted)
        except BaseException:
            self.close()
            raise

    def begin(self, job: Job, token: str) -> None:
        """Takes what all workers run, and their secret."""
        import ray

        self._job, self._token = job, token
        self._payload = None if job.payload is None else ray.put(job.payload)

    def start(self, task: PlannedTask, attempt: int, outlets: Outlets, events: EventSink) -> RemoteProcess:
        """Starts a worker's process, at once or when there is room for it."""
        agent, job = self._agents[task.index], self._job
        if agent.is_spent:
            StoppedAtEnd("replicax-end-host", end_actor, agent.actor).start()
            self._agents[task.index] = agent = self._agent(task.index)
        order = job.order(task, job.arguments, self._token, attempt, outlets)
        return RemoteProcess(agent, order, self._payload, outlets, events, waits=True)

    def close(self) -> None:
        """Ends all processes and actors, and closes the cluster. It takes bounded time."""
        _end_all(self._agents, self._cluster, self._patience)
        self._agents.clear()
        self._cluster.close()

    def _agent(self, number: int) -> RemoteAgent:
        return _agent(self._cluster, number, self._cluster.options(number), self._patience)

    def _await_room(self, fewest: int, wanted: int) -> None:
        """Waits for room for the fewest workers, and for as many as are wanted as long as more of them find some."""
        import ray

        deadline, came, why = Deadline(self._patience.start), time.monotonic(), ""
        asked = {agent.ask("about"): agent for agent in self._agents}
        while self.placed < fewest or (self.placed < wanted and time.monotonic() - came < self._patience.end):
            found, _ = ray.wait([*asked], num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
            for ref in found:
                agent, came = asked.pop(ref), time.monotonic()
                try:
                    agent.facts = cast(HostFacts, agent.answer(ref))
                    self.placed += 1
                    continue
                except AgentLostError as error:  # Its machine was lost at once: its successor waits.
                    why = f"{agent.name} {error}"
                time.sleep(min(self._patience.again, deadline.left))
                number = self._agents.index(agent)
                self._agents[number] = successor = self._agent(number)
                asked[successor.ask("about")] = successor
            if self.placed < fewest and not deadline.left:
                raise no_room(self._cluster, deadline, fewest, why)
        self._agents.sort(key=lambda agent: agent.facts is None)
        for agent, place in zip(self._agents, self._cluster.places, strict=True):
            agent.name = place.name


def _agent(cluster: WorkerCluster, number: int, options: Mapping[str, object], patience: Patience) -> RemoteAgent:
    """Returns a new agent, which may have to wait for its place."""
    import ray

    made = ray.remote(WorkerAgent).options(**options, max_concurrency=_CALLS_AT_A_TIME)
    actor: ActorHandle[object] = made.remote(Client.here(), patience.stall)  # type: ignore[assignment]
    return RemoteAgent(actor, cluster.places[number].name, patience, cluster.lost_head)


def _end_all(agents: Sequence[RemoteAgent], cluster: WorkerCluster, patience: Patience) -> bool:
    """Ends agents with their processes; returns whether the head is lost, so that they take no orders."""
    is_lost = bool(agents) and cluster.lost_head() is not None
    for agent in [] if is_lost else agents:
        end_actor(agent.actor)
    for agent in [] if is_lost else agents:
        # A stopped process does not hear Ray.
        if agent.facts is not None and not agent.is_gone(patience.end):
            cluster.end_process(agent.facts.node_id, agent.facts.pid)
    return is_lost
