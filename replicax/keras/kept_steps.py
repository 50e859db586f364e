"""The steps of `fit` since all copies were last equal, kept so that `replicax certify --replay` can make them again.

In memory are the values that variables had then, and the batches since. When copies differ, these become a file: a zip
of raw bytes as NumPy writes it (`.npz`, with checksums and without pickle), with a header in JSON. The steps are in it
as programs of `jax.export`: what ran is what is run again, whatever becomes of the script.
"""

from __future__ import annotations

import itertools
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from replicax.compat.jax import is_random_key
from replicax.contracts.variable_access import VariableLike, array_of, has_array, name_of
from replicax.errors import ArgumentError, ReplicaDriftError
from replicax.keras.chief_writes import write_atomically
from replicax.program.lifting import Program
from replicax.runtime.devices import device_name
from replicax.runtime.transfer import host_copy
from replicax.version import __version__

_FORMAT = 1
_DAMAGED = (ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error)

#: The entries of a `PartitionSpec`, as JSON has them.
_Spec = Sequence[str | list[str] | None]


class KeptProgram(NamedTuple):
    """A step for batches of one kind. Variables are numbers in the file's list."""

    code: bytes  # of `jax.export`: (values of updated, of constant, [], arrays of the batch) -> (of written, outputs)
    updated: tuple[int, ...]
    constant: tuple[int, ...]
    written: tuple[int, ...]
    places: tuple[_Spec, ...]  # of the updated, the constant, the written, and the arrays of the batch


class KeptStep(NamedTuple):
    """A step that was made."""

    program: int
    batch: tuple[np.ndarray, ...]


