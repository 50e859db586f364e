"""Barriers: the clients of a mesh wait for each other, and count their devices."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import replicax.runtime.activity as activity
from replicax.checks import is_int
from replicax.cluster.exchange import AbsentError, Exchange
from replicax.cluster.key_value_store import Store
from replicax.compat.jax_tracing import constants_are_traced
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.errors import ArgumentError, BarrierTimeoutError, DeviceError, MeshError, ProgramError

_DAY_IN_MS = 24 * 60 * 60 * 1000  # as in TensorFlow


def barrier(mesh: MeshLike, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Returns when all clients of a mesh have called it and their devices have done what was asked of them before.

    Args:
        mesh: The mesh. Clients that have no device in it must not call.
        barrier_name: A name for messages; every client must give the same one. It may be used again.
        timeout_in_ms: How long to wait for the others, in milliseconds; by default a day.

    Raises:
        BarrierTimeoutError: Not all came in time; it says who did not.
        MeshError: `mesh` is not a mesh, or this client has no device in it.
        DeviceError: The devices do not count up to the mesh's size: they do not work together.
        ArgumentError: The timeout is not a positive int, or the name not a string.
        ContextError: JAX's coordination service is gone.
        ProgramError: Called while a function is being traced.

    Example:
        >>> rx.dtensor.barrier(rx.dtensor.create_mesh([("x", 8)]))
    """
    mesh = Mesh.of(mesh)
    timeout_ms = _DAY_IN_MS if timeout_in_ms is None else timeout_in_ms
    name = "barrier" if barrier_name is None else barrier_name
    if not is_int(timeout_ms) or timeout_ms < 1:
        raise ArgumentError(f"`timeout_in_ms` is a positive int, got {timeout_in_ms!r}.")
    if not isinstance(name, str):
        raise ArgumentError(f"`barrier_name` is a string, got {barrier_name!r}.")
    if constants_are_traced():
        raise ProgramError("barrier was called while a function was being traced: clients wait between programs.")
    if mesh.is_remote():
        raise MeshError(f"Process {jax.process_index()} has no device in {mesh!r}, so it has no part in its barrier.")
    processes = sorted({device.process_index for device in mesh.global_devices()})
    with activity.phase(activity.WAIT, f"barrier {name!r}", processes):
        if len(processes) > 1:
            _wait(name, timeout_ms, processes)
        _check_count(mesh)


class _Uses:
    """Counts how often this process has come to each barrier, so that a name can be used again."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()

    def next_of(self, barrier: str) -> int:
        """Returns how often this process has come to a barrier before, and counts this time."""
        self._counts[barrier] += 1
        return self._counts[barrier] - 1


_uses = _Uses()


def _wait(
    name: str,
    timeout_ms: int,
    processes: Sequence[int],
    process: int | None = None,
    store: Store | None = None,
    uses: _Uses = _uses,
) -> None:
    """Returns when all processes have called it; either all of them return, or all raise an error."""
    me = jax.process_index() if process is None else process
    barrier = f"{name} of {','.join(map(str, processes))}"
    use = uses.next_of(barrier)
    exchange = Exchange(f"replicax/barrier/{barrier}", me, processes, store=store, timeout_s=timeout_ms / 1000)
    exchange.tell(f"{use}/here")
    decision = exchange.decided(f"{use}/missing")  # There is one already if this client is late.
    if decision is None:
        try:
            exchange.collect(f"{use}/here")
            missing: tuple[int, ...] = ()
        except AbsentError as error:
            missing = error.missing
        # One client may see the last one come while the time of another is up: the first to decide decides for all.
        decision = exchange.decide(f"{use}/missing", json.dumps(missing).encode())
    decided = json.loads(decision)
    if me in decided:
        raise BarrierTimeoutError(name, timeout_ms, me, late=True)
    if decided:
        raise BarrierTimeoutError(name, timeout_ms, me, decided)
    if use > 0 and me == processes[0]:  # All have come to this use, so all have left the one before.
        exchange.forget(str(use - 1))


def _check_count(mesh: Mesh) -> None:
    ones = Layout([mesh.dim_names], mesh).to_sharding()
    each = jax.make_array_from_callback((mesh.size,), ones, lambda index: np.ones(1, np.int32))
    total = jax.jit(jnp.sum, out_shardings=Layout([], mesh).to_sharding())(each)
    counted = int(np.asarray(total.addressable_data(0)))
    if counted != mesh.size:
        raise DeviceError(f"{mesh!r} has {mesh.size} devices, but counting them on the devices gives {counted}.")
