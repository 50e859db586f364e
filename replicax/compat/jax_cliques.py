"""Collectives between some processes that JAX has not connected: a second client of XLA for CPUs, with Gloo.

JAX's own client stays as it is, with this process's devices alone. So whatever happens to another process cannot harm
it: a lost one makes a sum here fail, and the next clique is made of the processes that are left.

A clique's processes find each other through a coordination service of JAX that has one node, as which all of them
connect: the service then waits for nobody, and only its key-value store is used. A process whose service is gone is
aborted by JAX; so services live where nobody dies before the others.
"""

from __future__ import annotations

import ctypes
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src.lib import _jax as jaxlib
from jaxlib import xla_client

from replicax.compat.jax_processes import _found_in_time
from replicax.compat.open_sockets import connections, shut_down, tcp_sockets
from replicax.errors import MeetingError
from replicax.errors.exit_codes import ExitCode

_T = TypeVar("_T")
_SECONDS_BETWEEN_TRIES, _SECONDS_TO_CONNECT = 0.2, 1.0  # of a store's client: its patience is handed in
_AXIS = "member"
_FOREVER_S = 24 * 60 * 60  # Without heartbeats for this long a process would be aborted.
_MINUTES_FOR_TOPOLOGY = 1  # the least that XLA takes: all have met before
_GLOO_KEYS = "cpu:gloo"
# The sockaddr_in or sockaddr_in6 in what a Gloo process tells the others: the family, then the port.
_IPV4 = re.compile(rb"%b(..).{4}\x00{8}" % struct.pack("=H", socket.AF_INET), re.DOTALL)
_IPV6 = re.compile(rb"%b(..).{4}.{16}" % struct.pack("=H", socket.AF_INET6), re.DOTALL)
_STATUS = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")


class Service:
    """A coordination service in this process, a key-value store; JaxRuntimeError if it cannot listen at the address."""

    def __init__(self, address: str):
        self._service = jaxlib.get_distributed_runtime_service(
            address, 1, heartbeat_timeout=_FOREVER_S, shutdown_timeout=1, recoverable=True
        )
        self._port = int(address.rpartition(":")[2])

    def is_used(self) -> bool:
        """Returns whether another process is connected with it; False if the system does not tell."""
        ends = {(each.here, each.there) for each in connections()}
        return any(own[1] == self._port and (other, own) not in ends for own, other in ends)


