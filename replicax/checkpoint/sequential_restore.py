"""Restoring large variables one after the other, so that no device holds the old and the new values of all of them.

Everything is checked before the first variable changes: the files' names, sizes and checksums, in all processes. After
that only a disk that fails between the two readings leaves some variables restored and others not; the error says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from replicax.checkpoint.encoding import restored_value
from replicax.checkpoint.metadata import Metadata
from replicax.checkpoint.places import Place
from replicax.checkpoint.reading import check_arrays, read_arrays
from replicax.contracts.variable_access import AssignableLike
from replicax.errors import CheckpointError

_Wanted = Mapping[str, jax.ShapeDtypeStruct]

_LARGE_BYTES = 1 << 30  # Fewer bytes together are all read before the first changes: that is faster by a third.


def large_variables(
    path: Place, wanted: _Wanted, variables: Mapping[str, AssignableLike], metadata: Metadata, verify: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns what `restore_in_turn` is to restore, after a check that it can be read; empty if all of it is small."""
    chosen = {name: spec for name, spec in wanted.items() if name in variables and spec.sharding is not None}
    if sum(map(_bytes, chosen.values())) < _LARGE_BYTES:
        return {}
    check_arrays(path, chosen, metadata, verify)
    return chosen


def restore_in_turn(path: Place, wanted: _Wanted, variables: Mapping[str, AssignableLike], metadata: Metadata) -> None:
    """Gives variables their values, some at a time: no more bytes than the largest has."""
    restored = 0
    for group in _groups(wanted):
        try:
            values = read_arrays(path, group, metadata, verify=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} {restored} of {len(wanted)} large variables have been restored, and the others not: restore "
                "again, or take an earlier checkpoint."
            ) from error
        for name in group:
            variables[name].assign(restored_value(values.pop(name), variables[name]))
        restored += len(group)


def _groups(wanted: _Wanted) -> Iterator[dict[str, jax.ShapeDtypeStruct]]:
    largest = max(map(_bytes, wanted.values()), default=0)
    group: dict[str, jax.ShapeDtypeStruct] = {}
    for name, spec in wanted.items():
        if group and sum(map(_bytes, group.values())) + _bytes(spec) > largest:
            yield group
            group = {}
        group[name] = spec
    if group:
        yield group


def _bytes(spec: jax.ShapeDtypeStruct) -> int:
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
