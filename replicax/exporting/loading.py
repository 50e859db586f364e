"""`rx.load_export` runs a function that `rx.export` wrote, on one device or on a mesh."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint import read_arrays
from replicax.checkpoint.places import Directory, Place, place_of
from replicax.checks import explained
from replicax.dtensor.arrays import laid_out
from replicax.dtensor.layout import UNSHARDED, Layout
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.dtensor.variable import DVariable
from replicax.errors import ArgumentError, ExportError, LayoutError
from replicax.exporting.manifest import (
    MANIFEST,
    PORTABLE,
    SHARDED,
    VARIABLES,
    ArrayEntry,
    Manifest,
    VariableEntry,
    leaves_of,
    read_manifest,
)
from replicax.exporting.pytrees import TreeDocument, flattened, is_value, unflattened
from replicax.typing import Leaf, PyTree
from replicax.variables import Variable


@explained
class LoadedFunction:
    """A function that was exported, with variables of its own.

    Call it with arguments of the structure, shapes and dtypes that it was exported for. `rx.load_export` makes it.

    Attributes:
        name: Name of the function that was exported.
        mesh: The mesh that it runs on; None on one device.
        exported_mesh_dims: Name and size of each dimension of the mesh that it was exported on; None without a mesh.
        variables: Its variables by name: `DVariable` on a mesh, otherwise `rx.Variable`. They can be read, assigned,
            and put into checkpoints.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/twice"
        >>> path = rx.export(lambda x: 2 * x, folder, jax.ShapeDtypeStruct((3,), "float32"))
        >>> rx.load_export(folder)(jnp.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, directory: Place, manifest: Manifest, mesh: Mesh | None):
        self.name: str = manifest["function"]
        self.mesh = mesh
        dims = manifest["mesh"]
        self.exported_mesh_dims = None if dims is None else [(name, size) for name, size in dims]
        self._manifest = manifest
        self._inputs = [_Input(entry, mesh) for entry in manifest["inputs"]]
        exported = _deserialized(_program_bytes(directory, manifest, mesh), manifest, directory)
        self._call = jax.jit(exported.call)
        # Which of the two classes they have depends on `mesh`, which a type checker cannot see.
        self.variables: dict[str, Leaf] = _variables(directory, manifest["variables"], mesh)
        assigned = [entry["name"] for entry in manifest["variables"] if entry["assigned"]]
        self._assigned = [self.variables[name] for name in assigned]
        self._read = [variable for name, variable in self.variables.items() if name not in assigned]

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the function and updates the variables that it assigns."""
        arguments, leaves = flattened((list(args), kwargs), is_value)
        if arguments != self._manifest["arguments"]:
            raise ArgumentError(
                f"{self.name} was exported for arguments like "
                f"{_shown_arguments(self._manifest['arguments'], self._inputs)}, got "
                f"{_shown_arguments(arguments, [_shape_of(leaf) for leaf in leaves])}."
            )
        inputs = [wanted.placed(leaf) for wanted, leaf in zip(self._inputs, leaves, strict=True)]
        values, read = [variable.value for variable in self._assigned], [variable.value for variable in self._read]
        new_values, results = self._call(values, read, [], inputs)
        for variable, value in zip(self._assigned, new_values, strict=True):
            variable.assign(value)
        return unflattened(self._manifest["results"], results)

    def __repr__(self) -> str:
        where = f"on {self.mesh!r}" if self.mesh is not None else "on one device"
        return f"<LoadedFunction {self.name}{_shown_arguments(self._manifest['arguments'], self._inputs)} {where}>"


def load_export(path: Directory, *, mesh: MeshLike | None = None) -> LoadedFunction:
    """Loads a function that `rx.export` wrote. The code that made it is not needed, and no Python in the files runs.

    Args:
        path: The directory.
        mesh: The mesh to run on. Variables and arguments get the layouts that they had, so the mesh must have the
            dimensions that these name. If it has the dimensions and sizes of the mesh that the function was exported
            on, the program keeps the layouts inside too; otherwise XLA chooses these. By default everything is on one
            device.

    Raises:
        ExportError: There is no exported function, it is incomplete, or it cannot run on one device.
        LayoutError: The mesh lacks a dimension that a layout names, or a dimension does not divide what it shards.
        CheckpointError: The variables cannot be read.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/next"
        >>> path = rx.export(lambda x: x + 1, folder, jax.ShapeDtypeStruct((2,), "float32"))
        >>> rx.load_export(folder)(jnp.zeros(2)).tolist()
        [1.0, 1.0]
    """
    directory = place_of(path, MANIFEST)
    manifest = read_manifest(directory)
    return LoadedFunction(directory, manifest, None if mesh is None else Mesh.of(mesh))


class _Input:
    """An input of the program: which arguments fit, and where they are placed."""

    def __init__(self, entry: ArrayEntry, mesh: Mesh | None):
        self.shape, self.dtype = tuple(entry["shape"]), np.dtype(entry["dtype"])
        self._layout = None if mesh is None else _layout(entry, mesh)

    def placed(self, value: Leaf) -> jax.Array:
        """Returns an argument on the devices where the program takes it; its shape and dtype must fit."""
        if not isinstance(value, (jax.Array, np.ndarray)):
            value = self._converted(np.asarray(value))  # A Python number has no dtype of its own.
        shape = np.shape(value)
        fits = len(shape) == len(self.shape) and all(
            isinstance(wanted, str) or wanted == length for wanted, length in zip(self.shape, shape, strict=True)
        )
        if not fits or jax.dtypes.canonicalize_dtype(value.dtype) != self.dtype:
            raise ArgumentError(f"An argument must be {self}, got {value.dtype}{list(shape)}.")
        if self._layout is None:
            return jnp.asarray(value)
        try:
            return laid_out(value, self._layout)
        except LayoutError:  # For instance a smaller batch than at export: it is replicated.
            return laid_out(value, Layout.replicated(self._layout.mesh, self._layout.rank))

    def _converted(self, given: np.ndarray) -> np.ndarray:
        if not np.can_cast(given.dtype, self.dtype, "same_kind"):
            return given
        value = given.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(value, given):
            raise ArgumentError(f"An argument must be {self}, got {given.tolist()!r:.100}, which does not fit in it.")
        return value

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def _program_bytes(directory: Place, manifest: Manifest, mesh: Mesh | None) -> bytes:
    dims = None if mesh is None else [[name, mesh.dim_size(name)] for name in mesh.dim_names]
    same_mesh = dims is not None and dims == manifest["mesh"]
    if not same_mesh and manifest["why_not_portable"]:
        raise ExportError(
            f"{manifest['function']} can only run on a mesh like the one that it was exported on, "
            f"{dict(manifest['mesh'] or [])}: pass `mesh`. {manifest['why_not_portable']}"
        )
    file = SHARDED if same_mesh else PORTABLE
    try:
        program = (directory / file).read_bytes()
    except OSError as error:
        raise ExportError(f"The exported function is incomplete: {error}") from error
    if hashlib.sha256(program).hexdigest() != manifest["programs"][file]:
        raise ExportError(f"{directory / file} is damaged: its checksum is another one.")
    return program


def _deserialized(program: bytes, manifest: Manifest, directory: Place) -> jax.export.Exported:
    try:
        exported = jax.export.deserialize(bytearray(program))
    except Exception as error:  # The reader of flatbuffers raises many kinds. (The checksum of the file was right.)
        raise ExportError(f"JAX {jax.__version__} cannot read the program in {directory}: {error!r}") from error
    variables = manifest["variables"]
    takes = len(variables) + len(manifest["inputs"])
    gives = sum(entry["assigned"] for entry in variables) + len(leaves_of(manifest["results"]))
    if (len(exported.in_avals), len(exported.out_avals)) != (takes, gives):
        raise ExportError(
            f"The program in {directory} takes {len(exported.in_avals)} values and returns {len(exported.out_avals)}, "
            f"but its manifest says {takes} and {gives}."
        )
    return exported


def _variables(directory: Place, entries: Sequence[VariableEntry], mesh: Mesh | None) -> dict[str, Variable]:
    if not entries:
        return {}
    layouts = {entry["name"]: None if mesh is None else _layout(entry, mesh) for entry in entries}
    wanted = {}
    for entry in entries:
        layout = layouts[entry["name"]]
        sharding = None if layout is None else layout.to_sharding()
        if layout is not None:
            layout.check_shape(entry["shape"])
        wanted[entry["name"]] = jax.ShapeDtypeStruct(tuple(entry["shape"]), np.dtype(entry["dtype"]), sharding=sharding)
    values = read_arrays(directory / VARIABLES, wanted)
    return {name: _variable(name, values[name], layouts[name]) for name in wanted}


def _variable(name: str, value: jax.Array | np.ndarray, layout: Layout | None) -> Variable:
    return Variable(value, name=name) if layout is None else DVariable(value, layout=layout, name=name)


def _layout(entry: ArrayEntry | VariableEntry, mesh: Mesh) -> Layout:
    specs = entry["layout"] or [UNSHARDED] * len(entry["shape"])
    return Layout([tuple(spec) if isinstance(spec, list) else spec for spec in specs], mesh)


def _shape_of(leaf: Leaf) -> str:
    return f"{leaf.dtype}{list(np.shape(leaf))}" if hasattr(leaf, "dtype") else type(leaf).__name__


def _shown_arguments(arguments: TreeDocument, leaves: Sequence[object]) -> str:
    args, kwargs = unflattened(arguments, [_Unquoted(leaf) for leaf in leaves])
    return "(" + ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]) + ")"


class _Unquoted:
    """An argument in a message: its dtype and shape, without quotes."""

    def __init__(self, leaf: object):
        self._text = str(leaf)

    def __repr__(self) -> str:
        return self._text
