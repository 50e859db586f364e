"""Restoring Keras models and optimizers that are not built: the values wait until their variables are made.

Such an object makes its variables in its `build`, on its first call or update, perhaps in the middle of a traced step.
The values have been read and checked by then and wait in host memory; when `build` ends, the variables get them, before
anything is computed with them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from replicax.checkpoint.contents import ObjectParts
from replicax.checkpoint.metadata import Entry, Metadata
from replicax.checkpoint.name_matching import check_meanings
from replicax.checkpoint.places import Place
from replicax.checkpoint.reading import check_wanted, converted_to
from replicax.checkpoint.unbuilt import how_to_build, is_append_only, is_unbuilt, layers_left, unbuilt_objects
from replicax.checkpoint.variable_names import keras_objects, kinds_of_optimizers
from replicax.contracts.variable_access import AssignableLike, dtype_of, shape_of
from replicax.errors import CheckpointError
from replicax.program.keras.state import give_value
from replicax.typing import PyTree

if TYPE_CHECKING:
    from replicax.checkpoint.variable_names import KerasObject

_T = TypeVar("_T")

_WAITING = "_replicax_waiting"  # the attribute of a `build` that restores values with the `DeferredRestore`


class DeferredRestore:
    """The values of a checkpoint that wait for one object to be built. A checkpoint of the object stores them."""

    def __init__(
        self,
        directory: Place,
        path: str,
        target: KerasObject,
        found: Mapping[str, Entry],
        restored: Iterable[str] = (),
        kinds: Mapping[str, Sequence[str]] | None = None,
    ):
        self.directory, self.path, self.target = directory, path, target
        # Where no values wait, the object must not make more variables than it has.
        self._found, self._restored = dict(found), frozenset(restored)
        self._kinds = {name: list(each) for name, each in (kinds or {}).items() if name in found}
        self._variables_before = len(target.variables)
        self.values: dict[str, np.ndarray] = {}  # to be set before `wait`
        self.is_done = False  # The variables have the values, or those of a later restore.
        self.failure: str | None = None  # why the variables that `build` made could not get the values

    @property
    def wanted(self) -> dict[str, jax.ShapeDtypeStruct]:
        """How the values are to be read."""
        return {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype) for name, entry in self._found.items()}

    @property
    def is_missed(self) -> bool:
        """Whether there are values that the object does not have yet."""
        return not self.is_done and (bool(self._found) or self.failure is not None)

    def wait(self, variables: Callable[[], Mapping[str, AssignableLike]], partial: bool) -> None:
        """Makes the object's `build` give its variables the values; with `partial`, names may be on one side only."""
        build = self.target.build
        before = getattr(build, _WAITING, None)
        if before is not None:  # The values of an earlier restore are not needed any more.
            before.drop()
            build = build.__wrapped__
        is_own = "build" in vars(self.target)

        @functools.wraps(build)
        def build_and_restore(*args: PyTree, **kwargs: PyTree) -> None:
            if self.failure is not None and not self.is_done:
                raise CheckpointError(self.failure)
            build(*args, **kwargs)
            if self.is_done:
                return
            try:
                self._build_layers_left([*args, *kwargs.values()])
                self._assign(variables(), partial)
            except Exception as error:
                self.failure = f"{error} Until it is restored again, {self.path or 'root'!r} cannot be used."
                self.target.built = False  # So that Keras calls `build` again, which refuses, each time it is used.
                raise
            if is_own:
                self.target.build = build
            else:
                del self.target.build

        setattr(build_and_restore, _WAITING, self)
        self.target.build = build_and_restore
        self.target.built = False  # Keras's own `build` may have said so before its layers were built.

    def drop(self) -> None:
        """Drops the values, since the object has other values meanwhile."""
        self.is_done, self.values = True, {}
        if self.failure is not None:
            self.target.built = True

    def covers(self, name: str) -> bool:
        """Returns whether a name is that of a variable of the object whose value waits."""
        return bool(self._found) and _is_variable_of(self.path)(name) and name not in self._restored

    @property
    def is_empty(self) -> bool:
        """Whether the checkpoint has nothing for the object."""
        return not self._found and not self._restored

    @property
    def lacks_variables(self) -> bool:
        """Whether the object has fewer variables than the checkpoint."""
        return len(self.target.variables) < len(self._found) + len(self._restored)

    def what_to_do(self) -> str:
        """Returns what makes the object take its values, as a sentence."""
        return self.failure or how_to_build(self.path or "root", self.target)

    def to_write(self, path: str) -> dict[str, np.ndarray]:
        """Returns the values that wait, by the names that they have in a checkpoint with the object at `path`."""
        if self.failure is not None:
            raise CheckpointError(self.failure)
        is_lost = bool(self._found) and not is_unbuilt(self.target)
        if is_lost or len(self.target.variables) != self._variables_before:
            raise CheckpointError(
                f"{path or 'root'!r} made its variables without `build` since it was restored, so that it has other "
                "values than the checkpoint. Build it first (model.build(input_shape)), or restore again."
            )
        return _named_at(path, self.values)

    def kinds_to_write(self, path: str) -> dict[str, list[str]]:
        """Returns what those values mean, as the checkpoint says."""
        return _named_at(path, self._kinds)

    def _assign(self, variables: Mapping[str, AssignableLike], partial: bool) -> None:
        is_own = _is_variable_of(self.path)
        own = {name: variable for name, variable in variables.items() if is_own(name)}
        missing = [name for name in own if name not in self._found and name not in self._restored]
        unused = [name for name in self._found if name not in own]
        if (missing or unused) and not partial:
            raise CheckpointError(
                f"{self.path or 'root'!r} was built and is not as the checkpoint {self.directory} has it. Only in the "
                f"checkpoint: {unused or 'nothing'}; only in the object: {missing or 'nothing'}. Build it as it was, "
                f"or restore with partial=True what both have.{layers_left(self.target)}"
            )
        common = {name: variable for name, variable in own.items() if name in self._found}
        wanted = {name: jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for name, v in common.items()}
        check_meanings(self.directory, self._kinds, kinds_of_optimizers({self.path: self.target}), partial)
        check_wanted(self.directory, self._found, wanted)
        values = {
            name: converted_to(spec.dtype, self.values[name], self.directory, name) for name, spec in wanted.items()
        }
        for name, variable in common.items():
            give_value(variable, values[name])
        self.is_done = True
        self.values = {}

    def _build_layers_left(self, shapes: Sequence[PyTree]) -> None:
        """Builds the layers that `build` has made and not built, by an abstract call."""
        # Otherwise the next call would compute with some variables before all have their values.
        hint = layers_left(self.target)
        if not self.lacks_variables or not hint:
            return
        is_one = len(shapes) == 1 and all(size is None or isinstance(size, int) for size in shapes[0])
        if is_one:  # As Keras builds an object that has no `build`.
            import keras

            try:
                self.target.compute_output_spec(keras.KerasTensor(tuple(shapes[0]), self.target.compute_dtype))
            except Exception as error:
                raise CheckpointError(
                    f"{self.path or 'root'!r} cannot be built before its first call: {error!r}.{hint}"
                ) from error


