"""The result of `iterator.get_next_as_optional()`: the data of the next step, or no value at the end of the data."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.errors import EndOfDataError
from replicax.typing import Leaf, PyTree
from replicax.values import is_per_replica

_NOTHING = object()


@jax.tree_util.register_pytree_node_class
class Optional:
    """A value, or no value; as `tf.experimental.Optional`. It is a pytree, whose leaves are those of its value.

    Example:
        >>> Optional.from_value(3).has_value(), Optional.empty(None).has_value()
        (True, False)
    """

    def __init__(self, value: PyTree = _NOTHING, element_spec: PyTree = None):
        self._content, self._spec = value, element_spec

    @staticmethod
    def from_value(value: PyTree) -> Optional:
        """Returns one that has a value, a pytree of arrays."""
        return Optional(value, jax.tree_util.tree_map(_spec, value, is_leaf=is_per_replica))

    @staticmethod
    def empty(element_spec: PyTree) -> Optional:
        """Returns one without a value; `element_spec` describes what a value would be."""
        return Optional(element_spec=element_spec)

    def has_value(self) -> bool:
        """Returns whether there is a value."""
        return self._content is not _NOTHING

    def get_value(self) -> PyTree:
        """Returns the value.

        Raises:
            EndOfDataError: There is none.
        """
        if not self.has_value():
            raise EndOfDataError(
                "This Optional has no value: the dataset has no further step. Check has_value() first, or loop with "
                "`for batch in dataset:`."
            )
        return self._content

    @property
    def element_spec(self) -> PyTree:
        """The shapes and dtypes that one replica gets: a pytree of `jax.ShapeDtypeStruct`; None if they are unknown."""
        return self._spec

    def tree_flatten(self) -> tuple[tuple[PyTree, ...], tuple[tuple[Leaf, ...], jax.tree_util.PyTreeDef]]:
        """Returns the value as the only child, if there is one (JAX's pytree protocol)."""
        leaves, structure = jax.tree_util.tree_flatten(self._spec)
        return (self._content,) if self.has_value() else (), (tuple(leaves), structure)

    @classmethod
    def tree_unflatten(
        cls, aux: tuple[tuple[Leaf, ...], jax.tree_util.PyTreeDef], children: Sequence[PyTree]
    ) -> Optional:
        """Makes it of its value (JAX's pytree protocol)."""
        leaves, structure = aux
        spec = jax.tree_util.tree_unflatten(structure, leaves)
        return cls(children[0], spec) if children else cls.empty(spec)

    def __bool__(self) -> bool:
        return self.has_value()

    def __repr__(self) -> str:
        return f"Optional({self._content!r})" if self.has_value() else "Optional(no value)"


def _spec(leaf: Leaf) -> jax.ShapeDtypeStruct:
    if is_per_replica(leaf):
        return jax.ShapeDtypeStruct(leaf.component_shape, leaf.stacked.dtype)
    return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.asarray(leaf).dtype)
