"""`TracedStep`: a scheduled function that the coordinator has traced and split into two halves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.contracts.variable_access import VariableLike, array_of, is_per_worker, name_of
from replicax.errors import VariableError
from replicax.parameter_server.actors.messages import InputSource
from replicax.parameter_server.compiling.recording import Recorder
from replicax.parameter_server.variables.remote import Home
from replicax.program.capture_changes import Change, Watched
from replicax.program.cut.split import Assigned, Split
from replicax.program.ir.jaxprs import constants_of
from replicax.program.ir.moving import inlined
from replicax.program.lifting import Program
from replicax.program.pytrees import Structure
from replicax.program.same_programs import are_identical, are_same_programs, are_same_structures
from replicax.typing import PyTree, PyTreeFunction


class ScopedStrategy(Protocol):
    """A strategy in whose scope a function is traced."""

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Makes the strategy the current one in a `with` block."""


class TracedStep:
    """A scheduled function for arguments of one kind, traced and split."""

    keeps: list[tuple[int, int]]  # where the arrays after the result's stay on the worker: a resource, an index in it

    def __init__(
        self,
        fn: PyTreeFunction,
        structure: Structure,
        arrays: Sequence[np.ndarray],
        strategy: ScopedStrategy,
        recorder: Recorder,
    ):
        self.name = getattr(fn, "__name__", "step")
        own = [jax.ShapeDtypeStruct(jnp.shape(array), jnp.result_type(array)) for array in arrays]

        def call(arguments: Sequence[jax.Array], values: Sequence[jax.Array] | None) -> tuple[PyTree, list[jax.Array]]:
            args, kwargs = structure.rebuild(arguments)
            with recorder.playing(values):
                result = fn(*args, **kwargs)
                _check_result(result)
                self.keeps, arrays = recorder.kept()
            return result, arrays

        with context.entered(strategy=None), strategy.scope():
            # This program never runs. It finds out what the inputs are; `parts` raises if values would be lost.
            _lifted(lambda arguments: call(arguments, None), own).parts()
            program = _lifted(lambda arguments, values: call(arguments, values), own, recorder.inputs)
            jitted, updated, others = program.parts()
            reads, writes = [_spec(variable) for variable in others], [_spec(variable) for variable in updated]
            traced = jax.make_jaxpr(jitted)(writes, reads, [], [*own, *recorder.inputs])
        # Those that it reads, in the order of the inputs, and those that it assigns, in the order of `split.assigned`.
        self.variables, self.written = [*updated, *others], program.written
        self.result = Result(program.result, len(self.keeps))
        self.sources = [*(InputSource("argument", i) for i in range(len(own))), *recorder.sources]
        position = {id(variable): i for i, variable in enumerate(self.variables)}
        assigned = [Assigned(i, position.get(id(variable))) for i, variable in enumerate(self.written)]
        self._watched = Watched(fn, [leaf for _, leaf in structure.static], constants_of(traced))
        self.split = Split(inlined(traced), range(len(self.variables)), assigned)

    def changed(self, fn: PyTreeFunction, structure: Structure) -> Change | None:
        """Returns what the function would find outside of its arrays that is not what it was; None if all is."""
        return self._watched.changed(lambda: fn, structure.static)

    def is_made_again(self, later: TracedStep, change: Change) -> bool:
        """Returns whether a later trace, after a change, has made this step again; notes that it has."""
        same = (
            are_identical([*self.variables, *self.written], [*later.variables, *later.written])
            and len(self.variables) == len(later.variables)
            and (self.sources, self.keeps) == (later.sources, later.keeps)
            and are_same_structures(self.result.structure, later.result.structure)
            and are_same_programs(self.split.program, later.split.program)
        )
        if same:
            later._watched.goes_on(self._watched, change)
            self._watched = later._watched
        return same


@dataclasses.dataclass(frozen=True)
class Result:
    """How a scheduled function's result is unflattened from the arrays that the worker sends."""

    structure: Structure  # of `(result, arrays that stay on the worker)`
    kept: int  # how many arrays stay there

    def rebuild(self, arrays: Sequence[object]) -> PyTree:
        return self.structure.rebuild([*arrays, *[None] * self.kept])[0]


def _check_result(result: PyTree) -> None:
    for leaf in jax.tree_util.tree_leaves(result):
        if is_per_worker(leaf):
            raise VariableError(
                f"A scheduled function returned variable {name_of(leaf)!r}, of which each worker has its own. "
                "Return its value, or ask for all of them with read_all()."
            )


def _lifted(fn: PyTreeFunction, *arguments: list[jax.ShapeDtypeStruct]) -> Program:
    """Returns a function of lists of arrays as a program."""
    leaves, treedef = jax.tree_util.tree_flatten((arguments, {}))
    return Program(lambda: fn, Structure(treedef, (), len(leaves)), leaves, [False] * len(leaves), None)


def _spec(variable: VariableLike) -> jax.ShapeDtypeStruct:
    home: Home | None = vars(variable).get("_replicax_home")
    value = array_of(variable) if home is None or home.spec is None else home.spec
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise VariableError(
            f"Variable {name_of(variable)!r} holds random keys, which servers cannot keep. Keep jax.random."
            "key_data of it, and wrap that again in the function."
        )
    return jax.ShapeDtypeStruct(value.shape, value.dtype)
