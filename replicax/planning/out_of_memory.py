"""The memory of a device that had not enough of it for a program: in the place of XLA's page of text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax

from replicax.compat.jax_errors import lacks_memory
from replicax.contracts.shown import in_columns
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import array_of, has_array
from replicax.errors import OutOfMemoryError
from replicax.planning.buffers import bytes_said, refused_buffers
from replicax.planning.planner import arguments_of, first_words, held_by, shown_strategy, variables_of
from replicax.planning.report import EXACT, OPTIMIZER, OTHER, PARAMETERS, size
from replicax.planning.topologies import memory_stats
from replicax.program.lifting import Program

_MOST = 10
_ASKED = re.compile(r"allocati?(?:ng|on|e|ed)?\s+(?P<count>[\d.]+)\s*(?P<unit>[KMGT]?)i?B?(?:ytes)?\b")


def out_of_memory(program: Program, arrays: Sequence[Any], error: BaseException) -> OutOfMemoryError | None:
    """Returns the error that shows what was where, if a device had not enough memory for a program; else None.

    It takes no memory of the device: nothing is compiled again.
    """
    said = error.__cause__ if error.__cause__ is not None else error
    if not isinstance(said, Exception) or not lacks_memory(said):
        return None
    strategy = or_null(program.strategy)
    used = variables_of(program)
    state = held_by(used, program, strategy)
    arguments = arguments_of(program, arrays)
    rows = [
        (kind, size(sum(each.bytes for each in state if each.kind == kind)), EXACT)
        for kind in (PARAMETERS, OPTIMIZER, OTHER)
    ]
    rows.append(("arguments", size(sum(each.bytes for each in arguments)), EXACT))
    device = _device_of([array_of(each) for each in used if has_array(each)] or [each.value for each in arguments])
    if device is not None:
        known = {*(id(array_of(each)) for each in used if has_array(each)), *(id(each.value) for each in arguments)}
        rows.append((f"other arrays on {device.platform}:{device.id}", size(_others(device, known)), EXACT))
        rows += _said_by(device)
    asked = _ASKED.search(str(said))
    if asked is not None:
        rows.append(("allocation that failed", size(bytes_said(asked["count"], asked["unit"])), "by XLA"))
    listed = refused_buffers(str(said))
    largest = [(size(each.bytes), each.shape, each.kind, each.name, each.line) for each in listed] or [
        (size(each.bytes), f"{each.dtype}{list(each.shape)}", each.kind, each.name, each.where)
        for each in sorted(state, key=lambda each: -each.bytes)[:_MOST]
    ]
    title = "largest arrays of the program, by its compiler" if listed else f"largest variables ({EXACT})"
    parts = [f"{program.name!r} under {shown_strategy(strategy)} lacks memory. XLA said: {first_words(str(said))}"]
    parts.append(f"on each device\n{in_columns(rows)}")
    if largest:
        parts.append(f"{title}\n{in_columns(largest)}")
    if said is not error:
        parts.append(str(error))
    parts.append(
        "The arrays of a step come on top: strategy.plan(model, batch), rx.plan, or replicax plan script.py "
        "--on gpu:8x80GiB lists it before a run, with the line that made each array; the guide 'Will it fit?' says "
        "what helps. rx.tuning.find_batch_size finds the largest batch."
    )
    return OutOfMemoryError("\n\n".join(parts))


def _device_of(values: Sequence[Any]) -> Any:
    found: Any = (
        device for value in values if isinstance(value, jax.Array) for device in value.sharding.addressable_devices
    )
    return min(found, key=lambda device: device.id, default=None)


def _others(device: jax.Device, known: set[int]) -> int:
    """Returns the bytes that other arrays have on a device."""
    total = 0
    for each in jax.live_arrays():
        if id(each) not in known and not each.is_deleted() and device in each.sharding.device_set:
            total += each.dtype.itemsize * math.prod(each.sharding.shard_shape(each.shape))
    return total


def _said_by(device: jax.Device) -> list[tuple[str, str, str]]:
    """Returns what a device says about its memory; nothing where it does not say."""
    stats = memory_stats(device)
    names = {"bytes_in_use": "in use", "peak_bytes_in_use": "most at a time", "bytes_limit": "memory"}
    return [(name, size(int(stats[key])), "by the device") for key, name in names.items() if key in stats]
