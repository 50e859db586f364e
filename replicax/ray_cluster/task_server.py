"""`Server`: one task of a cluster. It runs a Ray node, on which a coordinator or a client starts its actors."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence

from replicax.cluster import ClusterConfig, ClusterResolver, ClusterSpec, found_cluster
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.errors import ClusterError
from replicax.ray_cluster.authentication import shared_token
from replicax.ray_cluster.deadline import Deadline, wait_for
from replicax.ray_cluster.nodes import Node, answers, node_ip, task_arguments
from replicax.ray_cluster.tasks import (
    SERVER,
    check_served,
    check_server,
    describe,
    head_address,
    head_task,
    own_task,
    serving_jobs,
)

Jobs = Mapping[str, Sequence[str] | Mapping[int, str]]  # the addresses of each job's tasks

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.5  # at the node, without end


class Server(Advised):
    """Starts this task of a cluster: a parameter server or a worker that waits for what it is sent.

    With a job `ps` it serves one coordinator after another. Without, all tasks are workers that train in step for one
    client after another (`rx.MultiWorkerMirroredStrategy(remote_cluster=...)`). The head of the cluster (the first
    parameter server; without any the chief or first worker) hosts what holds it together (Ray's head) at its own
    address; the others wait for it. All tasks need the same `REPLICAX_TOKEN` in their environment. It
    listens on the host of its own address; if that is a loopback address, nobody outside the machine can connect.

    Args:
        cluster: The addresses of all tasks: a dict, a `ClusterSpec`, or a `ClusterResolver` (which may know job and
            index, too).
        job: `"ps"` or `"worker"`; in a cluster without `ps` also `"chief"`.
        index: Index of the task in its job.
        start_timeout: How long to wait for the head, in seconds.
        dashboard: Whether the head shows Ray's dashboard, on the loopback address.

    Raises:
        ClusterError: There is no such task, no token is set, Ray is not installed, or it cannot start.
        ClusterTimeoutError: The head is not there in time.

    Attributes:
        name: What it is called, such as `"ps:0 at host0:2222"`.
        address: Where it is.

    Example:
        >>> cluster = {"worker": ["host1:2222"], "ps": ["host0:2222"]}
        >>> Server(cluster, "ps", 0).join()  # doctest: +SKIP
    """

    @called_as("tf.distribute.Server")
    def __init__(
        self,
        cluster: ClusterResolver | ClusterSpec | Jobs,
        job: str | None = None,
        index: int | None = None,
        *,
        start_timeout: float = 300.0,
        dashboard: bool = True,
    ):
        spec, job, index = _read(cluster, job, index)
        check_served(spec)
        self._task = check_server(spec, job, index)
        self.address = spec.task_address(job, index)
        self.name = describe(spec, self._task)
        token = shared_token(os.environ)
        deadline = Deadline(start_timeout)
        self._head = describe(spec, head_task(spec))
        if self._task != head_task(spec):
            head = head_address(spec)
            wait_for(lambda: [] if answers(head) else [self._head], 1, self.name, head, deadline)
        ip = node_ip(spec, self._task, deadline.left)
        self._node = Node(self.name, task_arguments(spec, self._task, dashboard), ip, token, deadline.left)
        self._told_to_stop = threading.Event()

    def join(self) -> None:
        """Returns when the server has ended: by SIGTERM, Ctrl-C, `stop`, or because the head has."""
        with _signals_set(self._told_to_stop):
            while not self._told_to_stop.wait(_SECONDS_BETWEEN_LOOKS) and self._node.is_running():
                pass
        if not self._told_to_stop.is_set():
            _log.warning("%s has ended: %s is gone, or this node of Ray was ended.", self.name, self._head)
        self.stop()

    def stop(self) -> None:
        """Ends it, with all that runs there."""
        self._told_to_stop.set()
        self._node.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve_if_task(config: ClusterConfig | ClusterResolver | None = None) -> None:
    """Serves, and then ends the program, if this process is a worker or parameter server; otherwise returns at once."""
    spec, job, index = own_task(found_cluster() if config is None else config)
    if SERVER in spec.jobs and job in serving_jobs(spec) and index is not None:
        Server(spec, job, index).join()
        raise SystemExit(0)


def _read(
    cluster: ClusterResolver | ClusterSpec | Jobs, job: str | None, index: int | None
) -> tuple[ClusterSpec, str, int]:
    if isinstance(cluster, ClusterResolver):
        spec, told_job, told_index = own_task(cluster)
        job, index = told_job if job is None else job, told_index if index is None else index
    else:
        spec = ClusterSpec(cluster)
    if job is None or index is None:
        missing = "job" if job is None else "index"
        raise ClusterError(missing, None, "is missing", "Say which task of the cluster this is, such as 'worker', 0.")
    return spec, job, index


@contextlib.contextmanager
def _signals_set(event: threading.Event) -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C set the event while the block runs, where signals can be caught."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in numbers} if here else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
