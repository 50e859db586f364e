"""`numbers=`: whether the bits of a training depend on the devices that it runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from replicax.checks import is_int
from replicax.compat.jax_processes import backends_have_started
from replicax.errors import ArgumentError, ContextError
from replicax.runtime.devices import cores

BITWISE = "bitwise"
BLOCKS = 8  # by default
_MOST_BLOCKS = 1024  # Each has two of XLA's threads.
#: The mesh axis of the devices that share the work of the one replica.
BLOCK_AXIS = "block"
_THREADS = "PJRT_NPROC"  # XLA reads it before `NPROC`, when its CPU client starts.


def checked_blocks(numbers: object, blocks: object, **without: object) -> int | None:
    """Returns into how many blocks a strategy cuts its steps, None for none; `without` are arguments of no use then.

    It comes before JAX starts: XLA's CPU client sums a matrix product in parts, for as many threads as it has, and
    their number may depend on that of the devices. It has two for each block from here on.
    """
    if numbers is None:
        if blocks is not None:
            raise ArgumentError(f"blocks={blocks!r} has no meaning without numbers='bitwise'.")
        return None
    if numbers != BITWISE:
        raise ArgumentError(f"`numbers` is {BITWISE!r}, or None, got {numbers!r:.100}.")
    blocks = BLOCKS if blocks is None else blocks
    if not is_int(blocks) or not 1 <= blocks <= _MOST_BLOCKS or blocks & (blocks - 1):
        raise ArgumentError(
            f"`blocks` is a power of two (their sums are added in pairs), at most {_MOST_BLOCKS}, got {blocks!r:.100}."
        )
    useless = [name for name, value in without.items() if value is not None]
    if useless:
        raise ArgumentError(
            f"`{useless[0]}` has no meaning with numbers='bitwise', which adds up gradients in an order of its own: "
            "leave it out."
        )
    if not backends_have_started() and _threads_wanted() != 2 * blocks:
        os.environ[_THREADS] = str(2 * blocks)
    return int(blocks)


def check_devices(devices: Sequence[jax.Device], blocks: int) -> None:
    """Checks that what devices compute does not depend on their number."""
    if devices[0].platform != "cpu":
        return
    wanted, found = 2 * blocks, _threads_of_client()
    if found != wanted:
        raise ContextError(
            f"XLA sums a matrix product in parts, for as many threads as it has. With numbers='bitwise' and {blocks} "
            f"blocks these are {wanted}, but JAX has already started, with {found}. Make the strategy at the top of "
            "the program, before anything creates an array or asks for devices, or start Python with "
            f"{_THREADS}={wanted}."
        )


def _threads_of_client() -> int:
    """Returns how many threads XLA's CPU client has."""
    return max(_threads_wanted(), jax.local_device_count(backend="cpu"))


def _threads_wanted() -> int:
    told = next((int(value) for name in (_THREADS, "NPROC") if (value := os.environ.get(name, "")).isdigit()), 0)
    return told or cores()