class StoreClient:
    """A connection with a `Service`. Each method raises `jax.errors.JaxRuntimeError` if it cannot be done."""

    def __init__(self, address: str, timeout_s: float, patience_s: float = 0.0):
        self._address, self._patience_s = address, patience_s
        # If there is no service, JAX aborts the process after `timeout_s`: check before that somebody listens there.
        self.client = jaxlib.get_distributed_runtime_client(
            address,
            0,
            init_timeout=max(1, round(timeout_s)),
            heartbeat_timeout=_FOREVER_S,
            shutdown_on_destruction=False,
            use_compression=False,
        )
        self.client.connect()

    def put(self, key: str, value: bytes) -> None:
        """Stores `value` under a key, in place of what was there."""
        self._reached(lambda: self.client.key_value_set_bytes(key, value, allow_overwrite=True))

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Stores `value` unless the key is taken; returns whether it did. Of several processes at most one succeeds."""
        try:
            self._reached(lambda: self.client.key_value_set_bytes(key, value))
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False  # Perhaps by this process, if an answer was lost on the way.
            raise
        return True

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Waits for the value of a key; returns None if there is none in time."""
        timeout_ms = max(1, round(1000 * timeout_s))
        found = self._reached(lambda: _found_in_time(self.client.blocking_key_value_get_bytes, key, timeout_ms))
        # JAX gives up when the time is up, also if the service has not answered. So it is asked once more then: None
        # means that there is no value, and never that the network is slow or cut.
        return self._reached(lambda: self._found_now(key)) if found is None else found

    def listing(self, prefix: str) -> dict[str, bytes]:
        """Returns what is stored under all keys that begin with `prefix/`."""
        return dict(self._reached(lambda: self.client.key_value_dir_get_bytes(prefix)))

    def delete(self, key: str) -> None:
        """Removes a key, and all keys that begin with `key/`."""
        self._reached(lambda: self.client.key_value_delete(key))

    def _found_now(self, key: str) -> bytes | None:
        try:
            return bytes(self.client.key_value_try_get_bytes(key))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def _reached(self, ask: Callable[[], _T]) -> _T:
        # Tried again for `patience_s` seconds: a cable may be cut for a moment.
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("UNAVAILABLE"):
                    raise
                if _is_refused(self._address):
                    raise board_is_gone(self._address) from error
                if time.monotonic() >= deadline:
                    raise board_is_silent(self._address, self._patience_s) from error
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _is_refused(address: str) -> bool:
    """Returns whether nobody listens at an address any more, on a machine that answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def board_is_gone(address: str) -> MeetingError:
    """Returns the error of a service that has ended: nobody can go on."""
    return MeetingError(
        f"The process at {address} that keeps the list of members for their meetings has ended. "
        "No member can go on without it. Start the job again; it goes on from its newest checkpoint."
    )


def board_is_silent(address: str, seconds: float) -> MeetingError:
    """Returns the error of a service that does not answer: this process ends as a lost one, and the others go on."""
    return MeetingError(
        f"The process at {address} that keeps the list of members for their meetings cannot be reached: no answer for "
        f"{seconds:g} s. Is a cable cut, or a machine gone? This process ends, and the others go on without it.",
        exit_code=ExitCode.STALLED,
    )


class Clique:
    """The processes that take part in sums. All of them make it at the same time, with a `Service` of its own."""

    def __init__(self, address: str, rank: int, size: int, ip: str, timeout_s: float, num_devices: int | None = 1):
        self._store = StoreClient(address, timeout_s, timeout_s)
        self._sockets_before = frozenset(name for name, _ in tcp_sockets())
        make_client: Any = xla_client.make_cpu_client
        # JaxRuntimeError if another process does not come.
        self._client = make_client(
            asynchronous=True,
            distributed_client=self._store.client,
            node_id=rank,
            num_nodes=size,
            collectives=jaxlib.make_gloo_tcp_collectives(self._store.client, hostname=ip),
            num_devices=num_devices,  # of each process; None for as many as JAX would have
            get_local_topology_timeout_minutes=_MINUTES_FOR_TOPOLOGY,
            get_global_topology_timeout_minutes=_MINUTES_FOR_TOPOLOGY,
        )
        firsts = {device.process_index: device for device in reversed(self._client.devices())}
        mesh = jax.sharding.Mesh(np.array([firsts[index] for index in sorted(firsts)]), (_AXIS,))
        self._each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(_AXIS))
        self._size = size
        self._sum = jax.jit(
            jax.shard_map(
                lambda parts: [jax.lax.psum(part[0], _AXIS) for part in parts],
                mesh=mesh,
                in_specs=jax.sharding.PartitionSpec(_AXIS),
                out_specs=jax.sharding.PartitionSpec(),
            )
        )

    def total(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the sums of vectors over all processes; RuntimeError if one is lost or this one was interrupted."""
        device = self._client.local_devices()[0]
        arrays = [
            jax.make_array_from_single_device_arrays(
                (self._size, len(part)), self._each, [jax.device_put(part[None], device)]
            )
            for part in parts
        ]
        try:
            return [np.asarray(total.addressable_shards[0].data) for total in self._sum(arrays)]
        except ValueError as error:  # JAX makes one of some errors of a program that it runs at once.
            if _STATUS.match(str(error)):
                raise RuntimeError(str(error)) from error
            raise

    def lowered(self, parts: Sequence[np.ndarray]) -> str:
        """Returns the compiled program of `total` for such vectors, in XLA's text."""
        shapes = [jax.ShapeDtypeStruct((self._size, len(part)), part.dtype, sharding=self._each) for part in parts]
        return str(self._sum.lower(shapes).compile().as_text())

    def interrupt(self) -> bool:
        """Makes a sum that waits in another thread fail: shuts down Gloo's connections; returns whether it had any."""
        # They are those between the ports at which the members listen, which Gloo keeps in the store. Without the
        # names: a sum that waits keeps its thread until the process ends.
        ports = _listeners(self._store.listing(_GLOO_KEYS).values())
        return shut_down(ports, self._sockets_before) > 0

    def leave_behind(self) -> None:
        """Keeps the client: it waits for its threads when it is freed, and one of them may never end."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))


def _listeners(addresses: Iterable[bytes]) -> set[int]:
    """Returns the ports in the addresses that Gloo's processes tell each other."""
    found = [_IPV4.search(address) or _IPV6.search(address) for address in addresses]
    return {int.from_bytes(match[1], "big") for match in found if match is not None}
