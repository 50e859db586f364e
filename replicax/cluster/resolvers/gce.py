"""Instances of a group in Google Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.cluster.addresses import join_address
from replicax.cluster.resolvers.base import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ClusterError, ContextError

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
        task_id: Number of this process. It differs from instance to instance; nothing else tells it.
        rpc_layer: Prefix of addresses for `master`.
        credentials: For the client; `"default"` takes those of the machine.
        service: A client of the API "compute", version 1, instead of one that is made here.

    Raises:
        ImportError: There is neither a service nor the packages.
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
        credentials: Any = "default",
        service: Any = None,
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


def _service(credentials: Any) -> Any:
    try:
        from googleapiclient import discovery

        if credentials == "default":
            import google.auth

            credentials, _ = google.auth.default()
    except ImportError as error:
        raise ImportError(f"{_NEEDS} pip install google-api-python-client google-auth") from error
    return discovery.build("compute", "v1", credentials=credentials)
