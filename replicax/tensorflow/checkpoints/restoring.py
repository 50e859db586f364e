"""Restoring a checkpoint of TensorFlow's into objects here; what `rx.Checkpoint.restore` calls for such a path."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint.contents import with_values
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.deferred import DeferredRestore, drop_replaced
from replicax.checkpoint.encoding import wanted_value
from replicax.checkpoint.foreign import TensorMapping
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.name_matching import warn_of_left_out
from replicax.checkpoint.unbuilt import unbuilt_objects
from replicax.contracts.variable_access import AssignableLike
from replicax.errors import CheckpointError
from replicax.program.keras.state import give_value
from replicax.runtime.ending import uninterrupted
from replicax.tensorflow.checkpoints.layer_order import order_note
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.matching import matched
from replicax.tensorflow.checkpoints.reader import TensorFlowCheckpoint, open_checkpoint
from replicax.typing import Leaf, PyTree

if TYPE_CHECKING:
    from replicax.checkpoint.variable_names import KerasObject

_log = logging.getLogger(__name__)
_COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
_WHOLE_BYTES = 1 << 24  # Tensors up to this size are read once, and cut; larger ones once for each part.


def restore_tensorflow(
    path: Path,
    objects: dict[str, PyTree],  # Values in it that are no variables are replaced.
    coordination: Coordination,
    mapping: TensorMapping | None,
    strict: bool,
    should_verify: bool,
) -> tuple[LoadStatus, int | None]:
    """Restores a checkpoint, in all processes; returns what was restored, and the number of saves if there is one."""

    def prepared() -> tuple[TensorFlowRestore, Matches]:
        restore = TensorFlowRestore(path, objects, mapping, strict, should_verify)
        return restore, restore.prepare()

    restore, matches = coordination.run("read", prepared, f"The checkpoint {path} could not be restored")
    coordination.end()
    with uninterrupted():
        drop_replaced(objects, [match.target.path for match in matches.found.values()], ())
        return restore.run(matches), restore.saves()


class TensorFlowRestore:
    """A restore, which goes on while there are models and optimizers that are not built."""

    def __init__(
        self,
        path: Path,
        objects: dict[str, PyTree],
        mapping: TensorMapping | None,
        strict: bool,
        should_verify: bool,
    ):
        self.checkpoint: TensorFlowCheckpoint = open_checkpoint(path)
        self._path, self._objects, self._mapping = path, objects, mapping
        self._strict, self._should_verify = strict, should_verify
        self._done: set[str] = set()  # Paths of targets, in checkpoints of replicax.

    def prepare(self) -> Matches:
        """Matches everything that is built, reads it once, and returns the matches; it changes nothing."""
        waiting = unbuilt_objects(self._objects)
        matches = matched(self.checkpoint, self._objects, self._mapping)
        matches.check(self._strict, is_final=not waiting)
        _verify(self.checkpoint, matches.found.values(), self._should_verify)
        return matches

    def run(self, matches: Matches) -> LoadStatus:
        """Assigns what was matched; the rest waits. Returns what was restored."""
        variables = {name: match for name, match in matches.found.items() if match.target.variable is not None}
        self._done.update(match.target.path for match in matches.found.values())
        before = None
        for match in variables.values():
            assert match.target.variable is not None
            value = _placed_value(self.checkpoint, match)
            match.target.variable.assign(value)
            jax.block_until_ready(before)  # Otherwise the host holds what is on its way to the devices, of all tensors.
            before = value
        new = {
            match.target.path: _like(_value_of(self.checkpoint, match), match.target.old)
            for name, match in matches.found.items()
            if name not in variables
        }
        waiting = [
            Waiting(self._path, path, target, self.advance) for path, target in unbuilt_objects(self._objects).items()
        ]
        for each in waiting:
            each.wait(dict, not self._strict)
        unused = [] if waiting else matches.unused
        _tell(matches, self._path, unused, self._strict)
        values = self._take(new)
        return LoadStatus(
            values,
            self._path,
            len(matches.found),
            list(map(matches.shown, unused)),
            matches.unmatched,
            waiting,
            notes(matches),
        )

    def advance(self) -> None:
        """Matches everything anew when an object has been built, and gives its variables their values."""
        # Only now are the names and shapes of the new variables known.
        waiting = unbuilt_objects(self._objects)
        matches = matched(self.checkpoint, self._objects, self._mapping)
        matches.check(self._strict, is_final=not waiting)
        new = [each for each in matches.found.values() if each.target.path not in self._done]
        _verify(self.checkpoint, new, self._should_verify)
        for match in new:
            if match.target.variable is not None:
                give_value(match.target.variable, np.asarray(_value_of(self.checkpoint, match)))
            self._done.add(match.target.path)
        if not waiting:
            _tell(matches, self._path, matches.unused, self._strict)

    def saves(self) -> int | None:
        """Returns the number of saves that the checkpoint has noted."""
        return int(self.checkpoint.read(_COUNTER)) if _COUNTER in self.checkpoint.tensors else None

    def _take(self, new: Mapping[str, Leaf]) -> dict[str, PyTree]:
        restored = {}
        for name, value in self._objects.items():
            if any(path == name or path.startswith(f"{name}/") for path in new):
                restored[name] = self._objects[name] = with_values(value, name, new)
        return restored


class Waiting(DeferredRestore):
    """An object that is not built, for which the checkpoint may have values."""

    def __init__(self, directory: Path, path: str, target: KerasObject, advance: Callable[[], None]):
        super().__init__(directory, path, target, {})
        self._advance = advance

    @property
    def is_missed(self) -> bool:
        return not self.is_done

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def lacks_variables(self) -> bool:
        return True

    def to_write(self, path: str) -> dict[str, np.ndarray]:
        raise CheckpointError(
            f"{path or 'root'!r} is to get its values from {self.directory} when it is built: {self.what_to_do()}"
        )

    def _assign(self, variables: Mapping[str, AssignableLike], partial: bool) -> None:
        self._advance()
        self.is_done = True


def notes(matches: Matches) -> list[str]:
    """Returns what a user should know, as sentences: what was left out on purpose, and what is doubtful."""
    return [*_left_out(matches), *matches.notes, *order_note(matches), *matches.doubts]


def _left_out(matches: Matches) -> list[str]:
    said = [f"{matches.shown(name)!r} in the checkpoint was left out: {why}." for name, why in matches.ignored.items()]
    return said + [f"{name!r} is as before: {why}." for name, why in matches.kept.items()]


def _tell(matches: Matches, path: Path, unused: list[str], strict: bool) -> None:
    for note in [*_left_out(matches), *order_note(matches)]:
        _log.info("%s", note)
    if not strict:
        for doubt in matches.doubts:
            _log.warning("%s", doubt)
        found = [each.target.name for each in matches.found.values()]
        warn_of_left_out(path, [*found, *map(matches.shown, unused)], [*found, *matches.unmatched])


def _like(value: np.ndarray, old: Leaf) -> Leaf:
    """Returns a value of the kind that it replaces: a number for a number."""
    if isinstance(old, (bool, int, float)):
        return type(old)(value)
    if isinstance(old, np.generic):
        return old.dtype.type(value)
    if isinstance(old, np.ndarray):
        return value
    return jax.device_put(value, old.sharding) if old.committed else jnp.asarray(value)


# Reading tensors into variables: one at a time, each device its own part, whatever the layout.


def _verify(checkpoint: TensorFlowCheckpoint, matches: Iterable[Match], is_whole: bool = True) -> None:
    """Reads, and drops, all tensors that are to be restored: checks that they are undamaged and fit their targets."""
    for match in matches:
        info = checkpoint.tensors.get(match.tensor)
        if info is None:
            if match.value is None:  # Else it is a number that was computed, or one of a configuration.
                checkpoint.read(match.tensor)  # It raises: the checkpoint names a tensor that it has not.
            continue
        # Integers that might not fit are read even if not all tensors are to be.
        narrower = match.value is None and info.dtype != match.target.dtype and match.target.dtype.kind in "iu"
        if narrower:
            _converted(checkpoint.read(match.tensor), match, checkpoint)
        elif is_whole:
            checkpoint.read(match.tensor, (slice(0, 0),) if info.shape else None)


def _value_of(checkpoint: TensorFlowCheckpoint, match: Match, index: tuple[slice, ...] | None = None) -> np.ndarray:
    """Returns the values of a match, or a part of them, in the dtype of the variable."""
    if match.value is not None:
        return match.value if index is None else match.value[index]
    return _converted(checkpoint.read(match.tensor, index), match, checkpoint)


def _placed_value(checkpoint: TensorFlowCheckpoint, match: Match) -> jax.Array | np.ndarray:
    """Returns the value of a match in the layout of its variable; no other tensor is in memory meanwhile."""
    assert match.target.variable is not None
    wanted = wanted_value(match.target.variable)
    if wanted.sharding is None or not match.target.shape:
        return _value_of(checkpoint, match)
    parts = wanted.sharding.addressable_devices_indices_map(wanted.shape).values()
    is_cut = len({str(index) for index in parts}) > 1
    if is_cut and checkpoint.tensors[match.tensor].nbytes > _WHOLE_BYTES:
        read: dict[str, np.ndarray] = {}
        whole = None
    else:
        whole = _value_of(checkpoint, match)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        if whole is not None:
            return whole if index is None else whole[index]
        if str(index) not in read:
            read.clear()  # Devices of one part come one after the other in most layouts.
            read[str(index)] = _value_of(checkpoint, match, index)
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
