"""Sources that know the index of a process, the number of processes, and where process 0 is. All are workers."""

from __future__ import annotations

import abc
from typing import ClassVar

from replicax.cluster.addresses import parse_address
from replicax.cluster.environment import Environ, check_complete, number, optional_number, text
from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ClusterError

_JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"  # JAX uses it with any source of the ids.


class RankClusterResolver(ClusterResolver):
    """A resolver for launchers that give each process an index.

    The spec holds the address of process 0, as `worker:0`, or nothing if that is not known.

    Args:
        coordinator_address: `"host:port"` of process 0; by default what the environment says.
        rpc_layer: Prefix of addresses for `master`.
        environ: The environment variables; by default `os.environ`.
    """

    rank: ClassVar[str]
    count: ClassVar[str]
    local_rank: ClassVar[str] = ""
    local_count: ClassVar[str] = ""

    def __init__(
        self, coordinator_address: str | None = None, rpc_layer: str | None = None, environ: Environ | None = None
    ):
        super().__init__(rpc_layer=rpc_layer, environ=environ)
        self._given_coordinator = coordinator_address

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        missing = [name for name in (cls.rank, cls.count) if text(environ, name) is None]
        if missing:
            return Verdict(False, f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set")
        return Verdict(True, f"{cls.rank} and {cls.count} are set")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        check_complete(environ, (cls.count, cls.local_count), (cls.rank, cls.local_rank), (cls.rank, cls.count))

    def cluster_spec(self) -> ClusterSpec:
        coordinator = self.coordinator_address()
        return ClusterSpec({"worker": [coordinator]} if coordinator else None)

    def told_processes(self) -> int:
        return number(self._environ, self.count, least=1, cure="It is the number of all processes.")

    def local_process_id(self) -> int | None:
        return optional_number(self._environ, self.local_rank) if self.local_rank else None

    def coordinator_address(self) -> str | None:
        """Returns `"host:port"` of process 0, or None if it is not known.

        Raises:
            ClusterError: It is malformed, or is a loopback address though there are several machines.
        """
        field, address = "coordinator_address", self._given_coordinator
        if address is None:
            field, address = self._told_coordinator()
        if address is None:
            field, address = _JAX_COORDINATOR, text(self._environ, _JAX_COORDINATOR)
        if address is not None and parse_address(address, field).is_loopback() and self._has_several_machines():
            raise ClusterError(
                field,
                address,
                f"is a loopback address, but {self.local_count} is less than {self.count}: there are other machines, "
                "and each would look for process 0 on itself",
                "Write the name or address that the machine of process 0 has in the network.",
            )
        return address

    @abc.abstractmethod
    def _told_coordinator(self) -> tuple[str, str | None]:
        """Returns the name of the variable with the coordinator's address, and the address."""

    def _has_several_machines(self) -> bool:
        local = optional_number(self._environ, self.local_count, least=1) if self.local_count else None
        return local is not None and local < self.told_processes()

    def _told_type(self) -> str:
        return "worker"

    def _told_id(self) -> int:
        processes = self.told_processes()
        return number(self._environ, self.rank, below=processes, cure=f"{self.count} is {processes}.")
