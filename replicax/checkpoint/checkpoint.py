"""The state of a training: what is saved of it, and how it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from replicax.checkpoint.meeting import Meeting
from replicax.checkpoint.metadata import Metadata
from replicax.checkpoint.parts import Parts, is_value, parts_of, rebuilt
from replicax.checkpoint.reading import checked_metadata, read_arrays, read_state
from replicax.checkpoint.state import (
    check_names,
    restored_array,
    restored_value,
    saved_array,
    saved_value,
    wanted_array,
    wanted_value,
    warn_of_left_out,
)
from replicax.checkpoint.states import current_state, restored_state, saved_state, set_state
from replicax.checkpoint.store import TIMEOUT_S, Contents, Directory, absolute, write
from replicax.errors import CheckpointError

_SECONDS_BETWEEN_LOOKS = 0.05


class Checkpoint:
    """The state of some objects, to be written to disk and restored, under any strategy and number of devices.

    What is stored are global values: they can be restored with another strategy, on more or fewer devices or workers.

    Args:
        root: A dict of objects by name, or an object whose variables are stored under the names of its attributes.
        **objects: Objects by name: variables; Keras models, optimizers and metrics; plain objects with variables among
            their attributes; NumPy's random generators; objects with `get_state()` and `set_state(state)`, such as a
            data iterator; and values: arrays, random keys, numbers, strings; lists, tuples, dicts and other pytrees of
            all these.

    Attributes:
        objects: The objects by name. Values cannot change: put new ones here, or pass them to `write`.

    Raises:
        CheckpointError: There is nothing to save in an object, or a keyword is also an attribute of `root`.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> checkpoint = Checkpoint(w=Variable([1.0, 2.0]), params={"b": jnp.zeros(2)}, step=0)
        >>> path = checkpoint.write(tempfile.mkdtemp() + "/first", step=3, params={"b": jnp.ones(2)})
        >>> checkpoint.restore(path)
        {'params': {'b': Array([1., 1.], dtype=float32)}, 'step': 3}
    """

    def __init__(self, root: Any = None, **objects: Any):
        is_dict = isinstance(root, Mapping)
        clashes = [name for name in objects if (name in root if is_dict else hasattr(root, name))]
        if clashes:
            raise CheckpointError(f"{clashes} are attributes of `root` as well as keywords: rename the keywords.")
        self.objects: dict[str, Any] = {**({} if root is None else root if is_dict else {"": root}), **objects}
        self._notes: dict[str, Callable[[], Any]] = {}
        self._parts()

    def variables(self) -> dict[str, Any]:
        """Returns the variables by the names that they have in the checkpoint.

        Raises:
            CheckpointError: There is nothing to save in an object.
        """
        return self._parts().variables

    def write(self, directory: Directory, step: int | None = None, **objects: Any) -> Path:
        """Writes the objects to a new directory and returns its path when all is on disk.

        The directory appears only when it is complete. With several processes all of them call this, with a directory
        that all of them see.

        Args:
            directory: Where to.
            step: The training step, for the metadata; also the new value of a number called `step`.
            **objects: New values for objects of these names.

        Raises:
            ArgumentError: `directory` is no path.
            CheckpointError: The directory exists already, or cannot be written.
        """
        return write(directory, self.contents(step, objects))

    def contents(self, step: int | None = None, objects: Mapping[str, Any] | None = None) -> Contents:
        """Returns what is to be written now; the arguments are those of `write`."""
        self._update(step, objects or {})
        parts = self._parts()
        arrays = _values(parts.variables)
        arrays |= {name: saved_array(array) for name, array in parts.arrays.items()}
        state = {name: saved_state(name, part) for name, part in parts.states.items()}
        return Contents(arrays, state, step, {name: note() for name, note in self._notes.items()})

    def restore(self, directory: Directory, partial: bool = False, verify: bool = True) -> dict[str, Any]:
        """Gives the objects the state in a checkpoint: all of them, or none if anything is wrong.

        Args:
            directory: Where `write` put it.
            partial: Whether the checkpoint and the objects may have names that the other lacks. A warning lists them.
            verify: Whether to compare the checksums of what is read, beside the reading.

        Returns:
            The objects that have values in them, by name, with the restored values. They are in `objects` as well.

        Raises:
            ArgumentError: `directory` is no path.
            CheckpointError: There is no complete checkpoint, it is damaged, a name is missing on either side, or a
                shape differs.
        """
        path = absolute(directory)
        meeting = Meeting(f"Restoring the checkpoint {path}", TIMEOUT_S)
        failed = f"The checkpoint {path} could not be restored"
        meeting.check_same("directory", str(path))
        names, parts, values, states = meeting.act("read", lambda: self._read(path, partial, verify), failed)
        meeting.end()
        _set_states({name: parts.states[name] for name in states if not is_value(parts.states[name])}, states)
        for name, variable in parts.variables.items():
            if name in values:
                variable.assign(restored_value(values[name], variable))
        if partial and jax.process_index() == 0:
            warn_of_left_out(path, names, parts.names(), self.objects)
        return self._take_values(parts, values, states)

    def _read(self, path: Path, partial: bool, verify: bool) -> tuple[list[str], Parts, dict[str, Any], dict[str, Any]]:
        """Returns the names in a checkpoint, the parts of the objects, and what it has for them.

        That are arrays, and states of this process.
        """
        parts, metadata = self._parts(), checked_metadata(path)
        written = read_state(path, metadata, verify)
        names = [*metadata.arrays, *written[0]]
        if not partial:
            check_names(path, names, parts.names(), self.objects)
        _check_kinds(path, parts, metadata, written[0])
        wanted = {name: wanted_value(variable) for name, variable in parts.variables.items()}
        wanted |= {name: wanted_array(array) for name, array in parts.arrays.items()}
        known = {name: spec for name, spec in wanted.items() if name in metadata.arrays}
        states = {
            name: restored_state(name, written, jax.process_index(), jax.process_count())
            for name in parts.states
            if name in written[0]
        }
        return names, parts, read_arrays(path, known, metadata, verify), states

    def add_note(self, name: str, note: Callable[[], Any]) -> None:
        """Has every checkpoint's metadata hold what `note()` returns then: something small that JSON can hold."""
        self._notes[name] = note

    def _parts(self) -> Parts:
        return parts_of(self.objects)

    def _update(self, step: int | None, objects: Mapping[str, Any]) -> None:
        unknown = [name for name in objects if name not in self.objects]
        if unknown:
            raise CheckpointError(f"The checkpoint has no objects {unknown}. It has: {', '.join(self.objects)}.")
        self.objects.update(objects)
        if step is not None and type(self.objects.get("step")) is int:
            self.objects["step"] = int(step)

    def _take_values(self, parts: Parts, values: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
        new = {name: restored_array(values[name], old) for name, old in parts.arrays.items() if name in values}
        new |= {name: states[name] for name, old in parts.states.items() if name in states and is_value(old)}
        names = [*parts.arrays, *(name for name, part in parts.states.items() if is_value(part))]
        restored = {}
        for name, value in self.objects.items():
            if any(path == name or path.startswith(f"{name}/") for path in names):
                restored[name] = self.objects[name] = rebuilt(value, name, new)
        return restored


def _check_kinds(directory: Directory, parts: Parts, metadata: Metadata, state: Mapping[str, Any]) -> None:
    for name in parts.names():
        is_array, has = name not in parts.states, "an array" if name in metadata.arrays else "no array"
        if (name in metadata.arrays and not is_array) or (name in state and is_array):
            raise CheckpointError(
                f"{name!r} is {has} in the checkpoint {directory}, and {'an' if is_array else 'no'} array here."
            )


def _set_states(targets: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Sets the states of objects, of all or of none."""
    before = {name: current_state(target) for name, target in targets.items()}
    done: list[str] = []
    try:
        for name, target in targets.items():
            done.append(name)
            set_state(target, states[name])
    except Exception as error:
        for name in done[:-1]:
            set_state(targets[name], before[name])
        raise CheckpointError(f"{done[-1]!r} does not take the state in the checkpoint: {error!r}") from error


def _values(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of variables, all from before or all from after a parameter server was lost and replaced."""
    while True:
        before = _restorations(variables)
        values = {name: saved_value(variable) for name, variable in variables.items()}
        if before == _restorations(variables) and not any(count % 2 for count in before):
            return values
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _restorations(variables: Mapping[str, Any]) -> set[int]:
    """Returns how many beginnings and ends of recoveries of servers there have been: odd during one."""
    return {getattr(variable, "_replicax_restorations", 0) for variable in variables.values()}
