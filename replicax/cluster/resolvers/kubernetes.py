"""Pods of Kubernetes, found by their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from replicax.checks import explained
from replicax.checks.named import Named
from replicax.cluster.addresses import join_address
from replicax.cluster.environment import Environ, text
from replicax.cluster.resolvers.base import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ArgumentError, ClusterError

_DEFAULT_LABELS = {"worker": ["job-name=tensorflow"]}
_GIVEN_UP = "Failed"  # The controller has replaced the pod.


class _Metadata(Protocol):
    name: str


class _Status(Protocol):
    phase: str


class _Pod(Protocol):
    metadata: _Metadata
    status: _Status


class _Pods(Protocol):
    items: list[_Pod]


class PodClient(Protocol):
    """The part of a `kubernetes.client.CoreV1Api` that the resolver needs."""

    def list_pod_for_all_namespaces(self, *, label_selector: str) -> _Pods:
        """Returns the pods with some labels, in all namespaces."""


class KubernetesExecutableLocation(Named):
    """Where the program runs that asks for the pods.

    Example:
        >>> rx.cluster_resolver.KubernetesExecutableLocation.WITHIN_CLUSTER.name
        'WITHIN_CLUSTER'
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


@explained
class KubernetesClusterResolver(ClusterResolver):
    """Asks Kubernetes for the pods of each job; needs the package `kubernetes`.

    Within a pod, this process is the pod with its host name (`HOSTNAME`). Pods that failed are left out. All others
    must be running, since the indices of the tasks could change until the cluster is complete.

    Args:
        job_to_label_mapping: For each job the label selectors of its pods; by default
            `{"worker": ["job-name=tensorflow"]}`. The indices of a selector's pods follow the order of their names.
        tf_server_port: Port of every task.
        rpc_layer: Prefix of addresses for `master`.
        override_client: A `kubernetes.client.CoreV1Api`, or another object with its `list_pod_for_all_namespaces`.
        executable_location: Where this program runs, which determines how it logs in.
        environ: The environment variables; by default `os.environ`.

    Raises:
        ImportError: There is neither a client nor the package.
        ArgumentError: `executable_location` is not a `KubernetesExecutableLocation`.

    Example:
        >>> from types import SimpleNamespace as Fields
        >>> class Client:  # without `override_client`: the one of the package `kubernetes`
        ...     def list_pod_for_all_namespaces(self, *, label_selector):
        ...         status = Fields(phase="Running", pod_ip="10.0.0.7")
        ...         return Fields(items=[Fields(metadata=Fields(name="train-0"), status=status)])
        >>> jobs = {"worker": ["job-name=train"]}
        >>> resolver = rx.cluster_resolver.KubernetesClusterResolver(jobs, override_client=Client())
        >>> resolver.cluster_spec().task_address("worker", 0)
        '10.0.0.7:8470'
    """

    name = "Kubernetes"

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: PodClient | None = None,
        executable_location: KubernetesExecutableLocation = KubernetesExecutableLocation.WITHIN_CLUSTER,
        environ: Environ | None = None,
    ):
        super().__init__(rpc_layer=rpc_layer, environ=environ)
        if not isinstance(executable_location, KubernetesExecutableLocation):
            raise ArgumentError(
                f"`executable_location` must be one of {[*KubernetesExecutableLocation]}, got {executable_location!r}."
            )
        self._labels = dict(job_to_label_mapping or _DEFAULT_LABELS)
        self._port = tf_server_port
        self._client = override_client or _client(executable_location)

    def cluster_spec(self) -> ClusterSpec:
        jobs = self._pods()
        return ClusterSpec(
            {job: [self._address(pod, job) for pod in pods] for job, pods in jobs.items()}, f"{self.name} cluster"
        )

    def _told_type(self) -> str | None:
        return self._own_task()[0]

    def _told_id(self) -> int | None:
        return self._own_task()[1]

    def _own_task(self) -> tuple[str | None, int | None]:
        me = text(self._environ, "HOSTNAME")
        for job, pods in self._pods().items():
            for index, pod in enumerate(pods):
                if pod.metadata.name == me:
                    return job, index
        return None, None

    def _pods(self) -> dict[str, list[_Pod]]:
        jobs = {}
        for job, selectors in self._labels.items():
            found = [pod for selector in selectors for pod in self._select(selector)]
            if not found:
                raise ClusterError(
                    f"{self.name} cluster.{job}",
                    [*selectors],
                    "has no pods: none has these labels",
                    "Start the pods first, or correct the selectors: `kubectl get pods -l SELECTOR` tries one.",
                )
            jobs[job] = found
        return jobs

    def _select(self, selector: str) -> list[_Pod]:
        listed = self._client.list_pod_for_all_namespaces(label_selector=selector).items
        pods = [pod for pod in listed if pod.status.phase != _GIVEN_UP]
        for pod in pods:
            if pod.status.phase != "Running":
                raise ClusterError(
                    f"{self.name} pod {pod.metadata.name}",
                    pod.status.phase,
                    "must be running",
                    "Wait until all pods of the job run; `kubectl describe pod` shows why a pod waits.",
                )
        return sorted(pods, key=lambda pod: pod.metadata.name)

    def _address(self, pod: _Pod, job: str) -> str:
        # TensorFlow takes the node's address. It is the pod's only on the host's network.
        ip = getattr(pod.status, "pod_ip", None) or getattr(pod.status, "host_ip", None)
        if not isinstance(ip, str):
            raise ClusterError(f"{self.name} cluster.{job}", pod.metadata.name, "has a pod without address", "Wait.")
        return join_address(ip, self._port)


def _client(location: KubernetesExecutableLocation) -> PodClient:
    try:
        import kubernetes
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the package `kubernetes`: pip install kubernetes. Or pass your own client "
            "as `override_client`."
        ) from error
    if location is KubernetesExecutableLocation.WITHIN_CLUSTER:
        kubernetes.config.load_incluster_config()
    else:
        kubernetes.config.load_kube_config()
    return cast(PodClient, kubernetes.client.CoreV1Api())
