"""How the variables of flax's `nnx` take part in programs: as Keras's do, by asking the current frame.

An `nnx.Variable` keeps its array in itself, and reads and assigns it directly. While a function is traced, what holds
that array is redirected (`compat/flax.py`): a variable from outside of the trace is answered by the frame, and tells
the frame what is assigned to it. So a step may use modules, optimizers, metrics and random streams as arguments, as
what it has captured, and both at once: each stays the one object that it is. Variables that are made in the trace, as
`nnx.merge` and `nnx.grad` make them, are left alone.

State behaves in replicas as that of Keras: batch statistics get the mean, metrics the sum, each replica draws its own
random numbers (replica 0 those of one device), and whatever else would differ is refused.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import weakref
from collections.abc import Iterator
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

import replicax.compat.flax as flax_door
import replicax.context as context
from replicax.compat.jax import is_random_key
from replicax.errors import ProgramError
from replicax.program.accesses import Accesses
from replicax.program.flax_changes import ModuleChange, made_in
from replicax.program.library_state import made_equal, replicas_draw_apart, share_of_replica, state_of_random_numbers
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import Leaf, PyTree
from replicax.values.aggregation import VariableAggregation


class FlaxVariable:
    """An array that an `nnx.Variable` holds, as programs see it."""

    def __init__(self, variable: object, index: int | None):
        nnx = sys.modules["flax.nnx"]
        self.variable, self._index = variable, index  # of the array in a pytree; None: it holds just one
        self.name = f"nnx.{type(variable).__name__}"  # later its path in the modules that a function uses, if known
        self.trainable = isinstance(variable, nnx.Param)
        self.synchronization = "auto"
        self.aggregation = "none"
        if isinstance(variable, nnx.metrics.MetricState):
            self.synchronization, self.aggregation = "on_read", "sum"  # Each replica counts its own rows.
        elif isinstance(variable, nnx.RngState):
            self.aggregation = "only_first_replica"
        elif isinstance(variable, nnx.BatchStat) and jnp.issubdtype(self._dtype, jnp.inexact):
            self.aggregation = "mean"
        self.aggregation = variable.get_metadata("aggregation", self.aggregation)  # type: ignore[attr-defined]
        self.is_random, self.is_key = isinstance(variable, nnx.RngState), isinstance(variable, nnx.RngKey)

    @property
    def path(self) -> str:
        """The name, as Keras's variables call it."""
        return self.name

    @property
    def _value(self) -> jax.Array:
        value: jax.Array = flax_door.value_of(self.variable)
        if self._index is not None:
            value = jax.tree_util.tree_leaves(value)[self._index]
        return value

    @_value.setter
    def _value(self, array: jax.Array) -> None:
        if self._index is not None:
            leaves, treedef = jax.tree_util.tree_flatten(flax_door.value_of(self.variable))
            leaves[self._index] = array
            array = jax.tree_util.tree_unflatten(treedef, leaves)
        flax_door.set_value(self.variable, array)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def _dtype(self) -> np.dtype:
        return self._value.dtype

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def value(self) -> jax.Array:
        """The array, or what stands for it in a trace."""
        current = context.current()
        return self._value if current.frame is None else _read(self, current)

    def assign(self, value: jax.Array) -> None:
        """Assigns another array."""
        current = context.current()
        if current.frame is None:
            new = value if is_random_key(value) else jnp.asarray(value, self._dtype)
            self._value = jax.device_put(new, self._value.sharding)
        else:
            _write(self, value, current)

    def _store(self, array: jax.Array) -> None:
        self._value = array

    def __repr__(self) -> str:
        return f"<nnx variable {self.name!r} shape={self._shape} dtype={self._dtype}>"


def flax_variable(variable: object, index: int | None = None) -> FlaxVariable:
    """Returns what stands for an array of an `nnx.Variable` in programs: one object for as long as it is referenced."""
    key = (id(variable), index)
    found = _known().get(key)
    if found is None:
        found = _known()[key] = FlaxVariable(variable, index)
    return found


def arrays_held_by(variable: object) -> Iterator[FlaxVariable]:
    """Yields what stands for the arrays of an `nnx.Variable`."""
    leaves, treedef = jax.tree_util.tree_flatten(_with_arrays(variable, flax_door.value_of(variable)))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            yield flax_variable(variable, _number(i, treedef))


def is_flax_variable(value: object) -> bool:
    """Returns whether something is an `nnx.Variable`."""
    return flax_door.nnx() is not None and flax_door.is_variable(value)


@functools.cache
def _known() -> weakref.WeakValueDictionary[tuple[int, int | None], FlaxVariable]:
    """Returns the `FlaxVariable`s in use, by id of the variable, which each holds: so the id stays unique."""
    return weakref.WeakValueDictionary()


def flax_state() -> contextlib.AbstractContextManager[None]:
    """Lets variables of flax read from and write to the current frame; does nothing where flax is not loaded."""
    return contextlib.nullcontext() if flax_door.nnx() is None else flax_door.redirected(_TO_FRAME)


class _TracedFrame(Protocol):
    """The frame of a function that is traced."""

    accesses: Accesses


