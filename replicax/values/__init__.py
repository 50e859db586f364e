"""Values with one component per replica.

A *mirrored* value is equal on all replicas. It needs no wrapper: a `jax.Array` that is replicated over a strategy's
devices is one, and `isinstance(x, rx.Mirrored)` says so.

A *per-replica* value may differ. `PerReplica` keeps its components stacked in one array of shape
`(num_replicas, ...)`, row i on replica i's device: one compiled program can then take it apart without any copy.
Two rarer forms share its interface: `UnevenPerReplica` for components of different shapes, which live on the host
side of the API only, and `ManualPerReplica` for the view from inside a running replica function.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.checks import is_int
from replicax.compat.jax import is_random_key, vary
from replicax.contracts.reduce_op import ReduceOp, mean_over
from replicax.contracts.shown import Shown, html_table
from replicax.errors import ArgumentError, ContextError, ReduceError, ReplicaShapeError, VariableError
from replicax.runtime.devices import device_name
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import Leaf, PyTree
from replicax.values.hints import NoArray

# Of a component in a notebook's table: it is fetched from its device.
_MOST_BYTES_SHOWN = 1 << 20
_MOST_CHARACTERS = 80


class DistributedValues(NoArray, abc.ABC):
    """Base class of values that have one component per replica; they are no array, number or condition themselves.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> value = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        >>> isinstance(value, rx.DistributedValues)
        True
    """

    __slots__ = ()


class _MirroredType(abc.ABCMeta):
    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, jax.Array) or isinstance(instance, jax.core.Tracer):
            return False
        return len(instance.sharding.device_set) > 1 and instance.sharding.is_fully_replicated


class Mirrored(DistributedValues, metaclass=_MirroredType):
    """The type of arrays that every one of several devices holds in full.

    It has no constructor: `strategy.replicate` makes such arrays and `strategy.run` returns them where equality is
    proven. They are plain `jax.Array`s and can be used as such.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy()
        >>> isinstance(strategy.replicate(np.ones(3)), rx.Mirrored)
        True
    """

    def __new__(cls, *args: PyTree, **kwargs: PyTree) -> Mirrored:
        raise ArgumentError(f"rx.Mirrored describes ordinary arrays, got {args!r:.100}; use strategy.replicate(value).")


@jax.tree_util.register_pytree_node_class
class PerReplica(DistributedValues):
    """One array per replica, all of the same shape and dtype.

    Attributes:
        stacked: Shape `(num_replicas, ...)`; row i is replica i's component and lives on its device.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> value = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        >>> strategy.local_results(value)
        (Array(0, dtype=int32), Array(1, dtype=int32))
    """

    __slots__ = ("stacked",)

    def __init__(self, stacked: jax.Array):
        if not getattr(stacked, "shape", ()):
            raise ArgumentError(
                f"rx.PerReplica is made of an array with a row for each replica, got {stacked!r:.100}. A step returns "
                "such values; others are made by strategy.distribute_values_from_function."
            )
        self.stacked = stacked

    def tree_flatten(self) -> tuple[tuple[jax.Array], None]:
        """Returns the stacked array as the only child (JAX's pytree protocol)."""
        return (self.stacked,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Sequence[jax.Array]) -> PerReplica:
        """Rebuilds the value from the stacked array (JAX's pytree protocol)."""
        del aux
        value = cls.__new__(cls)
        value.stacked = children[0]  # JAX puts placeholders of its own there.
        return value

    @property
    def num_replicas(self) -> int:
        """Number of components."""
        return self.stacked.shape[0]

    @property
    def component_shape(self) -> tuple[int, ...]:
        """Shape of one component."""
        return tuple(self.stacked.shape[1:])

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The components in replica order, each on its own device (inside a traced function: rows of the stack)."""
        if isinstance(self.stacked, jax.core.Tracer):
            return tuple(self.stacked[i] for i in range(self.num_replicas))
        if not isinstance(self.stacked, jax.Array):  # On the host, from jax.device_get.
            return tuple(self.stacked)
        # By first row: where several devices make one replica, each of them holds its rows.
        shards = {shard.index[0].start or 0: shard.data for shard in reversed(self.stacked.addressable_shards)}
        return tuple(row for start in sorted(shards) for row in shards[start])

    def own(self) -> jax.Array:
        """Returns the running replica's component, inside `shard_map`, of a value that was made outside of it.

        Raises:
            ReplicaShapeError: Another number of replicas runs than the value has components.
        """
        replicas = context.current().manual_replicas
        if replicas != self.num_replicas:
            raise ReplicaShapeError(
                f"A step that runs on {replicas} replicas has captured a per-replica value with {self.num_replicas} "
                "components. A value from a step of another size cannot be used in it: pass the batch that belongs "
                "to it as an argument, or make one value of it first (strategy.reduce, strategy.gather)."
            )
        stacked, frame = self.stacked, context.current().frame
        if isinstance(stacked, jax.core.Tracer):
            pass
        elif context.runs_eagerly():
            stacked = jnp.asarray(np.asarray(stacked))  # Inside an eager map nothing can be moved.
        elif frame is not None:
            frame.note_captured()
        return stacked[jax.lax.axis_index(REPLICA_AXIS)]

    def reduce(self, op: ReduceOp) -> jax.Array:
        """Combines the components element by element; the result has a component's shape."""
        return _combine(op, self.stacked, axis=0)

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines the components and, inside each, the entries along `axis`."""
        axes = normalize_axes(axis, self.component_shape)
        return _combine(op, self.stacked, axis=(0, *(a + 1 for a in axes)))

    def gather(self, axis: int) -> jax.Array:
        """Concatenates the components along `axis`, in replica order."""
        (axis,) = normalize_axes(axis, self.component_shape)
        shape = list(self.component_shape)
        shape[axis] *= self.num_replicas
        return jnp.moveaxis(self.stacked, 0, axis).reshape(shape)

    def map(self, fn: Callable[[jax.Array], jax.Array]) -> PerReplica:
        """Returns the value whose stacked array is `fn(stacked)`."""
        return PerReplica(fn(self.stacked))

    def _repr_html_(self) -> str:
        if not isinstance(self.stacked, jax.Array) or isinstance(self.stacked, jax.core.Tracer):
            return Shown(repr(self)).html
        own = sorted({shard.index[0].start or 0: shard for shard in self.stacked.addressable_shards}.items())
        numbers = [first + i for first, shard in own for i in range(shard.data.shape[0])]
        return components_as_html(numbers, self.values)

    def __repr__(self) -> str:
        if not isinstance(self.stacked, (jax.Array, np.ndarray)):  # what `jax.tree.map` or `jax.eval_shape` has put in
            return f"PerReplica({self.stacked!r})"
        if isinstance(self.stacked, jax.core.Tracer):
            return f"PerReplica({self.num_replicas} x {self.stacked.dtype}{list(self.component_shape)})"
        rows = "\n".join(f"  {i}: {component}," for i, component in enumerate(self.values))
        return f"PerReplica({{\n{rows}\n}})"

    def __str__(self) -> str:
        return f"{self!r}  # one value of them: strategy.reduce('sum', value)"


class UnevenPerReplica(DistributedValues):
    """One component per replica, of shapes that differ or of any Python type; `strategy.run` refuses it."""

    # It can be inspected, reduced along an axis and gathered, but one compiled program cannot take it.

    def __init__(self, components: Sequence[Leaf]):
        self.values = tuple(components)

    def _repr_html_(self) -> str:
        return components_as_html(range(len(self.values)), self.values)

    @property
    def num_replicas(self) -> int:
        """Number of components."""
        return len(self.values)

    def reduce(self, op: ReduceOp) -> jax.Array:
        """Always fails: components of different shapes or dtypes cannot be combined element by element."""
        raise ReplicaShapeError(
            f"Cannot {op.value} components of different shapes or dtypes {self.kinds_of_all()} element by element. "
            "Give `axis`, so that each component is reduced along it first."
        )

    def kinds_of_all(self) -> str:
        """Returns shape and dtype of each component, for messages."""
        return f"[{', '.join(map(_kind, self.values))}]"

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines all entries along `axis` of all components; a mean divides by the number of entries."""
        self._check_rest(axis)
        total: jax.typing.ArrayLike = 0
        entries, dtype = 0, jnp.result_type(*self.values)
        own = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype  # of the mean
        wide = None if op is ReduceOp.SUM else jnp.promote_types(own, jnp.float32)  # A sum of float16 may overflow.
        for component in self.values:
            axes = normalize_axes(axis, jnp.shape(component))
            total = total + jax.device_get(jnp.sum(component, axis=axes, dtype=wide))
            entries += math.prod(jnp.shape(component)[a] for a in axes)
        return jnp.asarray(total) if op is ReduceOp.SUM else jnp.asarray(total / entries, own)

    def _check_rest(self, axis: int | Sequence[int]) -> None:
        if not all(_is_number(component) for component in self.values):
            raise ReplicaShapeError(f"Only arrays can be combined, got components {self.kinds_of_all()}.")
        shapes = [jnp.shape(component) for component in self.values]
        dropped = [normalize_axes(axis, shape) for shape in shapes]
        rest = [tuple(n for i, n in enumerate(s) if i not in axes) for s, axes in zip(shapes, dropped, strict=True)]
        if len(set(rest)) > 1:
            raise ReplicaShapeError(
                f"After a reduction along axis={axis!r} all components must have one shape, got "
                f"{rest} of components {self.kinds_of_all()}. Give all axes in which they differ: axis=(0, 1)."
            )

    def gather(self, axis: int) -> jax.Array:
        """Concatenates the components along `axis`; they must agree in all other dimensions."""
        if not all(_is_number(component) for component in self.values):
            raise ReplicaShapeError(f"Only arrays can be combined, got components {self.kinds_of_all()}.")
        shapes = [jnp.shape(component) for component in self.values]
        normal = {normalize_axes(axis, shape)[0] for shape in shapes}
        rest = {tuple(n for i, n in enumerate(shape) if i not in normal) for shape in shapes}
        if len(normal) != 1 or len(rest) != 1:
            raise ReplicaShapeError(f"To gather along axis {axis}, shapes may differ there only, got {shapes}.")
        return jnp.concatenate([jax.device_get(component) for component in self.values], axis=normal.pop())

    def __repr__(self) -> str:
        rows = "\n".join(f"  {i}: {component!r}," for i, component in enumerate(self.values))
        return f"PerReplica({{\n{rows}\n}})"


class EqualPerReplica(DistributedValues):
    """One component per replica, all equal: one array stands for them, and nothing travels when they are combined."""

    # `reduce` and `gather` see results of `run` that are proven equal as one; users have the array itself.

    def __init__(self, component: jax.Array, num_replicas: int):
        self.component = component
        self.num_replicas = num_replicas

    def reduce(self, op: ReduceOp) -> jax.Array:
        """Combines the components element by element."""
        return self._combined(op, ())

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines the components and, inside each, the entries along `axis`."""
        return self._combined(op, normalize_axes(axis, self.component.shape))

    def _combined(self, op: ReduceOp, axes: tuple[int, ...]) -> jax.Array:
        # Also over no axes: a sum of bools is an integer, and a mean of integers a float.
        one = _combine(op, self.component, axes)
        return one * self.num_replicas if op is ReduceOp.SUM else one

    def gather(self, axis: int) -> jax.Array:
        """Concatenates the components along `axis`."""
        (axis,) = normalize_axes(axis, self.component.shape)
        return jnp.concatenate([self.component] * self.num_replicas, axis)


class ManualPerReplica(DistributedValues):
    """A per-replica value inside `shard_map`, as `merge_call` hands it on: it holds this replica's component only."""

    def __init__(self, component: jax.Array, num_replicas: int):
        self.component = component
        self.num_replicas = num_replicas

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """Always fails: the components of the other replicas are on other devices."""
        raise ContextError(
            "Inside strategy.run each replica holds its own component only. Use strategy.gather to see all of them."
        )

    def reduce(self, op: ReduceOp) -> jax.Array:
        """Combines the components element by element with a collective."""
        varying = vary(self.component, REPLICA_AXIS)
        return jax.lax.psum(varying, REPLICA_AXIS) if op is ReduceOp.SUM else mean_over(REPLICA_AXIS, varying)

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines the components and, inside each, the entries along `axis`."""
        axes = normalize_axes(axis, self.component.shape)
        return ManualPerReplica(_combine(op, self.component, axes), self.num_replicas).reduce(op)

    def gather(self, axis: int) -> jax.Array:
        """Concatenates the components along `axis`, in replica order."""
        (axis,) = normalize_axes(axis, self.component.shape)
        varying = vary(self.component, REPLICA_AXIS)
        gathered: jax.Array = jax.lax.all_gather(varying, REPLICA_AXIS, axis=axis, tiled=True, to="invarying")
        return gathered

    def __repr__(self) -> str:
        return f"PerReplica(component={self.component}, num_replicas={self.num_replicas})"


def components_as_html(replicas: Sequence[int], components: Sequence[Leaf]) -> str:
    """Returns a table with a line for each component, for a notebook."""
    rows = [(i, *_described(component)) for i, component in zip(replicas, components, strict=True)]
    return html_table(("replica", "device", "shape", "dtype", "value"), rows, caption="PerReplica")


def _described(component: Leaf) -> tuple[str, str, str, str]:
    """Returns the device, the shape, the dtype and, shortened, the entries of a component."""
    if not isinstance(component, (jax.Array, np.ndarray)):
        return "", "", type(component).__name__, repr(component)[:_MOST_CHARACTERS]
    names = map(device_name, component.devices()) if isinstance(component, jax.Array) else ("host",)
    is_number = isinstance(component, np.ndarray) or not is_random_key(component)
    shown = is_number and component.nbytes <= _MOST_BYTES_SHOWN
    value = np.array2string(np.asarray(component), precision=4, threshold=8, edgeitems=2) if shown else "..."
    return ", ".join(sorted(names)), str(list(component.shape)), str(component.dtype), value


ANY_PER_REPLICA = (PerReplica, UnevenPerReplica, ManualPerReplica)


def is_per_replica(value: object) -> TypeGuard[PerReplica | UnevenPerReplica | ManualPerReplica]:
    """Returns whether `value` is a per-replica value: one leaf of a pytree, for JAX's tree functions."""
    return isinstance(value, ANY_PER_REPLICA)


def component_here(value: Leaf, name: str) -> Leaf:
    """Returns the running replica's component of a per-replica value for variable `name`; other values as they are."""
    if not is_per_replica(value):
        return value
    if context.current().manual_replicas is None:
        raise VariableError(
            f"Variable {name!r} was assigned a per-replica value outside of a replica, which would make its copies "
            "differ. Reduce it first: strategy.reduce('sum', value, axis=None)."
        )
    return value.own()


def normalize_axes(axis: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Returns `axis` as a tuple of non-negative dimensions of `shape`.

    Example:
        >>> normalize_axes(-1, (4, 5))
        (1,)
    """
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for entry in axes:
        if not is_int(entry):
            raise ReduceError(f"`axis` is None, an int or a tuple of ints, got {axis!r}.")
        if not -len(shape) <= entry < len(shape):
            raise ReduceError(f"axis={axis!r} does not exist: each replica's component has shape {tuple(shape)}.")
    normal = tuple(entry % len(shape) for entry in axes)
    if len(set(normal)) < len(normal):
        raise ReduceError(f"axis={axis!r} names a dimension twice.")
    return normal


#: The fault of a masked array; messages begin with where it is.
MASKED = (
    "a masked array: devices know no masks, and would compute with the masked values too. Replace them "
    "(`x.filled(0.0)`), and pass the mask as an array of its own, such as `sample_weight`, if the step needs it."
)


def holds_numbers(value: object) -> bool:
    """Returns whether `value`, if it is of NumPy's, holds numbers; strings, objects, times and records are none."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return True
    return value.dtype.kind not in "OSUMm" and value.dtype.names is None


def _is_number(component: Leaf) -> bool:
    is_array = hasattr(component, "dtype") or isinstance(component, (bool, int, float, complex))
    return is_array and holds_numbers(component)


def _kind(component: Leaf) -> str:
    kind = getattr(component, "dtype", type(component).__name__)
    return f"{jnp.shape(component)} {kind}" if _is_number(component) else str(kind)


def _combine(op: ReduceOp, array: jax.Array, axis: int | tuple[int, ...]) -> jax.Array:
    return jnp.sum(array, axis=axis) if op is ReduceOp.SUM else jnp.mean(array, axis=axis)
