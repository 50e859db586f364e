"""Hosts of an Amazon SageMaker training job."""

from __future__ import annotations

import json

from replicax.checks import checked
from replicax.cluster.environment import Environ, required, text
from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ClusterError

_HOSTS, _ME = "SM_HOSTS", "SM_CURRENT_HOST"
_CURE = 'SageMaker sets it: SM_HOSTS=["algo-1", "algo-2"] and SM_CURRENT_HOST=algo-1.'


@checked
class SageMakerClusterResolver(ClusterResolver):
    """Reads `SM_HOSTS` and `SM_CURRENT_HOST`. Every host is a worker; the indices follow the order of the names.

    Args:
        port: Port of every task.
        task_type: Job of this process; by default `"worker"`.
        task_id: Index of this process; by default the position of its host.
        rpc_layer: Prefix of addresses for `master`.
        environment: A label for the environment.
        environ: The environment variables; by default `os.environ`.

    Example:
        >>> environ = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
        >>> rx.cluster_resolver.SageMakerClusterResolver(environ=environ).task_id
        1
    """

    name = "SageMaker"

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        environ: Environ | None = None,
    ):
        super().__init__(task_type, task_id, rpc_layer, environment, environ)
        self._port = port

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        if text(environ, _HOSTS) is None:
            return Verdict(False, f"{_HOSTS} is not set")
        return Verdict(True, f"{_HOSTS} is set")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        if text(environ, _ME) is not None:
            required(environ, _HOSTS, f"{_ME} is set: this host is one of several, or of one. {_CURE}")

    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec({"worker": [f"{host}:{self._port}" for host in self._hosts()]}, f"{self.name} cluster")

    def _told_type(self) -> str:
        return "worker"

    def _told_id(self) -> int:
        hosts, me = self._hosts(), required(self._environ, _ME, _CURE)
        if me not in hosts:
            raise ClusterError(_ME, me, f"must be one of {hosts} ({_HOSTS})", _CURE)
        return hosts.index(me)

    def _hosts(self) -> list[str]:
        written = required(self._environ, _HOSTS, _CURE)
        try:
            hosts = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise ClusterError(_HOSTS, written, f"is not JSON: {error}", _CURE) from None
        if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
            raise ClusterError(_HOSTS, written, "must be a list of names", _CURE)
        return sorted(hosts)