@contextlib.contextmanager
def changes_taken_back(frame: _TracedFrame) -> Iterator[None]:
    """Takes back, at the end, what a traced function does to the attributes of modules."""
    try:
        yield
    finally:
        frame.accesses.changes.undo()


def kept_changes(frame: _TracedFrame) -> list[ModuleChange]:
    """Returns what a traced function has done to the attributes of modules, where its frame is the current one."""
    changes = frame.accesses.changes.found()
    # Variables that it has made and put into modules from outside are from outside from now on; it assigns them.
    for path, made in list(made_in(changes, is_from_outside)):
        flax_door.move_outside(made)
        if flax_door.is_variable(made):
            _write_new(made, path)
    return changes


def _write_new(variable: object, path: str) -> None:
    leaves, treedef = jax.tree_util.tree_flatten(flax_door.value_of(variable))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            each = flax_variable(variable, _number(i, treedef))
            each.name = path
            _write(each, leaf, context.current())


def is_from_outside(thing: object) -> bool:
    """Returns whether a variable or module is from outside of all traces, or noted as such by the current frame."""
    frame = context.current().frame
    return flax_door.is_from_outside(thing) or (frame is not None and frame.knows(thing))


class _ToFrame:
    """Reads and writes the variables from outside in the current frame of the calling thread."""

    def read(self, variable: object, value: PyTree) -> PyTree:
        current = context.current()
        if current.frame is None:
            return value
        if isinstance(value, jax.Array):
            return _read(flax_variable(variable), current)
        leaves, treedef = jax.tree_util.tree_flatten(_with_arrays(variable, value))
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, jax.Array):
                leaves[i] = _read(flax_variable(variable, _number(i, treedef)), current)
        return jax.tree_util.tree_unflatten(treedef, leaves)

    def write(self, variable: object, value: PyTree) -> bool:
        current = context.current()
        if current.frame is None:
            return False
        before = _with_arrays(variable, flax_door.value_of(variable))
        old, treedef = jax.tree_util.tree_flatten(before)
        new, given = jax.tree_util.tree_flatten(value)
        fits = operator.eq(given, treedef)
        if not fits or not all(isinstance(leaf, jax.Array) or leaf is new[i] for i, leaf in enumerate(old)):
            raise ProgramError(
                f"A step gives an nnx.{type(variable).__name__} that holds {before!r:.100} a value of another "
                f"structure: {value!r:.100}. In compiled steps a variable keeps arrays where it has arrays."
            )
        for i, leaf in enumerate(old):
            if isinstance(leaf, jax.Array):
                _write(flax_variable(variable, _number(i, treedef)), new[i], current)
        return True

    def may_change(self) -> bool:
        frame = context.current().frame
        return frame is not None and frame.is_here()

    def changing(self, module: object) -> None:
        frame = context.current().frame
        if frame is not None:
            frame.note_changed(module)


_TO_FRAME = _ToFrame()


def _number(i: int, treedef: jax.tree_util.PyTreeDef) -> int | None:
    """Returns the number of an array among those of a variable; None if the variable holds just it."""
    return None if jax.tree_util.treedef_is_leaf(treedef) else i


def _with_arrays(variable: object, value: PyTree) -> PyTree:
    """Returns the value with JAX's arrays in the place of NumPy's and numbers: the variable holds them from now on."""
    leaves, treedef = jax.tree_util.tree_flatten(value)
    if not any(_is_number(leaf) for leaf in leaves):
        return value
    with jax.ensure_compile_time_eval():
        leaves = [jnp.asarray(leaf) if _is_number(leaf) else leaf for leaf in leaves]
    value = jax.tree_util.tree_unflatten(treedef, leaves)
    flax_door.set_value(variable, value)
    return value


def _is_number(leaf: Leaf) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, int, float, complex)) and not isinstance(leaf, bool)


def _read(variable: FlaxVariable, current: context.Context) -> jax.Array:
    assert current.frame is not None
    value = current.frame.read(variable)
    current.frame.note_read(variable, value)
    if variable.is_random and current.replica is not None and (current.manual_replicas or 1) > 1:
        if not replicas_draw_apart(current):
            return state_of_random_numbers(value, current)
        if variable.is_key:
            return _key_of_replica(value)
    return share_of_replica(variable, value, current)


def _write(variable: FlaxVariable, value: jax.typing.ArrayLike, current: context.Context) -> None:
    assert current.frame is not None
    array = jnp.asarray(value) if not is_random_key(value) else value
    if current.replica is not None:
        array = made_equal(variable, array, VariableAggregation.of(variable.aggregation), current)
    current.frame.write(variable, array)


def _key_of_replica(key: jax.Array) -> jax.Array:
    """Gives each replica its own stream of random numbers; replica 0 keeps the key as it is."""
    replica = jax.lax.axis_index(REPLICA_AXIS)
    own = jax.random.fold_in(key, replica) if key.ndim == 0 else _folded(key, replica)
    return jnp.where(replica == 0, key, own)


def _folded(keys: jax.Array, replica: jax.Array) -> jax.Array:
    folded: jax.Array = jax.vmap(lambda key: jax.random.fold_in(key, replica))(keys.ravel()).reshape(keys.shape)
    return folded
