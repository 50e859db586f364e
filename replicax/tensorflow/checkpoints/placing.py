"""Reading tensors into variables: one at a time, each device its own part, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from replicax.checkpoint.encoding import wanted_value
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.matches import Match
from replicax.tensorflow.checkpoints.reader import TensorFlowCheckpoint

_WHOLE_BYTES = 1 << 24  # Tensors up to this size are read once, and cut; larger ones once for each part.


def verify(checkpoint: TensorFlowCheckpoint, matches: Iterable[Match], is_whole: bool = True) -> None:
    """Reads, and drops, all tensors that are to be restored: checks that they are undamaged and fit their targets."""
    for match in matches:
        info = checkpoint.tensors.get(match.tensor)
        if info is None:
            continue  # A number that was computed, or one of a configuration.
        # Integers that might not fit are read even if not all tensors are to be.
        narrower = match.value is None and info.dtype != match.target.dtype and match.target.dtype.kind in "iu"
        if narrower:
            _converted(checkpoint.read(match.tensor), match, checkpoint)
        elif is_whole:
            checkpoint.read(match.tensor, (slice(0, 0),) if info.shape else None)


def value_of(checkpoint: TensorFlowCheckpoint, match: Match, index: tuple[slice, ...] | None = None) -> np.ndarray:
    """Returns the values of a match, or a part of them, in the dtype of the variable."""
    if match.value is not None:
        return match.value if index is None else match.value[index]
    return _converted(checkpoint.read(match.tensor, index), match, checkpoint)


def placed_value(checkpoint: TensorFlowCheckpoint, match: Match) -> jax.Array | np.ndarray:
    """Returns the value of a match in the layout of its variable; no other tensor is in memory meanwhile."""
    assert match.target.variable is not None
    wanted = wanted_value(match.target.variable)
    if wanted.sharding is None or not match.target.shape:
        return value_of(checkpoint, match)
    parts = wanted.sharding.addressable_devices_indices_map(wanted.shape).values()
    is_cut = len({str(index) for index in parts}) > 1
    if is_cut and checkpoint.tensors[match.tensor].nbytes > _WHOLE_BYTES:
        read: dict[str, np.ndarray] = {}
        whole = None
    else:
        whole = value_of(checkpoint, match)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        if whole is not None:
            return whole if index is None else whole[index]
        if str(index) not in read:
            read.clear()  # Devices of one part come one after the other in most layouts.
            read[str(index)] = value_of(checkpoint, match, index)
        return read[str(index)]

    return jax.make_array_from_callback(wanted.shape, wanted.sharding, part)


def _converted(values: np.ndarray, match: Match, checkpoint: TensorFlowCheckpoint) -> np.ndarray:
    if match.scale is not None:
        values = values * np.asarray(match.scale, values.dtype)
    dtype = match.target.dtype
    if values.dtype == dtype:
        return values
    converted = values.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, values):
        raise CheckpointError(
            f"{checkpoint.shown(match.tensor)!r} in {checkpoint.path} has numbers that {dtype}, the dtype of "
            f"{match.target.name!r}, cannot hold: {values[converted != values].ravel()[:3].tolist()}."
        )
    return converted
