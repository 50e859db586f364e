"""The recorder of a scheduled function: while it is traced, it gets placeholders for what only workers have.

These are batches, resources (values of which each worker has its own), and the worker's index.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax_tracing import trace_state
from replicax.errors import ContextError, ProgramError, VariableError
from replicax.parameter_server.actors.messages import InputSource
from replicax.typing import PyTree


@dataclasses.dataclass(frozen=True)
class PytreeSpec:
    """The structure of a pytree of arrays that a worker has, with the arrays' shapes and dtypes."""

    treedef: jax.tree_util.PyTreeDef
    specs: tuple[jax.ShapeDtypeStruct, ...]

    def rebuild(self, leaves: Sequence[object]) -> PyTree:
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class Recorder:
    """Gives the function that is being traced placeholders for the values that workers will provide."""

    def __init__(self, described: Callable[[str, int], PytreeSpec]):
        self._described = described  # what an iterator or resource yields, by its kind and id
        self.sources: list[InputSource] = []  # of each of the program's inputs
        self.inputs: list[jax.ShapeDtypeStruct] = []
        self._given: dict[InputSource, jax.Array] | None = None
        self._turns: dict[int, int] = {}
        self._assigned: dict[int, list[jax.Array]] = {}  # for each resource, the new values of its arrays
        self._trace: object = None

    @contextlib.contextmanager
    def playing(self, values: Sequence[jax.Array] | None) -> Iterator[None]:
        """Makes this the current recorder, with `values` for `inputs`; with None it finds out what the inputs are."""
        self._turns, self._assigned, self._trace = {}, {}, trace_state()
        self._given = None if values is None else dict(zip(self.sources, values, strict=True))
        with context.entered(recorder=self):
            yield

    def batch(self, iterator: int) -> PyTree:
        turn = self._turns.get(iterator, 0)
        self._turns[iterator] = turn + 1
        return self._tree("batch", iterator, turn)

    def resource(self, number: int) -> PyTree:
        """Returns a resource: a value of which each worker has its own."""
        if number in self._assigned:
            return self._described("resource", number).rebuild(self._assigned[number])
        return self._tree("resource", number, 0)

    def assign(self, number: int, tree: PyTree) -> None:
        """Replaces a resource on the worker that runs the step."""
        if trace_state() != self._trace:
            raise ProgramError(
                "A value that each worker has of its own was assigned inside a function that JAX traces on its own (a "
                "loss that rx.value_and_grad differentiates, the body of jax.lax.scan or cond). Return the new value "
                "from that function (with has_aux=True from a loss) and assign it afterwards."
            )
        described = self._described("resource", number)
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        new = [(array.shape, array.dtype) for array in arrays]
        old = [(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype)) for spec in described.specs]
        if treedef != described.treedef or new != old:
            raise VariableError(
                "A value that each worker has of its own keeps its structure, shapes and dtypes: it is "
                f"{described.rebuild(described.specs)}, got {tree!r:.200}."
            )
        self._assigned[number] = arrays

    def kept(self) -> tuple[list[tuple[int, int]], list[jax.Array]]:
        """Returns the arrays that stay on the worker, after the resource of each and its index there."""
        where = [(number, i) for number, arrays in self._assigned.items() for i in range(len(arrays))]
        return where, [self._assigned[number][i] for number, i in where]

    def worker_index(self) -> jax.Array:
        """Returns the index of the worker that runs the step."""
        return self._placeholder(InputSource("worker"), jax.ShapeDtypeStruct((), jnp.int32))

    def _tree(self, kind: str, number: int, turn: int) -> PyTree:
        described = self._described(kind, number)
        # Without x64 JAX converts 64-bit values to 32 bits, on the workers as well.
        specs = [
            jax.ShapeDtypeStruct(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype)) for spec in described.specs
        ]
        leaves = [self._placeholder(InputSource(kind, number, i, turn), spec) for i, spec in enumerate(specs)]
        return described.rebuild(leaves)

    def _placeholder(self, source: InputSource, spec: jax.ShapeDtypeStruct) -> jax.Array:
        if self._given is not None:
            return self._given[source]
        if source not in self.sources:
            self.sources.append(source)
            self.inputs.append(spec)
        return jnp.zeros(spec.shape, spec.dtype)


def recorder() -> Recorder | None:
    """Returns the recorder of the scheduled function that is being traced, if one is."""
    return cast("Recorder | None", context.current().recorder)


def current_worker_index() -> jax.Array | int:
    """Returns the index of the worker that runs this.

    It is an int32 scalar in a scheduled function, and an int in a function that makes a dataset or resource.

    Raises:
        ContextError: Neither runs.

    Example:
        >>> coordinator.schedule(lambda: rx.coordinator.get_current_worker_index()).fetch()  # doctest: +SKIP
    """
    if (current := recorder()) is not None:
        return current.worker_index()
    index = context.current().worker_index
    if index is None:
        raise ContextError(
            "The index of a worker was asked for on the coordinator. Ask inside a function that is scheduled, or that "
            "makes a dataset or resource for each worker."
        )
    return index
