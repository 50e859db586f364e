"""Checks, before anything is written, that all processes write the same arrays and states to a checkpoint.

Each process writes the parts that its devices hold, and the chief describes the whole. Processes that save different
objects would leave a checkpoint whose files fit neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from replicax.checkpoint.contents import Contents
from replicax.checkpoint.coordination import Coordination
from replicax.cluster.exchange import by_value, listed
from replicax.errors import CheckpointError

_STEP = "the step"
_SHOWN = 5
_ABSENT = "nothing"


def check_same_contents(coordination: Coordination, contents: Contents) -> None:
    """Checks that all processes save the same names, with the same shapes and dtypes, for the same step."""
    own = described(contents)
    document = json.dumps(own, sort_keys=True)  # The order of the names does not matter.
    digest = hashlib.sha256(document.encode()).hexdigest()
    # Only a checksum travels, unless it differs.
    if len(set(coordination.all_values("checksum of the names", digest))) == 1:
        return
    everyones = [json.loads(each) for each in coordination.all_values("names", document)]
    raise CheckpointError(
        f"{coordination.name}: all processes save the same objects, under the same names and for the same step, but "
        f"these differ: {differences(everyones)}. Nothing was written. Make the rx.Checkpoint with the same objects in "
        "all processes, and give its methods the same arguments."
    )


def described(contents: Contents) -> dict[str, str]:
    """Returns what all processes must have alike: the step, and what is under each name."""
    arrays = {
        repr(name): f"{np.dtype(array.dtype).name}{list(np.shape(array))}" for name, array in contents.arrays.items()
    }
    states = {repr(name): "a value or state" for name in contents.state}
    return {_STEP: str(contents.step), **arrays, **states}


def differences(everyones: Sequence[Mapping[str, str]]) -> str:
    """Returns what differs and which processes have what, for messages."""
    names = sorted({name for each in everyones for name in each})
    owners = {name: by_value(range(len(everyones)), [each.get(name, _ABSENT) for each in everyones]) for name in names}
    different = [f"{name} ({listed(who)})" for name, who in owners.items() if len(who) > 1]
    more = f", and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return ", ".join(different[:_SHOWN]) + more
