"""The service that connects JAX's processes, and what starts with them: devices and collectives.

Calls of its key-value store raise `jax.errors.JaxRuntimeError` if the service is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from jax._src import api as jax_api, config as jax_config, distributed as jax_distributed, xla_bridge
from jax._src.lib import _jax as jaxlib

_T = TypeVar("_T")
# Others (UNAVAILABLE, CANCELLED, INTERNAL, ...) come from the way there, or from a client that has given up.
_REFUSALS = ("ALREADY_EXISTS", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED")


def backends_have_started() -> bool:
    """Returns whether JAX has looked for devices: then it is too late to start `jax.distributed`."""
    # Without the name: `jax.distributed.initialize` is tried, and says it in a `RuntimeError`.
    return xla_bridge.backends_are_initialized()


@contextlib.contextmanager
def without_preemption_service() -> Iterator[None]:
    """Keeps `jax.distributed.initialize`, called in the block, from catching SIGTERM."""
    # JAX catches it for its preemption service, whether or not somebody uses that: the signal would end no process any
    # more. To use JAX's service, set `JAX_ENABLE_PREEMPTION_SERVICE` in the environment.
    name = "jax_enable_preemption_service"
    if name.upper() in os.environ or not hasattr(jax.config, name):
        yield
        return
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    try:
        yield
    finally:
        jax.config.update(name, before)


def connected_as() -> tuple[int, int]:
    """Returns index and count of the processes that `jax.distributed` connects."""
    # `jax.process_index` would start the devices. Without the names: what `initialize` was called with is noted.
    state = jax_distributed.global_state
    return state.process_id, state.num_processes


def give_up_connecting() -> None:
    """Lets the process end as usual while `jax.distributed.initialize` still waits, in a thread."""
    # At exit JAX would wait until the others, which were never connected, shut down with it. Without the name:
    # `os._exit`, after the user's own exit handlers.
    jax_distributed.global_state.client = None


def leave_connection_to_parent() -> None:
    """Lets a child that this process forks end without telling JAX's service that this process ends."""
    # Without the name: a forked child ends by `os._exit`, as those of `multiprocessing` do.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: atexit.unregister(jax_api.clean_up))


def let_collectives_listen_at(ip: str) -> None:
    """Lets XLA's collectives between CPUs (Gloo) listen at one IP address of this machine."""
    # Called before JAX looks for devices. By itself JAX takes what the machine's name stands for. Other collectives
    # than Gloo (MPI) are left as they are. Without the names: the machine's name must stand for the address that other
    # machines reach it by, which `replicax doctor` checks.

    def make_client() -> jaxlib.Client:
        connection = jax_distributed.global_state.client
        if connection is None or not collectives_are_gloo():
            return xla_bridge.make_cpu_client()
        return xla_bridge.make_cpu_client(jaxlib.make_gloo_tcp_collectives(connection, hostname=ip))

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def collectives_are_gloo() -> bool:
    """Returns whether XLA's collectives between CPUs are those of Gloo, which listen at ports of their own."""
    # Without the name: the environment variable `JAX_CPU_COLLECTIVES_IMPLEMENTATION` and JAX's default.
    return bool(jax_config.cpu_collectives_implementation.value == "gloo")


def store_bytes(key: str, value: bytes) -> None:
    """Puts `value` under a new `key` into the store of JAX's service, in process 0; JaxRuntimeError if it is taken."""
    _service().key_value_set_bytes(key, value)


def store_bytes_if_absent(key: str, value: bytes) -> bool:
    """Puts `value` under `key` into the store unless the key is taken; returns whether it did: one process does."""
    try:
        _service().key_value_set_bytes(key, value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" in str(error):
            return False
        raise
    return True


def fetch_bytes(key: str, timeout_s: float) -> bytes | None:
    """Returns what a process has stored under `key`; None if none has within `timeout_s` seconds."""
    return _found_in_time(_service().blocking_key_value_get_bytes, key, max(1, round(1000 * timeout_s)))


def is_refusal(error: jax.errors.JaxRuntimeError) -> bool:
    """Returns whether an error of the store is an answer of the service, such as that a key is taken."""
    # Without the words: such an error says that the service cannot be reached, and then what JAX says of it.
    return str(error).startswith(_REFUSALS)


def delete_stored(key: str) -> None:
    """Removes `key`, and all keys that begin with `key/`, from the store."""
    _service().key_value_delete(key)


def _service() -> jaxlib.DistributedRuntimeClient:
    """Returns the client of JAX's coordination service. Without it: a TCP server of our own in process 0."""
    client = jax_distributed.global_state.client
    assert client is not None, "jax.distributed is not initialized"
    return client


def _found_in_time(get: Callable[[str, int], _T], key: str, timeout_ms: int) -> _T | None:
    """Returns what `get` finds under `key`, None if the time is up before."""
    try:
        return get(key, timeout_ms)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise
