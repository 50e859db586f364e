"""`rx.Checkpoint`: which objects of a training are saved, and how they are restored."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import jax
import numpy as np

import replicax.context as context
from replicax.checkpoint.contents import Contents, ObjectParts, ToSave, is_value, parts_of, replace_values
from replicax.checkpoint.coordination import TIMEOUT_S, Coordination, coordinated
from replicax.checkpoint.deferred import (
    DeferredRestore,
    deferred_restores,
    drop_replaced,
    layers_without,
    values_to_write,
)
from replicax.checkpoint.encoding import (
    SavedArray,
    restored_array,
    restored_state,
    restored_value,
    saved_array,
    saved_state,
    saved_value,
    set_states,
    wanted_array,
    wanted_value,
)
from replicax.checkpoint.foreign import TensorMapping, is_tensorflow, tensorflow_checkpoints
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.metadata import FILE, KINDS, Metadata
from replicax.checkpoint.name_matching import check_kinds, check_names, differences, warn_of_left_out
from replicax.checkpoint.places import Directory, Place, absolute, place_of
from replicax.checkpoint.reading import checked_metadata, read_arrays, read_state
from replicax.checkpoint.same_contents import document_of
from replicax.checkpoint.saving import begin_save
from replicax.checkpoint.sequential_restore import large_variables, restore_in_turn
from replicax.checkpoint.writing import new_directory
from replicax.checks import checked_int
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import AssignableLike, restorations_of
from replicax.errors import ArgumentError, CheckpointError, ElasticError
from replicax.runtime import clock
from replicax.runtime.ending import uninterrupted
from replicax.runtime.memory import give_freed_memory_back
from replicax.typing import PyTree
from replicax.values.tracebacks import entry_point
from replicax.variables import Variable

_log = logging.getLogger(__name__)
_SAVES = "save_counter"
_OVERWRITES = (
    "{path} is there already, and this Checkpoint has neither saved to its folder nor restored from it: it is "
    "replaced. Save each training to a folder of its own. If this one goes on from there, first call "
    "restore(rx.latest_checkpoint(folder))."
)


class Checkpoint(Advised):
    """The state of some objects, to be written to disk and restored, under any strategy and number of devices.

    It stores global values: they can be restored with another strategy, on more or fewer devices or workers.

    Args:
        root: A dict of objects by name, or an object whose variables are stored under the names of its attributes.
        **objects: Objects by name: variables; Keras models, optimizers and metrics; plain objects with variables among
            their attributes; NumPy's random generators; objects with `get_state()` and `set_state(state)`, such as a
            data iterator; and values: arrays, random keys, numbers, strings; lists, tuples, dicts and other pytrees of
            all these.

    Attributes:
        objects: The objects by name. Values cannot change: put new ones here, or pass them to `write`. Each object is
            also an attribute of the checkpoint, which can be read and set: `checkpoint.model`.
        keepers: The managers that save it.

    Raises:
        CheckpointError: There is nothing to save in an object, or a keyword is also an attribute of `root`.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> checkpoint = Checkpoint(w=Variable([1.0, 2.0]), params={"b": jnp.zeros(2)}, step=0)
        >>> path = checkpoint.write(tempfile.mkdtemp() + "/first", step=3, params={"b": jnp.ones(2)})
        >>> checkpoint.restore(path)
        {'params': {'b': Array([1., 1.], dtype=float32)}, 'step': 3}
    """

    def __init__(self, /, root: PyTree = None, **objects: PyTree):
        is_dict = isinstance(root, Mapping)
        clashes = [name for name in objects if (name in root if is_dict else hasattr(root, name))]
        if clashes:
            raise CheckpointError(f"{clashes} are attributes of `root` as well as keywords: rename the keywords.")
        if is_dict and (odd := [name for name in root if not isinstance(name, str)]):
            raise CheckpointError(f"The names of objects are strings, got {odd!r:.100}.")
        self._notes: dict[str, Callable[[], object]] = {}
        self._last_arrays: dict[str, jax.Array] = {}  # the arrays of the last save, where there are no variables
        self._saves: Variable | None = None
        self.keepers = Keepers()
        self._folders: set[Place] = set()  # the folders that it was restored from, or saved to
        self.objects: dict[str, PyTree] = {**({} if root is None else root if is_dict else {"": root}), **objects}
        self.current_parts()

    def __getattr__(self, name: str) -> PyTree:
        try:
            return self.__dict__["objects"][name]
        except KeyError:
            return super().__getattr__(name)  # type: ignore[misc]  # hidden from type checkers

    def __setattr__(self, name: str, value: PyTree) -> None:
        if "objects" not in self.__dict__ or name in self.__dict__ or name.startswith("_") or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            self.objects[name] = value

    def variables(self) -> dict[str, AssignableLike]:
        """Returns the variables by the names that they have in the checkpoint.

        Raises:
            CheckpointError: There is nothing to save in an object.
        """
        return self.current_parts(allow_unbuilt=False).variables

    @entry_point
    @called_as("tf.train.Checkpoint.write")
    def write(self, /, directory: Directory, *, step: int | None = None, **objects: PyTree) -> Place:
        """Writes the objects to a new directory and returns its path when everything is on disk.

        The directory appears only when it is complete. With several processes all of them call this, with a directory
        that all of them see.

        Args:
            directory: The new directory.
            step: The training step, for the metadata; also the new value of a number called `step`.
            **objects: New values for objects of these names.

        Raises:
            ArgumentError: `directory` is not a path, or `step` is not an int of at least 0.
            CheckpointError: The directory exists already, or cannot be written; or a model or optimizer is not built,
                and no restored values wait for it; or the processes save different objects.
        """
        what = ToSave(lambda: self.prepared(step, objects), self.contents_of)
        self._save(directory, lambda: new_directory(directory), what)
        return absolute(directory)

    @entry_point
    @called_as("tf.train.Checkpoint.save")
    def save(self, file_prefix: Directory) -> str:
        """Writes the objects to a new directory called `file_prefix`, `-` and a number, and returns its path.

        The number is that of the saves of this training: `save_counter`, which is saved and restored too. A directory
        that has the name already is replaced when the new one is complete; if it is not known to be this training's
        (because it was restored from the same folder), a warning says so. With several processes all of them call this.

        Args:
            file_prefix: Such as `"training/ckpt"`, which makes `training/ckpt-1`, `training/ckpt-2` and so on.

        Raises:
            ArgumentError: `file_prefix` is not a path.
            CheckpointError: It cannot be written.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> checkpoint = Checkpoint(w=Variable(1.0))
            >>> for _ in range(2):
            ...     path = checkpoint.save(folder + "/ckpt")
            >>> path == folder + "/ckpt-2" == latest_checkpoint(folder)
            True
        """
        name = f"{file_prefix}-{int(self.save_counter.numpy()) + 1}"

        def path_of() -> Place:
            absolute(file_prefix)  # Anything could be a part of the name.
            return absolute(name)

        is_strangers: list[bool] = []

        def agreed() -> None:
            path = path_of()
            is_new = jax.process_index() == 0 and path.parent not in self._folders
            is_strangers.append(is_new and (place_of(path) / FILE).is_file())
            self._folders.add(path.parent)
            self.save_counter.assign_add(1)

        self._save(name, path_of, ToSave(self.prepared, self.contents_of, then=agreed))
        path = path_of()
        if is_strangers[0]:
            warnings.warn(_OVERWRITES.format(path=path), stacklevel=2)
        return str(path)

    def _save(self, name: Directory, path_of: Callable[[], Place], what: ToSave[Prepared]) -> None:
        save = begin_save(f"Writing the checkpoint {name}", name, path_of, what, TIMEOUT_S)
        if save is not None:
            save.wait()

    @property
    def save_counter(self) -> Variable:
        """How often the training was saved by `save` or a manager: an `rx.Variable`, restored with the rest."""
        if self._saves is None:
            with context.entered(strategy=None):
                self._saves = Variable(0, dtype="int32", trainable=False, name="save_counter")
            self.add_note(_SAVES, lambda: int(self.save_counter.numpy()))
        return self._saves

    def contents(self, step: int | None = None, objects: Mapping[str, PyTree] | None = None) -> Contents:
        """Returns what `write` with the same arguments would write now."""
        return self.contents_of(self.prepared(step, objects))

    def prepared(self, step: int | None = None, objects: Mapping[str, PyTree] | None = None) -> Prepared:
        """Returns what is known of the contents before any value is read."""
        step = None if step is None else checked_int("step", step)
        self._update(step, objects or {})
        waiting, missing = values_to_write(self.objects)
        parts = self.current_parts(allow_unbuilt=not missing)
        if missing:
            raise CheckpointError(" ".join(missing))
        state = {name: saved_state(name, part) for name, part in parts.states.items()}
        return Prepared(parts, waiting, state, step)

    def contents_of(self, prepared: Prepared) -> Contents:
        """Returns the contents, with the values that they have now."""
        parts = prepared.parts
        self._warn_of_old_arrays(parts)
        arrays = values_of(parts.variables, parts.states.values()) | prepared.waiting.arrays
        arrays |= {name: saved_array(array) for name, array in parts.arrays.items()}
        # Before it is built, an object may have other variables under the names of values that wait.
        kinds = {name: kinds for name, kinds in parts.kinds.items() if name not in prepared.waiting.arrays}
        notes = {name: note() for name, note in self._notes.items()} | {KINDS: kinds | prepared.waiting.kinds}
        return Contents(arrays, prepared.state, prepared.step, notes)

    def _warn_of_old_arrays(self, parts: ObjectParts) -> None:
        """Says that a save has nothing but the arrays of the last one: they are values, and do not follow training."""
        arrays = {name: array for name, array in parts.arrays.items() if isinstance(array, jax.Array)}
        if parts.variables or not arrays:
            return
        last = self._last_arrays
        if last.keys() == arrays.keys() and all(last[name] is arrays[name] for name in arrays):
            names = sorted({name.partition("/")[0] for name in arrays})
            _log.warning(
                "The checkpoint is saved again with the same arrays, %s. If they have changed, give it the new ones: "
                "save(step, %s=...).",
                ", ".join(map(repr, names)),
                "=..., ".join(names),
            )
        self._last_arrays = arrays

    @entry_point
    @called_as("tf.train.Checkpoint.restore")
    def restore(
        self,
        save_path: Directory | None,
        *,
        partial: bool = False,
        verify: bool = True,
        mapping: TensorMapping | None = None,
        strict: bool = True,
    ) -> LoadStatus:
        """Gives the objects the state in a checkpoint: all of them, or none if anything is wrong.

        Keras models and optimizers that are not built have no variables yet. Their values are read now and wait in
        host memory; they get them when they are built, by their first call or update, before anything is computed with
        them.

        A checkpoint of TensorFlow's is restored as well, whatever wrote it: `tf.train.Checkpoint`, Keras 2, a
        SavedModel, `tf.compat.v1.train.Saver` or an Estimator. Its tensors are matched with Keras 3's variables and
        optimizer slots: by object path, then by the layers' names, order and shapes. It is an error if there are two
        ways to match them.

        Args:
            save_path: The path that `write` or `save` returned. With None (what `rx.latest_checkpoint` returns
                if there is no checkpoint) all objects stay as they are. Or a checkpoint of TensorFlow's: its prefix
                (`"logs/ckpt-3"`), a folder with its file `checkpoint`, a SavedModel, or an HDF5 file of weights.
            partial: Whether the checkpoint and the objects may have names that the other lacks. A warning lists them.
            verify: Whether to compare the checksums of what is read, beside the reading.
            mapping: For a checkpoint of TensorFlow's: a dict of names in it (with `*` for any part) and the variables,
                or their names here, that they belong to, None for what is left out; or a function that returns these
                for a name.
            strict: The opposite of `partial`.

        Returns:
            A dict of the objects that have values in them, by name, with the restored values. They are also in
            `objects`. Its methods, such as `assert_consumed`, are those of TensorFlow's status.

        Raises:
            ArgumentError: `save_path` is not a path; or there is a `mapping` and the checkpoint is replicax's own.
            CheckpointError: There is no complete checkpoint, it is damaged, a name is missing on either side, or a
                shape or the kind of an optimizer or random key differs; or it is not clear which tensor of TensorFlow's
                belongs to which variable. An object's `build` raises it if it turns out then to be another object.
        """
        return restore_within(TIMEOUT_S, self, save_path, partial or not strict, verify, mapping)

    @clock.restoring
    def _restore(
        self, path: Place, folder: Place, partial: bool, verify: bool, mapping: TensorMapping | None, timeout_s: float
    ) -> LoadStatus:
        name = f"Restoring the checkpoint {path}"
        if not (path / FILE).is_file() and is_tensorflow(path):
            coordination = Coordination(name, timeout_s)
            coordination.check_same("directory", str(path))
            status, saves = tensorflow_checkpoints().restore_tensorflow(
                path, self.objects, coordination, mapping, not partial, verify
            )
            if saves is not None:
                self.save_counter.assign(saves)
            return status
        if mapping is not None:
            raise ArgumentError(f"`mapping` is for checkpoints of TensorFlow's; {path} is none.")

        def read() -> ReadCheckpoint:
            return self._read(path, partial, verify)

        def read_together(coordination: Coordination) -> ReadCheckpoint:
            coordination.check_same("directory", str(path))
            found = coordination.run("read", read, f"The checkpoint {path} could not be restored")
            coordination.end()
            return found

        found = coordinated(name, timeout_s, read_together, alone=read)
        with uninterrupted():
            return self._take(path, folder, found, partial)

    def _take(self, path: Place, folder: Place, found: ReadCheckpoint, partial: bool) -> LoadStatus:
        """Gives the objects what was read."""
        parts, states = found.parts, found.states
        set_states({name: parts.states[name] for name in states if not is_value(parts.states[name])}, states)
        for name, variable in parts.variables.items():
            if name in found.values:
                variable.assign(restored_value(found.values[name], variable))
        restore_in_turn(path, found.large, parts.variables, found.metadata)
        drop_replaced(self.objects, [*found.values, *found.large], found.waiting)
        for each in found.waiting:
            each.wait(lambda: self.current_parts().variables, partial)
        unused, unmatched = differences(found.names, found.expected)
        if partial and jax.process_index() == 0:
            warn_of_left_out(path, found.names, found.expected)
        self._restored(found, folder)
        matched = len(found.values) + len(found.large) + len(states)
        return LoadStatus(self._take_values(found), path, matched, unused, unmatched, found.waiting)

    @entry_point
    @called_as("tf.train.Checkpoint.read")
    def read(self, save_path: Directory) -> LoadStatus:
        """Restores a checkpoint, but leaves `save_counter` as it is; otherwise like `restore`."""
        counter = int(self.save_counter.numpy())
        status = self.restore(absolute(save_path))
        self.save_counter.assign(counter)
        return status

    def _read(self, path: Place, partial: bool, verify: bool) -> ReadCheckpoint:
        """Reads what a checkpoint has for the objects, in this process."""
        parts, metadata = self.current_parts(), checked_metadata(path)
        written = read_state(path, metadata, verify)
        names = [*metadata.arrays, *written[0]]
        waiting = deferred_restores(path, self.objects, parts, metadata, partial)
        later = {name: spec for each in waiting for name, spec in each.wanted.items()}
        covered = {name for name in parts.variables if any(each.covers(name) for each in waiting)}
        variables = {name: v for name, v in parts.variables.items() if name not in covered}
        kinds = {name: each for name, each in parts.kinds.items() if name not in covered}
        parts = dataclasses.replace(parts, variables=variables, kinds=kinds)
        expected = [*parts.names(), *later]
        if not partial:
            check_names(path, names, expected, lambda unused: layers_without(self.objects, unused))
        check_kinds(path, parts, metadata, written[0], partial)
        wanted = {name: wanted_value(variable) for name, variable in parts.variables.items()}
        wanted |= {name: wanted_array(array) for name, array in parts.arrays.items()}
        known = {name: spec for name, spec in wanted.items() if name in metadata.arrays}
        states = {
            name: restored_state(name, written, jax.process_index(), jax.process_count())
            for name in parts.states
            if name in written[0]
        }
        large = large_variables(path, known, parts.variables, metadata, verify)
        small = {name: spec for name, spec in known.items() if name not in large}
        values = read_arrays(path, small | later, metadata, verify)
        for each in waiting:
            each.values = {name: np.asarray(values.pop(name)) for name in each.wanted}
        return ReadCheckpoint(path, names, expected, parts, values, large, states, waiting, metadata)

    def _restored(self, found: ReadCheckpoint, folder: Place) -> None:
        """Notes the folder and the counter of a checkpoint that was restored."""
        count = found.metadata.noted_number(_SAVES)
        if count is not None:
            self.save_counter.assign(count)
        self._folders.add(folder)

    def add_note(self, name: str, note: Callable[[], object]) -> None:
        """Adds to the metadata of each checkpoint what `note()` returns then: something small that JSON can hold."""
        self._notes[name] = note

    def current_parts(self, allow_unbuilt: bool = True) -> ObjectParts:
        """Returns the parts of the objects; of those that are not built what they have by now, if that is allowed."""
        return parts_of(self.objects, allow_unbuilt)

    def _update(self, step: int | None, objects: Mapping[str, PyTree]) -> None:
        unknown = [name for name in objects if name not in self.objects]
        if unknown:
            raise CheckpointError(f"The checkpoint has no objects {unknown}. It has: {', '.join(self.objects)}.")
        self.objects.update(objects)
        if step is not None and type(self.objects.get("step")) is int:
            self.objects["step"] = step

    def _take_values(self, found: ReadCheckpoint) -> dict[str, PyTree]:
        parts, values, states = found.parts, found.values, found.states
        new: dict[str, PyTree] = {
            name: restored_array(values[name], old) for name, old in parts.arrays.items() if name in values
        }
        new |= {name: states[name] for name, old in parts.states.items() if name in states and is_value(old)}
        return replace_values(self.objects, parts, new)


def _check_none(coordination: Coordination) -> None:
    """Checks that no process restores a checkpoint: it would wait for the others, and train with other values."""
    coordination.check_same("directory", "None")
    coordination.end()


# The parts of a checkpoint as they are known before it is written, and when it was read.


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The contents of a checkpoint that is to be written, as known before any variable's value is read."""

    parts: ObjectParts
    waiting: ObjectParts  # restored values that wait for objects to be built
    state: dict[str, dict[str, object]]  # encoded, by name
    step: int | None

    def document(self) -> str:
        """Returns what all processes must have alike, for `Save.agree`."""
        arrays = {name: wanted_value(variable) for name, variable in self.parts.variables.items()}
        arrays |= {name: wanted_array(array) for name, array in self.parts.arrays.items()}
        return document_of({**arrays, **self.waiting.arrays}, self.state, self.step)


@dataclasses.dataclass(frozen=True)
class ReadCheckpoint:
    """The values, states and metadata that were read of a checkpoint, for some objects."""

    path: Place
    names: list[str]  # in it
    expected: list[str]  # names in the objects
    parts: ObjectParts
    values: dict[str, jax.Array | np.ndarray]  # of variables and arrays
    large: dict[str, jax.ShapeDtypeStruct]  # how large variables are to be read, when all is known to be there
    states: dict[str, PyTree]
    waiting: list[DeferredRestore]
    metadata: Metadata


def restore_within(
    timeout_s: float,
    checkpoint: Checkpoint,
    save_path: Directory | None,
    partial: bool = False,
    verify: bool = True,
    mapping: TensorMapping | None = None,
) -> LoadStatus:
    """Restores a checkpoint as its `restore` does; each stage of the other processes may take `timeout_s`."""
    if save_path is None:
        coordinated("Restoring no checkpoint", timeout_s, _check_none, alone=lambda: None)
        return LoadStatus({}, None)
    path = absolute(save_path)
    status = checkpoint._restore(place_of(save_path), path.parent, partial, verify, mapping, timeout_s)
    checkpoint.keepers.note_restored(path)
    give_freed_memory_back()  # The buffers of files.
    return status


# Managers know what they have saved; so do their counterparts in a worker that joins later.


class Keeper(Protocol):
    """An object that saves a checkpoint, such as a manager."""

    def get_state(self) -> dict[str, PyTree]:
        """Returns what it knows, in a form that JSON can hold."""

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Goes on where that of another worker is, which has returned `state`."""

    def note_restored(self, path: Place) -> None:
        """Notes that the checkpoint was restored from a path, which may be one of its own."""


class Keepers:
    """All that save one checkpoint, as long as they live."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Keeper]] = []

    def add(self, keeper: Keeper) -> None:
        self._known.append(weakref.ref(keeper))

    def get_states(self) -> list[dict[str, PyTree]]:
        return [keeper.get_state() for keeper in self._alive()]

    def set_states(self, states: Sequence[Mapping[str, PyTree]]) -> None:
        """Gives all of them the states of another worker's."""
        alive = self._alive()
        if len(alive) != len(states):
            raise ElasticError(
                f"{len(alive)} managers save the checkpoint that strategy.join was given, and in the workers that "
                f"train {len(states)} do. All workers must run the same script: make managers before they join."
            )
        for keeper, state in zip(alive, states, strict=True):
            keeper.set_state(state)

    def note_restored(self, path: Place) -> None:
        for keeper in self._alive():
            keeper.note_restored(path)

    def _alive(self) -> list[Keeper]:
        return [keeper for reference in self._known if (keeper := reference()) is not None]


# The values of variables at one moment, for a checkpoint.


_SECONDS_BETWEEN_LOOKS = 0.05  # at a recovery of servers, which has a limit of its own


def values_of(variables: Mapping[str, AssignableLike], states: Iterable[object] = ()) -> dict[str, SavedArray]:
    """Returns the values of variables: all from before, or all from after a lost parameter server was replaced."""
    with contextlib.ExitStack() as stack:
        for state in states:
            # A strategy of islands knows what this island's own values mean.
            if hasattr(state, "own_values"):
                stack.enter_context(state.own_values())
        return _values_at_once(variables)


def _values_at_once(variables: Mapping[str, AssignableLike]) -> dict[str, SavedArray]:
    while True:
        before = _restorations(variables)
        # In the order of their names, the same in all processes: reading some of them is a computation of all.
        values = {name: saved_value(variable) for name, variable in sorted(variables.items(), key=lambda item: item[0])}
        if before == _restorations(variables) and not any(count % 2 for count in before):
            return values
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _restorations(variables: Mapping[str, AssignableLike]) -> set[int]:
    """Returns how many beginnings and ends of recoveries of servers there have been: odd during a recovery."""
    return {restorations_of(variable) for variable in variables.values()}
