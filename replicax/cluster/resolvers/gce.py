"""Instances of a group in Google Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from replicax.cluster.addresses import join_address
from replicax.cluster.resolvers.base import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ClusterError, ContextError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from googleapiclient.discovery import Resource

_NEEDS = "GCEClusterResolver needs the packages `google-api-python-client` and `google-auth`, or a `service`."


class GCEClusterResolver(ClusterResolver):
    """Asks Compute Engine for the running instances of a group; needs `google-api-python-client`.

    The group is one job. Its tasks are in the order of their addresses.

    Args:
        project: The Google Cloud project.
        zone: Zone of the group.
        instance_group: Its name.
        port: Port of every task.
        task_type: The job.
        task_id: Index of this process. It differs from instance to instance, and only the caller knows it.
        rpc_layer: Prefix of addresses for `master`.
        credentials: For the client; `"default"` takes those of the machine.
        service: A client of the API "compute", version 1, ; by default a new one.

    Raises:
        ImportError: There is no service, and the packages are not installed.

    Example:
        >>> gce = rx.cluster_resolver.GCEClusterResolver  # doctest: +SKIP
        >>> resolver = gce("my-project", "europe-west1-b", "trainers", 8888)  # doctest: +SKIP
        >>> resolver.cluster_spec()  # doctest: +SKIP
    """

    name = "GCE"

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int = 0,
        rpc_layer: str | None = "grpc",
        credentials: Credentials | str = "default",
        service: Resource | None = None,
    ):
        super().__init__(task_type, task_id, rpc_layer, environ={})
        self._job = task_type
        self._project, self._zone, self._group, self._port = project, zone, instance_group, port
        self._service = service if service is not None else _service(credentials)

    def cluster_spec(self) -> ClusterSpec:
        addresses = sorted(join_address(self._ip(name), self._port) for name in self._running())
        if not addresses:
            raise ClusterError(
                f"{self.name} instance group",
                self._group,
                "has no running instances",
                f"Start them, or correct project {self._project!r} and zone {self._zone!r}.",
            )
        return ClusterSpec({self._job: addresses}, f"{self.name} cluster")

    @property
    def task_type(self) -> str | None:
        return self._job

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise ContextError("The job of a GCEClusterResolver cannot be changed. Make a new resolver.")

    def _running(self) -> Iterator[str]:
        groups = self._service.instanceGroups()
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._group,
            body={"instanceState": "RUNNING"},
            orderBy="name",
        )
        while request is not None:
            response = request.execute()
            for instance in response.get("items", ()):
                yield instance["instance"].split("/")[-1]
            request = groups.listInstances_next(previous_request=request, previous_response=response)

    def _ip(self, instance: str) -> str:
        request = self._service.instances().get(project=self._project, zone=self._zone, instance=instance)
        return request.execute()["networkInterfaces"][0]["networkIP"]


def _service(credentials: Credentials | str) -> Resource:
    try:
        from googleapiclient import discovery

        if credentials == "default":
            import google.auth

            credentials, _ = google.auth.default()
    except ImportError as error:
        raise ImportError(f"{_NEEDS} pip install google-api-python-client google-auth") from error
    return discovery.build("compute", "v1", credentials=credentials)
