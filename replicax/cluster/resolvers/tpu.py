"""Hosts of a Cloud TPU slice, by the variables that GKE and queued resources set."""

from __future__ import annotations

from replicax.checks import checked
from replicax.cluster.addresses import join_address, parse_address
from replicax.cluster.environment import Environ, check_complete, number, optional_number, text
from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.spec import ClusterSpec
from replicax.contracts.called_as import called_as
from replicax.errors import ClusterError

_PORT = 8482  # Where JAX puts its coordination service on TPU hosts.
_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")  # In JAX's order.
_ID = "TPU_WORKER_ID"
_SLICES, _SLICE, _COORDINATOR = "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"
_CURE = "On a Cloud TPU the platform sets it; elsewhere unset the TPU_* variables."


@checked
class TPUClusterResolver(ClusterResolver):
    """Knows the names of the hosts of a TPU slice.

    JAX finds the hosts of a TPU by itself; this resolver names them. With several slices (`MEGASCALE_NUM_SLICES`) only
    the coordinator's address is known, and the number of processes.

    Args:
        tpu: Hosts separated by commas, with or without ports; by default from the environment: the first that is set
            of `TPU_PROCESS_ADDRESSES`, `TPU_WORKER_HOSTNAMES`, `KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`. `"local"` or `""`
            is this machine alone.
        job_name: Name of the hosts' job.
        environ: The environment variables; by default `os.environ`.

    Example:
        >>> resolver = rx.cluster_resolver.TPUClusterResolver("10.0.0.1,10.0.0.2", environ={"TPU_WORKER_ID": "1"})
        >>> resolver.cluster_spec().num_tasks("worker"), resolver.task_id
        (2, 1)
    """

    name = "TPU"

    @called_as("tf.distribute.cluster_resolver.TPUClusterResolver")
    def __init__(self, tpu: str | None = None, *, job_name: str = "worker", environ: Environ | None = None):
        super().__init__(rpc_layer="grpc", environ=environ)
        self._tpu = tpu
        self._job = job_name

    def __enter__(self) -> TPUClusterResolver:
        """Returns the resolver. There is nothing to open or close, but TensorFlow's is a context manager."""
        return self

    def __exit__(self, *_: object) -> None: ...

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        source = next((name for name in _HOSTS if text(environ, name)), None)
        if source is None:
            return Verdict(False, f"none of {', '.join(_HOSTS)} is set")
        if "," not in environ[source] and text(environ, _SLICES) in (None, "1"):
            return Verdict(False, f"{source} names a single host")
        return Verdict(True, f"{source} is set")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        hosts = next((name for name in _HOSTS if text(environ, name)), _HOSTS[1])
        check_complete(environ, (_SLICES,), (_ID, _SLICE), (hosts,))

    def cluster_spec(self) -> ClusterSpec:
        hosts = self._hosts()
        if not hosts or self._slices() == 1:
            return ClusterSpec({self._job: hosts} if hosts else None, f"{self.name} cluster")
        coordinator = text(self._environ, _COORDINATOR)
        if coordinator is None:
            raise ClusterError(_COORDINATOR, None, f"is not set, though {_SLICES} is {self._slices()}", _CURE)
        host = parse_address(_with_port(coordinator), _COORDINATOR).host
        return ClusterSpec({self._job: [join_address(host, _PORT)]}, f"{self.name} cluster")

    def told_processes(self) -> int | None:
        hosts, slices = self._hosts(), self._slices()
        return len(hosts) * slices if hosts and slices > 1 else None

    def _told_type(self) -> str | None:
        return self._job if self._hosts() else None

    def _told_id(self) -> int | None:
        hosts, slices = self._hosts(), self._slices()
        if not hosts:
            return None
        in_slice = number(self._environ, _ID, below=len(hosts), cure=f"There are {len(hosts)} hosts. {_CURE}")
        before = number(self._environ, _SLICE, below=slices, cure=f"{_SLICES} is {slices}.") if slices > 1 else 0
        return before * len(hosts) + in_slice

    def _slices(self) -> int:
        slices = optional_number(self._environ, _SLICES, least=1)
        return 1 if slices is None or self._tpu is not None else slices

    def _hosts(self) -> list[str]:
        field, listed = "tpu", self._tpu
        if listed is None:
            field = next((name for name in _HOSTS if text(self._environ, name)), _HOSTS[0])
            listed = text(self._environ, field) or ""
        if listed in ("", "local"):
            return []
        hosts = [_with_port(host.strip().removeprefix("grpc://")) for host in listed.split(",")]
        for host in hosts:
            parse_address(host, field)
        return hosts


def _with_port(host: str) -> str:
    """Adds the port, unless there is one or there is no host."""
    if not host or host.rpartition("]")[2].startswith(":") or host.count(":") == 1:
        return host
    return join_address(host, _PORT)
