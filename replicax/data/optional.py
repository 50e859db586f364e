"""What `iterator.get_next_as_optional()` returns: the data of the next step, or the end of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from replicax.errors import EndOfDataError
from replicax.values import is_per_replica

_NOTHING = object()


@jax.tree_util.register_pytree_node_class
class Optional:
    """A value, or none; as `tf.experimental.Optional`. Functions of JAX and steps take its value apart.

    Example:
        >>> Optional.from_value(3).has_value(), Optional.empty(None).has_value()
        (True, False)
    """

    def __init__(self, value: Any = _NOTHING, element_spec: Any = None):
        self._value, self._spec = value, element_spec

    @staticmethod
    def from_value(value: Any) -> Optional:
        """Returns one that has a value, a nest of arrays."""
        return Optional(value, jax.tree_util.tree_map(_spec, value, is_leaf=is_per_replica))

    @staticmethod
    def empty(element_spec: Any) -> Optional:
        """Returns one without a value; `element_spec` is what a value would be like."""
        return Optional(element_spec=element_spec)

    def has_value(self) -> bool:
        """Returns whether there is a value."""
        return self._value is not _NOTHING

    def get_value(self) -> Any:
        """Returns the value.

        Raises:
            EndOfDataError: There is none.
        """
        if not self.has_value():
            raise EndOfDataError(
                "This Optional has no value: the dataset has no further step. Ask has_value() first, or loop with "
                "`for batch in dataset:`."
            )
        return self._value

    @property
    def element_spec(self) -> Any:
        """What one replica gets: a nest of `jax.ShapeDtypeStruct`; None where it is not known."""
        return self._spec

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the value as the only child, if there is one (JAX's pytree protocol)."""
        leaves, structure = jax.tree_util.tree_flatten(self._spec)
        return (self._value,) if self.has_value() else (), (tuple(leaves), structure)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> Optional:
        """Rebuilds it from its value (JAX's pytree protocol)."""
        leaves, structure = aux
        spec = jax.tree_util.tree_unflatten(structure, leaves)
        return cls(children[0], spec) if children else cls.empty(spec)

    def __bool__(self) -> bool:
        return self.has_value()

    def __repr__(self) -> str:
        return f"Optional({self._value!r})" if self.has_value() else "Optional(no value)"


def _spec(leaf: Any) -> Any:
    shape = leaf.component_shape if is_per_replica(leaf) else jax.numpy.shape(leaf)
    dtype = leaf.stacked.dtype if is_per_replica(leaf) else jax.numpy.asarray(leaf).dtype
    return jax.ShapeDtypeStruct(shape, dtype)