def deferred_restores(
    directory: Place, objects: Mapping[str, PyTree], parts: ObjectParts, metadata: Metadata, partial: bool
) -> list[DeferredRestore]:
    """Returns what has to wait for objects that are not built and lack variables of the checkpoint."""
    waiting = []
    known, kinds = set(parts.names()), metadata.kinds
    for path, target in unbuilt_objects(objects).items():
        before = waiting_for(target)
        if before is not None and before.failure is not None:
            continue  # It has made its variables.
        is_own = _is_variable_of(path)
        stored = {name: entry for name, entry in metadata.arrays.items() if is_own(name)}
        if all(name in parts.variables for name in stored):
            if not partial:  # The object must not make more variables.
                waiting.append(DeferredRestore(directory, path, target, {}, stored))
            continue
        restored = known.intersection(stored) if is_append_only(target) else set()
        found_later = {name: entry for name, entry in stored.items() if name not in restored}
        waiting.append(DeferredRestore(directory, path, target, found_later, restored, kinds))
    return waiting


def waiting_for(target: KerasObject) -> DeferredRestore | None:
    """Returns the values of any checkpoint that wait for a Keras object."""
    waiting: DeferredRestore | None = getattr(getattr(target, "build", None), _WAITING, None)
    return None if waiting is None or waiting.is_done else waiting


def values_to_write(objects: Mapping[str, PyTree]) -> tuple[ObjectParts, list[str]]:
    """Returns the restored values that no variable has yet, and what to do about unbuilt objects without."""
    values = ObjectParts()
    hints = []
    for path, target in keras_objects(objects).items():
        waiting = waiting_for(target)
        if waiting is not None and not waiting.is_empty:
            values.arrays |= waiting.to_write(path)
            values.kinds |= waiting.kinds_to_write(path)
        elif is_unbuilt(target):
            hints.append(how_to_build(path or "root", target))
    return values, hints


def layers_without(objects: Mapping[str, PyTree], unused: Iterable[str]) -> str:
    """Returns what to do about objects that lack variables of these names, as their layers are not built; or `""`."""
    names = list(unused)
    found = {path: value for path, value in keras_objects(objects).items() if any(map(_is_variable_of(path), names))}
    hints = {path: layers_left(value) for path, value in found.items()}
    return "".join(f" {path or 'root'!r} lacks variables.{hint}" for path, hint in hints.items() if hint)


def drop_replaced(objects: Mapping[str, PyTree], names: Iterable[str], waiting: Iterable[DeferredRestore]) -> None:
    """Drops values that waited for objects whose variables of these names have just been restored, except `waiting`."""
    names, kept = list(names), set(waiting)
    for path, target in keras_objects(objects).items():
        before = waiting_for(target)
        if before is not None and before not in kept and any(map(_is_variable_of(path), names)):
            before.drop()


def _named_at(path: str, found: Mapping[str, _T]) -> dict[str, _T]:
    """Returns what there is for the variables of a Keras object, by their names when the object is at `path`."""
    numbers = {name: name.rpartition("/")[2] for name in found}
    return {f"{path}/{number}" if path else number: found[name] for name, number in numbers.items()}


def _is_variable_of(path: str) -> Callable[[str], bool]:
    """Returns a test for the names of the variables of the Keras object at `path`, which end in their index."""
    pattern = re.compile(rf"{re.escape(path)}/\d+" if path else r"\d+")
    return lambda name: pattern.fullmatch(name) is not None