class KeptFile(NamedTuple):
    """The contents of a file."""

    platform: str
    kind: str  # of the devices
    mesh: tuple[tuple[str, int], ...]
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    first: int  # the number of the first step
    replicas: tuple[int, ...]  # that had drifted
    digests: Mapping[str, Sequence[int]]  # after the last step, by variable and device
    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]  # of the variables before the first step
    programs: tuple[KeptProgram, ...]
    steps: tuple[KeptStep, ...]

    def write(self, path: str) -> None:
        arrays = {f"value.{i}": value for i, value in enumerate(self.values)}
        arrays |= {f"code.{i}": np.frombuffer(each.code, np.uint8) for i, each in enumerate(self.programs)}
        arrays |= {f"batch.{i}.{j}": a for i, step in enumerate(self.steps) for j, a in enumerate(step.batch)}
        header = {
            "format": _FORMAT,
            **self._asdict(),
            "values": [],
            "programs": [each._replace(code=b"")._asdict() | {"code": None} for each in self.programs],
            "steps": [[step.program, len(step.batch)] for step in self.steps],
            "arrays": {name: [str(array.dtype), array.shape] for name, array in arrays.items()},
        }
        raw = {name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, array in arrays.items()}
        np.savez(path, allow_pickle=False, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **raw)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises:
            ArgumentError: There is none, it is another kind of file or of another version, or it is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as found:
                header = json.loads(found["header"].tobytes())
                made_by = header["format"]
                if made_by == _FORMAT:
                    kinds = header["arrays"].items()
                    arrays = {name: found[name].view(dtype).reshape(shape) for name, (dtype, shape) in kinds}
                    return cls._of(header, arrays)
        except OSError as error:
            raise ArgumentError(
                f"{path} cannot be read: {error.strerror or error}. Name a file that "
                "rx.keras.ReplicaDigest(keep=FOLDER) has written."
            ) from error
        except _DAMAGED as error:
            raise ArgumentError(
                f"{path} is no file of rx.keras.ReplicaDigest(keep=FOLDER), or is damaged: {error!r:.200}"
            ) from error
        raise ArgumentError(f"{path} has the format {made_by!r}, and this replicax reads {_FORMAT}.")

    @classmethod
    def _of(cls, header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        programs = tuple(
            KeptProgram(
                arrays[f"code.{i}"].tobytes(), *(tuple(each[name]) for name in KeptProgram._fields if name != "code")
            )
            for i, each in enumerate(header["programs"])
        )
        steps = tuple(
            KeptStep(program, tuple(arrays[f"batch.{i}.{j}"] for j in range(count)))
            for i, (program, count) in enumerate(header["steps"])
        )
        plain = {name: header[name] for name in ("platform", "kind", "versions", "first", "digests")}
        names = tuple(header["names"])
        return cls(
            **plain,
            mesh=tuple((name, size) for name, size in header["mesh"]),
            devices=tuple(header["devices"]),
            replicas=tuple(header["replicas"]),
            names=names,
            values=tuple(arrays[f"value.{i}"] for i in range(len(names))),
            programs=programs,
            steps=steps,
        )


class _State(NamedTuple):
    """The values of variables after a number of kept steps."""

    kept: int
    values: list[np.ndarray]


class KeptSteps:
    """Keeps the steps of one `fit` since its copies were last equal, in memory."""

    def __init__(self, folder: Path, mesh: Mesh, variables: Sequence[VariableLike]):
        # `variables` are what the steps use, as far as it is known, with the values before the first.
        self._folder, self._mesh = folder, mesh
        self._devices: list[jax.Device] = list(mesh.devices.flat)
        self._variables: list[VariableLike] = []
        self._numbers: dict[int, int] = {}  # of variables, by identity
        self._programs: dict[int, tuple[int, KeptProgram, Program]] = {}  # by identity
        self._steps: list[KeptStep] = []
        self._made = 0  # how many steps came before these
        self._equal, self._compared = _State(0, []), _State(0, [])
        self._take(each for each in variables if has_array(each))

    def _take(self, variables: Iterable[VariableLike]) -> None:
        """Keeps more variables: those that the next step is the first to use, so that they have their first values."""
        new = list({id(each): each for each in variables if id(each) not in self._numbers}.values())
        keys = [name_of(each) for each in new if is_random_key(array_of(each))]
        if keys:
            raise ArgumentError(
                f"ReplicaDigest(keep=...) cannot keep variables of random keys: {keys}. Leave out keep."
            )
        self._numbers.update((id(each), number) for number, each in enumerate(new, len(self._variables)))
        self._variables += new
        for state in (self._equal, self._compared):
            if state is self._equal or state.values:
                state.values.extend(_copies(new))

    def add(self, program: Program, arrays: Sequence[jax.Array]) -> None:
        """Keeps a step that is about to be made.

        Raises:
            ArgumentError: It cannot be kept.
        """
        if id(program) not in self._programs:
            self._programs[id(program)] = len(self._programs), self._exported(program, arrays), program
        number, _, _ = self._programs[id(program)]
        self._steps.append(KeptStep(number, tuple(np.array(host_copy(array)) for array in arrays)))

    def begin(self) -> None:
        """Keeps the values of the variables, whose copies are being compared."""
        self._compared = _State(len(self._steps), _copies(self._variables))

    def are_equal(self) -> None:
        """Forgets the steps before the last comparison, which has found that all copies are equal."""
        count, values = self._compared
        if values:
            del self._steps[:count]
            self._made += count
            self._equal, self._compared = self._compared, _State(0, [])

    def write(self, found: ReplicaDriftError, digests: Mapping[str, Sequence[int]]) -> None:
        """Writes the steps to a file, whose name the error gets as a note."""
        file = KeptFile(
            self._devices[0].platform,
            self._devices[0].device_kind,
            tuple(self._mesh.shape.items()),
            tuple(map(device_name, self._devices)),
            {"replicax": __version__, "jax": jax.__version__},
            self._made + 1,
            found.replicas,
            digests,
            tuple(map(name_of, self._variables)),
            tuple(self._equal.values),
            tuple(program for _, program, _ in self._programs.values()),
            tuple(self._steps[: self._compared.kept]),
        )
        name = f"drift-after-step-{self._made + self._compared.kept}"
        ends = (f"-{number}" if number else "" for number in itertools.count())  # An earlier run's file stays.
        path = next(path for end in ends if not (path := self._folder / f"{name}{end}.npz").exists())
        try:
            write_atomically(path, file.write)
        except OSError as error:
            found.add_note(f"The {len(file.steps)} steps since the last comparison could not be kept: {error}")
        else:
            found.add_note(f"Broken chip or broken program? replicax certify --replay {path}")

    def _exported(self, program: Program, arrays: Sequence[jax.Array]) -> KeptProgram:
        compiled, updated, constant = program.parts()
        written = list(program.written)
        variables = [*updated, *constant, *written]
        self._take(variables)  # A step of one's own may use more than model and optimizer have.
        places = [
            *(self._place(name_of(each), program.variables.sharding(each)) for each in variables),
            *(self._place("the batch", each.sharding) for each in arrays),
        ]
        kinds = iter(
            jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)
            for value, place in zip([*map(array_of, variables), *arrays], places, strict=True)
        )
        of_updated, of_constant, _, of_batch = (
            list(itertools.islice(kinds, len(group))) for group in (updated, constant, written, arrays)
        )
        export = jax.export.export(cast(jax.stages.Wrapped, compiled), platforms=[self._devices[0].platform])
        try:
            code = bytes(export(of_updated, of_constant, [], of_batch).serialize())
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ArgumentError(
                f"ReplicaDigest(keep=...) keeps the program of a step, and JAX cannot export it: {error!s:.500} Leave "
                "out keep."
            ) from error
        first, second, third = (
            tuple(self._numbers[id(each)] for each in group) for group in (updated, constant, written)
        )
        return KeptProgram(code, first, second, third, tuple(map(_entries, places)))

    def _place(self, name: str, place: Sharding | None) -> NamedSharding:
        if not isinstance(place, NamedSharding) or place.mesh != self._mesh:
            raise ArgumentError(
                f"ReplicaDigest(keep=...) keeps steps on {self._mesh}, and {name!r} is elsewhere: {place}. Leave out "
                "keep."
            )
        return place


def _copies(variables: Iterable[VariableLike]) -> list[np.ndarray]:
    # Copies: a step takes the memory of what it updates.
    return [np.array(host_copy(array_of(variable))) for variable in variables]


def _entries(place: NamedSharding) -> _Spec:
    return tuple(list(entry) if isinstance(entry, tuple) else entry for entry in place.spec)


def spec_of(entries: _Spec) -> PartitionSpec:
    """Returns the `PartitionSpec` of its entries in a file."""
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in entries))
