"""Variables whose shards lie in several processes, read whole: all of these processes read them together.

A process alone cannot: it would wait for the others' shards. So before anything moves, the processes tell each other
what they are about to read, and after how many calls of programs. One that reads alone waits there, in a phase that
says for what, and not in a collective that mixes with the others'; the watch over the workers ends that with a report.
If another comes to a later read meanwhile, both raise an error instead.
"""

from __future__ import annotations

import re
from typing import TypeGuard

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import replicax.context as context
import replicax.runtime.activity as activity
from replicax.contracts.group import current_group
from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import WorkersDisagreeError
from replicax.runtime.calls import place_in_program, take_back, together
from replicax.runtime.transfer import put


def lies_in_several_processes(value: object) -> TypeGuard[jax.Array]:
    """Returns whether no process has all shards of a value, so that none can read it alone."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return False
    if value.is_fully_addressable or value.is_fully_replicated:
        return False
    sharding, shape = value.sharding, value.shape
    here = sharding.addressable_devices_indices_map(shape)
    return len(set(map(str, here.values()))) < len(set(map(str, sharding.devices_indices_map(shape).values())))


def whole(variable: VariableLike, value: jax.Array) -> np.ndarray:
    """Returns the whole value of a variable that has shards in several processes; all of them call this together."""
    reader = context.current().reader
    if reader is not None:
        reader.note_read(variable)
    else:
        _agree(f"value of {name_of(variable)!r}", f"{value.dtype}{list(value.shape)}".replace(" ", ""))
    return collected(value)


def as_numpy(variable: VariableLike, value: jax.Array) -> np.ndarray:
    """Returns the value of a variable as NumPy has it, wherever its shards are."""
    return whole(variable, value) if lies_in_several_processes(value) else np.asarray(value)


def collected(value: jax.Array) -> np.ndarray:
    """Returns the whole value of an array in every process; all of them call this together, for the same one."""
    assert isinstance(value.sharding, NamedSharding)
    with together("read a variable", f"{value.dtype}{value.shape}") as call:
        everywhere = put(value, NamedSharding(value.sharding.mesh, PartitionSpec()))
        call.sent(everywhere)
        return np.asarray(everywhere.addressable_data(0))


def _agree(what: str, kind: str) -> None:
    with activity.phase(
        activity.WAIT, f"the {what}, of which other workers hold shards: all workers must read it together"
    ):
        calls, digest = place = place_in_program()
        own = f"{what} {kind}\n{calls} steps and other calls before it\n{digest}"
        messages = current_group().messages(own.encode())
        told = [message.decode(errors="replace").partition("\n") for message in messages]
    # One that reads alone must not be paired with another worker's later read: the collectives of the steps between
    # the two are on their way already.
    if len({_without_numbers(read) for read, _, _ in told}) > 1 or len({after for _, _, after in told}) > 1:
        take_back(place)
        raise WorkersDisagreeError(
            "reads of sharded variables, after the same steps",
            {
                f"process {index}": [f"{read[:200]}, {after.partition(chr(10))[0][:80]}"]
                for index, (read, _, after) in enumerate(told)
            },
        )


def _without_numbers(read: str) -> str:
    """Returns what is read without the numbers in its name: Keras numbers layers by process."""
    name, _, kind = read.rpartition(" ")
    return re.sub(r"\d+", "", name) + kind
