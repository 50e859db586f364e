"""Barriers: the clients of a mesh wait for each other, and count their devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax.health as health
from replicax.compat.jax_processes import wait_at_barrier
from replicax.dtensor.arrays import constants_are_traced
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh
from replicax.errors import ArgumentError, BarrierTimeoutError, ContextError, DeviceError, MeshError, ProgramError

_DAY_IN_MS = 24 * 60 * 60 * 1000


def barrier(mesh: Any, barrier_name: str | None = None, timeout_in_ms: int | None = None) -> None:
    """Returns when all clients of a mesh have called it and their devices have done what was asked of them before.

    Args:
        mesh: The mesh. Clients that have no device in it must not call.
        barrier_name: A name for messages; every client must give the same one. It may be used again.
        timeout_in_ms: How long to wait for the others, in milliseconds; by default a day. (JAX's coordination service
            looks about once a second.)

    Raises:
        BarrierTimeoutError: Not all came in time; it says who did not.
        MeshError: `mesh` is not a mesh, or this client has no device in it.
        DeviceError: The devices do not count up to the mesh's size: they do not work together.
        ArgumentError: The timeout is not a positive int, or the name not a string.
        ContextError: JAX's coordination service is gone.
        ProgramError: Called while a function is being traced.
    """
    mesh = Mesh.of(mesh)
    timeout_ms = _DAY_IN_MS if timeout_in_ms is None else timeout_in_ms
    name = "barrier" if barrier_name is None else barrier_name
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 1:
        raise ArgumentError(f"`timeout_in_ms` is a positive int, got {timeout_in_ms!r}.")
    if not isinstance(name, str):
        raise ArgumentError(f"`barrier_name` is a string, got {barrier_name!r}.")
    if constants_are_traced():
        raise ProgramError("barrier was called while a function was being traced: clients wait between programs.")
    if mesh.is_remote():
        raise MeshError(f"Process {jax.process_index()} has no device in {mesh!r}, so it has no part in its barrier.")
    processes = sorted({device.process_index for device in mesh.global_devices()})
    with health.phase(health.WAIT, f"barrier {name!r}", processes):
        if len(processes) > 1:
            _wait(name, timeout_ms, processes)
        _check_count(mesh)


def _wait(name: str, timeout_ms: int, processes: Sequence[int]) -> None:
    everyone = len(processes) == jax.process_count()
    try:
        wait_at_barrier(f"replicax {name}" + ("" if everyone else f" of {processes}"), timeout_ms, processes)
    except jax.errors.JaxRuntimeError as error:
        problem, me = str(error), jax.process_index()
        missing = _missing(problem)
        # Who comes late is told of the timeout of those that waited, or that the barrier is past.
        if me in missing or "invoked by the task, but the service thinks it is" in problem:
            raise BarrierTimeoutError(name, timeout_ms, me, late=True) from error
        if problem.startswith("DEADLINE_EXCEEDED"):
            raise BarrierTimeoutError(name, timeout_ms, me, missing) from error
        raise ContextError(f"Waiting at barrier {name!r} failed: {problem}") from error


def _missing(problem: str) -> tuple[int, ...]:
    """Returns the numbers of the clients that the coordination service says it missed."""
    listed = re.search(r"timed out task names:\s*((?:\d+\s*?\n)+)", problem)
    return tuple(sorted(int(client) for client in listed[1].split())) if listed else ()


def _check_count(mesh: Mesh) -> None:
    ones = Layout([mesh.dim_names], mesh).to_sharding()
    each = jax.make_array_from_callback((mesh.size,), ones, lambda index: np.ones(1, np.int32))
    total = jax.jit(jnp.sum, out_shardings=Layout([], mesh).to_sharding())(each)
    counted = int(np.asarray(total.addressable_data(0)))
    if counted != mesh.size:
        raise DeviceError(f"{mesh!r} has {mesh.size} devices, but counting them on the devices gives {counted}.")
