"""From a scheduled function to a step that is cut in two: traced once, on the coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax_tracing import trace_state
from replicax.errors import ContextError, ProgramError, VariableError
from replicax.parameter_server.actors.current import worker_index
from replicax.parameter_server.actors.messages import InputSource
from replicax.program.jaxprs import inlined
from replicax.program.lifting import Program
from replicax.program.pytrees import Structure
from replicax.program.split import Assigned, Split
from replicax.variable_access import array_of, name_of

Specs = dict[int, tuple[Any, ...]]  # for each iterator, the ShapeDtypeStructs of a batch's arrays


@dataclasses.dataclass(frozen=True)
class PytreeSpec:
    """What a worker knows of a nest of arrays that it has: its structure and the arrays' shapes and dtypes."""

    treedef: Any
    specs: tuple[jax.ShapeDtypeStruct, ...]

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Returns the nest with `leaves`."""
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class Recorder:
    """Gives the function that is being traced the values that workers will put in.

    Args:
        described: For each iterator or resource what it yields; asked for with its kind and number.
    """

    def __init__(self, described: Callable[[str, int], PytreeSpec]):
        self._described = described
        self.sources: list[InputSource] = []
        self.inputs: list[jax.ShapeDtypeStruct] = []
        self._given: dict[InputSource, Any] | None = None
        self._turns: dict[int, int] = {}
        self._assigned: dict[int, list[Any]] = {}  # for each resource, what its arrays have become
        self._trace: Any = None

    @contextlib.contextmanager
    def playing(self, values: Sequence[Any] | None) -> Iterator[None]:
        """Traces with `values` for `inputs`; with None it finds out what the inputs are."""
        self._turns, self._assigned, self._trace = {}, {}, trace_state()
        self._given = None if values is None else dict(zip(self.sources, values, strict=True))
        token = _recorder.set(self)
        try:
            yield
        finally:
            _recorder.reset(token)

    def batch(self, iterator: int) -> Any:
        """Returns the next batch of an iterator."""
        turn = self._turns.get(iterator, 0)
        self._turns[iterator] = turn + 1
        return self._nest("batch", iterator, turn)

    def resource(self, number: int) -> Any:
        """Returns a value that each worker has of its own."""
        if number in self._assigned:
            return self._described("resource", number).rebuild(self._assigned[number])
        return self._nest("resource", number, 0)

    def assign(self, number: int, nest: Any) -> None:
        """Replaces a value that each worker has of its own, on the worker that runs the step.

        Raises:
            VariableError: The new value has another structure, shape or dtype.
            ProgramError: The assignment happens in a function that JAX traces on its own.
        """
        if trace_state() != self._trace:
            raise ProgramError(
                "A value that each worker has of its own was assigned inside a function that JAX traces on its own (a "
                "loss that rx.value_and_grad differentiates, the body of jax.lax.scan or cond). Return the new value "
                "from that function (with has_aux=True from a loss) and assign it afterwards."
            )
        described = self._described("resource", number)
        leaves, treedef = jax.tree_util.tree_flatten(nest)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        new = [(array.shape, array.dtype) for array in arrays]
        old = [(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype)) for spec in described.specs]
        if treedef != described.treedef or new != old:
            raise VariableError(
                "A value that each worker has of its own keeps its structure, shapes and dtypes: it is "
                f"{described.rebuild(described.specs)}, got {nest!r:.200}."
            )
        self._assigned[number] = arrays

    def kept(self) -> tuple[list[tuple[int, int]], list[Any]]:
        """Returns what the step leaves on the worker: numbers of resources and of their arrays, and the new arrays."""
        where = [(number, i) for number, arrays in self._assigned.items() for i in range(len(arrays))]
        return where, [self._assigned[number][i] for number, i in where]

    def worker_index(self) -> Any:
        """Returns the number of the worker that runs the step."""
        return self._value(InputSource("worker"), jax.ShapeDtypeStruct((), jnp.int32))

    def _nest(self, kind: str, number: int, turn: int) -> Any:
        described = self._described(kind, number)
        # Without x64 JAX makes 32 bits of 64, on the workers as well.
        specs = [
            jax.ShapeDtypeStruct(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype)) for spec in described.specs
        ]
        leaves = [self._value(InputSource(kind, number, i, turn), spec) for i, spec in enumerate(specs)]
        return described.rebuild(leaves)

    def _value(self, source: InputSource, spec: jax.ShapeDtypeStruct) -> Any:
        if self._given is not None:
            return self._given[source]
        if source not in self.sources:
            self.sources.append(source)
            self.inputs.append(spec)
        return jnp.zeros(spec.shape, spec.dtype)


_recorder: ContextVar[Recorder | None] = ContextVar("replicax_scheduled_function", default=None)


def recorder() -> Recorder | None:
    """Returns the recorder of the scheduled function that is being traced, if one is."""
    return _recorder.get()


class TracedStep:
    """A scheduled function for arguments of one kind.

    Args:
        fn: The function.
        structure: How its `(args, kwargs)` are rebuilt from arrays.
        arrays: The arrays among its arguments, for their shapes and dtypes.
        strategy: The strategy.
        recorder: Knows what the workers' iterators yield.

    Attributes:
        name: The function's name.
        split: Its two halves.
        variables: The variables that it reads, in the order of the program's inputs.
        written: Those that it assigns, in the order of `split.assigned`.
        sources: Where the other inputs come from.
        result: How the result is rebuilt from arrays.
        keeps: What the arrays after the result's are that stay on the worker: numbers of resources and their arrays.
    """

    keeps: list[tuple[int, int]]

    def __init__(
        self, fn: Callable[..., Any], structure: Structure, arrays: Sequence[Any], strategy: Any, recorder: Recorder
    ):
        self.name = getattr(fn, "__name__", "step")
        own = [jax.ShapeDtypeStruct(jnp.shape(array), jnp.result_type(array)) for array in arrays]

        def call(arguments: Sequence[Any], values: Sequence[Any] | None) -> Any:
            args, kwargs = structure.rebuild(arguments)
            with recorder.playing(values):
                result = fn(*args, **kwargs)
                _check_result(result)
                self.keeps, arrays = recorder.kept()
            return result, arrays

        with context.entered(strategy=None), strategy.scope():
            _lifted(lambda arguments: call(arguments, None), own).parts()  # It never runs: nothing may be lost with it.
            program = _lifted(lambda arguments, values: call(arguments, values), own, recorder.inputs)
            jitted, updated, others = program.parts()
            reads, writes = [_spec(variable) for variable in others], [_spec(variable) for variable in updated]
            traced = jax.make_jaxpr(jitted)(writes, reads, [], [*own, *recorder.inputs])
        self.variables, self.written = [*updated, *others], program.written
        self.result = Result(program.result, len(self.keeps))
        self.sources = [*(InputSource("argument", i) for i in range(len(own))), *recorder.sources]
        inputs = [*writes, *reads, *own, *recorder.inputs]
        position = {id(variable): i for i, variable in enumerate(self.variables)}
        assigned = [Assigned(i, position.get(id(variable))) for i, variable in enumerate(self.written)]
        self.split = Split(inlined(traced, inputs), range(len(self.variables)), assigned)


@dataclasses.dataclass(frozen=True)
class Result:
    """How a scheduled function's result is rebuilt from the arrays that the worker sends.

    Attributes:
        structure: How that and the arrays that stay on the worker, a list, would be rebuilt.
        kept: How many of those there are.
    """

    structure: Structure
    kept: int

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """Returns the result."""
        return self.structure.rebuild([*arrays, *[None] * self.kept])[0]


def _check_result(result: Any) -> None:
    for leaf in jax.tree_util.tree_leaves(result):
        if getattr(leaf, "per_worker", False):
            raise VariableError(
                f"A scheduled function returned variable {name_of(leaf)!r}, of which each worker has its own. "
                "Return its value, or ask for all of them with read_all()."
            )


def _lifted(fn: Callable[..., Any], *arguments: list[Any]) -> Program:
    """Returns a function of lists of arrays as a program."""
    leaves, treedef = jax.tree_util.tree_flatten((arguments, {}))
    return Program(lambda: fn, Structure(treedef, (), len(leaves)), leaves, [False] * len(leaves), None)


def _spec(variable: Any) -> jax.ShapeDtypeStruct:
    value = array_of(variable)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise VariableError(
            f"Variable {name_of(variable)!r} holds random keys, which servers cannot keep. Keep jax.random."
            "key_data of it, and wrap that again in the function."
        )
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def current_worker_index() -> Any:
    """Returns the number of the worker that runs this: an int32 scalar in a scheduled function, an int in one that
    makes a dataset or resource.

    Raises:
        ContextError: Neither runs.
    """
    if recorder() is not None:
        return recorder().worker_index()  # type: ignore[union-attr]
    index = worker_index()
    if index is None:
        raise ContextError(
            "The index of a worker was asked for on the coordinator. Ask inside a function that is scheduled, or that "
            "makes a dataset or resource for each worker."
        )
    return index
