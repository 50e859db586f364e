"""`rx.export`: writes a function and its variables to a directory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp

from replicax.checkpoint import write_variables
from replicax.checkpoint.places import Directory, Place, Staging, absolute, new_name, staging
from replicax.contracts.variable_access import VariableLike, array_of, free_name, name_of
from replicax.dtensor.arrays import layout_of
from replicax.dtensor.mesh import Mesh
from replicax.errors import ExportError
from replicax.exporting.manifest import (
    MANIFEST,
    PORTABLE,
    SHARDED,
    VARIABLES,
    ArrayEntry,
    Manifest,
    VariableEntry,
    document_of,
)
from replicax.exporting.portable import without_placement
from replicax.exporting.pytrees import TreeDocument, flattened, is_value, unflattened
from replicax.program.function import Function, function
from replicax.program.lifting import Program
from replicax.program.pytrees import Structure
from replicax.runtime.ending import writing
from replicax.typing import Leaf, PyTree, PyTreeFunction

_Arrays: TypeAlias = list[jax.Array]
_Shapes: TypeAlias = list[jax.ShapeDtypeStruct]


@writing()
def export(
    fn: PyTreeFunction,
    path: Directory,
    *args: PyTree,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    **kwargs: PyTree,
) -> Place:
    """Writes a function and the variables that it uses to a directory. `rx.load_export` runs it without your code.

    The directory holds the program as StableHLO (by `jax.export`), the variables as a checkpoint with their layouts,
    and the structure of arguments and results as JSON. No Python is pickled. The function may assign variables: an
    exported training step goes on where it was.

    Args:
        fn: An `rx.function`, or a function that `rx.function` can wrap.
        path: A new directory.
        *args: Arguments like those of later calls: arrays, DTensors (whose layouts are kept), numbers, or
            `jax.ShapeDtypeStruct`s, also with symbolic dimensions (`jax.export.symbolic_shape("b, 784")`). Only their
            shapes, dtypes and layouts matter. Strings, bools and None are constants in the program.
        platforms: Platforms that the program can run on.
        **kwargs: More arguments.

    Returns:
        The absolute path of the directory, which appears when it is complete.

    Raises:
        ExportError: The directory exists, an argument or result is not made of dicts, lists and tuples of arrays, the
            variables live over several meshes, or JAX cannot export the function. Nothing is written then.

    Example:
        >>> import tempfile
        >>> from replicax import Variable, load_export
        >>> w = Variable([1.0, 2.0])
        >>> path = export(lambda x: w * x, tempfile.mkdtemp() + "/scale", jnp.zeros(2))
        >>> load_export(path)(jnp.array([3.0, 4.0]))
        Array([3., 8.], dtype=float32)
    """
    target = absolute(path)
    if target.exists():
        raise ExportError(f"{target} exists already. Choose another name: a function is exported to a new directory.")
    if jax.process_count() > 1:
        raise ExportError(
            f"export runs in a single process, but there are {jax.process_count()}. Write a checkpoint, and export "
            "from one process that restores it."
        )
    exported = _ExportedFunction(fn, args, kwargs, tuple(platforms))
    unfinished = staging(target, new_name(target), MANIFEST)
    try:
        exported.write(unfinished)
    except BaseException:
        unfinished.discard()
        raise
    return target


@dataclasses.dataclass
class _ExportedFunction:
    """A function before it is written. Its constructor raises all errors of the export: nothing is half written."""

    fn: PyTreeFunction
    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    platforms: tuple[str, ...]

    def __post_init__(self) -> None:
        fn = self.fn if isinstance(self.fn, Function) else function(self.fn)
        self._arguments, leaves = flattened((list(self.args), self.kwargs), is_value)
        self._inputs = [_abstract(leaf) for leaf in leaves]
        program = _program(fn, self._arguments, self._inputs)
        compiled, self._assigned, self._read = program.parts()
        self._jitted = cast(jax.stages.Wrapped, compiled)  # No strategy has cut it.
        self._variables = [*self._assigned, *self._read]
        _check_updated(program, self._assigned)
        results = program.result
        self._results, _ = flattened(
            jax.tree_util.tree_unflatten(results.treedef, _results_with_marks(results)), lambda leaf: leaf is _ARRAY
        )
        self._mesh = _mesh_of([*map(array_of, self._variables), *self._inputs])
        self._programs: dict[str, bytes] = {}
        self._why_not_portable = self._export_portable()
        if self._mesh is not None:
            self._programs[SHARDED] = self._export(self._jitted, sharded=True)
        self._names = _unique([name_of(variable) for variable in self._variables])
        self._manifest = self._described()

    def _export_portable(self) -> str:
        """Makes the program without placement. Returns why that is not possible, or an empty string."""
        program = jax.make_jaxpr(self._jitted)(*self._signature(sharded=False))
        flat = without_placement(program)
        count = len(self._assigned)

        def portable(assigned: _Arrays, read: _Arrays, donated: _Arrays, inputs: _Arrays) -> tuple[_Arrays, _Arrays]:
            del donated
            results = flat(*assigned, *read, *inputs)
            return results[:count], results[count:]

        try:
            self._programs[PORTABLE] = self._export(jax.jit(portable), sharded=False)
        except ExportError as error:
            if self._mesh is None:
                raise
            return str(error)
        return ""

    def _signature(self, sharded: bool) -> tuple[_Shapes, _Shapes, _Shapes, _Shapes]:
        def abstract(value: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            # JAX cannot prove that a mesh divides a symbolic length.
            known = sharded and all(isinstance(length, int) for length in value.shape)
            sharding = value.sharding if known and layout_of(value) is not None else None
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)

        assigned, read = ([abstract(array_of(v)) for v in group] for group in (self._assigned, self._read))
        return assigned, read, [], [abstract(value) for value in self._inputs]

    def _export(self, jitted: jax.stages.Wrapped, sharded: bool) -> bytes:
        try:
            return bytes(jax.export.export(jitted, platforms=self.platforms)(*self._signature(sharded)).serialize())
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ExportError(f"JAX cannot export {self.fn!r:.100} for {self.platforms}: {error}") from error

    def write(self, target: Staging) -> None:
        """Writes everything to a new directory."""
        if self._variables:
            write_variables(target.place / VARIABLES, dict(zip(self._names, self._variables, strict=True)))
        for file, program in self._programs.items():
            target.write(file, program)
        target.commit(document_of(self._manifest))

    def _described(self) -> Manifest:
        variables: list[VariableEntry] = [
            {
                "name": name,
                "assigned": i < len(self._assigned),
                **_described_array(array_of(variable)),
                "shape": [*array_of(variable).shape],
            }
            for i, (name, variable) in enumerate(zip(self._names, self._variables, strict=True))
        ]
        return {
            "jax": jax.__version__,
            "function": getattr(self.fn, "__name__", type(self.fn).__name__),
            "mesh": None if self._mesh is None else list(zip(self._mesh.dim_names, self._mesh.shape(), strict=True)),
            "platforms": list(self.platforms),
            "arguments": self._arguments,
            "inputs": [_described_array(value) for value in self._inputs],
            "results": self._results,
            "variables": variables,
            "programs": {file: hashlib.sha256(program).hexdigest() for file, program in self._programs.items()},
            "why_not_portable": self._why_not_portable,
        }


_ARRAY = object()


def _results_with_marks(results: Structure) -> list[Leaf]:
    fixed = dict(results.static)
    return [fixed.get(i, _ARRAY) for i in range(results.count)]


def _abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    sharding = array.sharding if layout_of(array) is not None else None
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def _program(fn: Function, arguments: TreeDocument, inputs: list[jax.ShapeDtypeStruct]) -> Program:
    """Returns the program of a function for abstract arguments."""
    args, kwargs = unflattened(arguments, inputs)
    leaves, treedef = jax.tree_util.tree_flatten((tuple(args), kwargs))
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_value(leaf))
    structure = Structure(treedef, static, len(leaves))
    return Program(lambda: fn.python_function, structure, inputs, [False] * len(inputs), None)


def _check_updated(program: Program, assigned: Sequence[VariableLike]) -> None:
    if len(assigned) != len(program.written):
        known = {id(variable) for variable in assigned}
        names = [name_of(variable) for variable in program.written if id(variable) not in known]
        raise ExportError(f"{names} are assigned without being read first; an exported function must read them too.")


def _mesh_of(values: Sequence[jax.Array | jax.ShapeDtypeStruct]) -> Mesh | None:
    """Returns the mesh that values live over; None if there is none."""
    layouts = [layout for layout in map(layout_of, values) if layout is not None]
    meshes = list(dict.fromkeys(layout.mesh for layout in layouts))
    if len(meshes) > 1:
        raise ExportError(
            f"The function's variables and arguments live over several meshes, {meshes}; export needs one."
        )
    return meshes[0] if meshes else None


def _described_array(value: jax.Array | jax.ShapeDtypeStruct) -> ArrayEntry:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise ExportError(f"A random key cannot be exported ({value.dtype}): keep jax.random.key_data of it instead.")
    layout = layout_of(value)
    specs = None if layout is None else [list(s) if isinstance(s, tuple) else s for s in layout.sharding_specs]
    shape = [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
    return {"shape": shape, "dtype": str(value.dtype), "layout": specs}


def _unique(names: list[str]) -> list[str]:
    """Returns names that differ: repeated ones get a number at the end, which makes none that is there already."""
    taken, seen, unique = set(names), set[str](), list[str]()
    for name in names:
        unique.append(free_name(name, taken) if name in seen else name)
        seen.add(name)
        taken.add(unique[-1])
    return unique
