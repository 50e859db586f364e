"""Checks, before anything is written, that all processes write the same arrays and states to a checkpoint.

Each process writes the parts that its devices hold, and the chief describes the whole. Processes that save different
objects would leave a checkpoint whose files fit neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.encoding import SavedArray
from replicax.cluster.exchange import by_value, listed
from replicax.errors import CheckpointError

_STEP = "the step"
_SHOWN = 5
_ABSENT = "nothing"


def compare_contents(coordination: Coordination, digests: Sequence[str], document: str) -> None:
    """Checks that all processes save the same names, with the same shapes and dtypes, for the same step."""
    if len(set(digests)) == 1:
        return
    # Only a checksum has travelled; now that it differs, the others are told the names.
    everyones = [json.loads(each) for each in coordination.all_values("names", document)]
    raise CheckpointError(
        f"{coordination.name}: all processes save the same objects, under the same names and for the same step, but "
        f"these differ: {differences(everyones)}. Nothing was written. Make the rx.Checkpoint with the same objects in "
        "all processes, and give its methods the same arguments."
    )


def document_of(
    arrays: Mapping[str, SavedArray | jax.ShapeDtypeStruct], states: Iterable[str], step: int | None
) -> str:
    """Returns what all processes must have alike: the step, and what is under each name; as JSON."""
    described = {repr(name): f"{np.dtype(array.dtype).name}{list(np.shape(array))}" for name, array in arrays.items()}
    named = {repr(name): "a value or state" for name in states}
    return json.dumps({_STEP: str(step), **described, **named}, sort_keys=True)  # Their order does not matter.


def digest_of(document: str) -> str:
    """Returns the checksum of a document."""
    return hashlib.sha256(document.encode()).hexdigest()


def differences(everyones: Sequence[Mapping[str, str]]) -> str:
    """Returns what differs and which processes have what, for messages."""
    names = sorted({name for each in everyones for name in each})
    owners = {name: by_value(range(len(everyones)), [each.get(name, _ABSENT) for each in everyones]) for name in names}
    different = [f"{name} ({listed(who)})" for name, who in owners.items() if len(who) > 1]
    more = f", and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return ", ".join(different[:_SHOWN]) + more
