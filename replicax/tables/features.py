"""The features of a layer and their tables, in whatever structure the user has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ArgumentError
from replicax.tables.inputs import MOST_IDS, check_range, dense_ids
from replicax.tables.specs import FeatureConfigLike, TableConfigLike, TableSpec, table_spec
from replicax.typing import PyTree

#: The key by which inputs are known that `preprocess` has returned; they have the form of `keras_rs`.
PREPROCESSED = "preprocessed_inputs_per_placement"
_PLACE = "default_device"
_NO_ID = MOST_IDS - 1  # No table has so many rows.


class Feature(NamedTuple):
    """A feature."""

    config: FeatureConfigLike
    table: int  # its number
    spec: TableSpec  # of the table

    @property
    def ids(self) -> int | None:
        """How many ids a row of the batch has; None where that is not fixed."""
        shape = self.config.input_shape
        return None if len(shape) < 2 else shape[1]


class Features:
    """The features of a layer."""

    def __init__(self, configs: PyTree):
        import keras

        self.configs = configs
        self.tables: list[TableConfigLike] = []  # each once
        self.specs: list[TableSpec] = []
        self.by_path: dict[str, Feature] = {}  # by their paths in the structure
        paths = keras.tree.flatten_with_path(configs)
        for path, config in paths:
            self._add(".".join(map(str, path)), config)
        if not paths:
            raise ArgumentError(
                "`feature_configs` holds no features: it is a structure of keras_rs.layers.FeatureConfig."
            )
        #: The paths in the structure of the configurations.
        self._paths = keras.tree.pack_sequence_as(configs, list(self.by_path))

    def _add(self, path: str, config: FeatureConfigLike) -> None:
        if not all(hasattr(config, name) for name in ("name", "table", "input_shape", "output_shape")):
            raise ArgumentError(
                f"`feature_configs` is a structure of keras_rs.layers.FeatureConfig, got {type(config).__name__} at "
                f"{path!r}: {config!r:.100}."
            )
        numbers = [i for i, table in enumerate(self.tables) if table is config.table]
        if not numbers:
            spec = table_spec(config.table)
            if spec.name in {each.name for each in self.specs}:
                raise ArgumentError(
                    f"Two tables are called {spec.name!r}. Features share a table if they have the same TableConfig "
                    "object; other tables need other names."
                )
            numbers = [len(self.tables)]
            self.tables.append(config.table)
            self.specs.append(spec)
        self.by_path[path] = Feature(config, numbers[0], self.specs[numbers[0]])

    def map(self, fn: Callable[..., Any], *structures: PyTree) -> PyTree:
        """Returns what `fn` makes of each feature's path and its parts of structures."""
        import keras

        return keras.tree.map_structure_up_to(self._paths, fn, self._paths, *structures)

    def preprocessed(self, inputs: PyTree, weights: PyTree | None) -> dict[str, Any]:
        """Returns inputs and weights by the paths of the features, as arrays, in the form of `keras_rs`."""
        found: dict[str, dict[str, Any]] = {"inputs": {}, "weights": {}}

        def add(path: str, ids: object, given: object = None) -> None:
            feature = self.by_path[path]
            ids, each = dense_ids(ids, given, feature.ids, feature.config.name)
            check_range(ids, None if feature.spec.grows else feature.spec.rows, feature.config.name)
            self._check_shape(path, ids.shape)
            found["inputs"][path] = ids
            if each is not None:
                found["weights"][path] = each

        self.map(add, *([inputs] if weights is None else [inputs, weights]))
        if not found["weights"]:
            del found["weights"]
        return {PREPROCESSED: {_PLACE: found}}

    def _check_shape(self, path: str, shape: tuple[int | None, ...]) -> None:
        config = self.by_path[path].config
        wanted = tuple(config.input_shape)
        fits = len(shape) == len(wanted) and all(
            None in sizes or sizes[0] == sizes[1] for sizes in zip(shape[1:], wanted[1:], strict=False)
        )
        if not shape or not fits:
            raise ArgumentError(
                f"Feature {config.name!r} has the input_shape {wanted}, got ids of shape {tuple(shape)}; the first "
                "number, of rows in the batch, may be another."
            )

    def check_shapes(self, shapes: PyTree) -> None:
        """Checks that the shapes of inputs are those of their features."""
        if not is_preprocessed(shapes):
            self.map(lambda path, shape: self._check_shape(path, tuple(shape)), shapes)


def is_preprocessed(inputs: PyTree) -> bool:
    """Returns whether inputs (or their shapes) are what `preprocess` returns."""
    return isinstance(inputs, Mapping) and PREPROCESSED in inputs


def parts_of(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the ids and the weights by paths of what `preprocess` has returned."""
    parts = inputs[PREPROCESSED][_PLACE]
    return dict(parts["inputs"]), dict(parts.get("weights", {}))


def as_ids(ids: jax.Array | np.ndarray) -> jax.Array:
    """Returns ids as int32; Keras makes floating numbers of inputs whose dtype is not given.

    An id that int32 does not have, such as 1.5, NaN or 2**31, becomes one that no table has.
    """
    ids = jnp.asarray(ids)
    is_floating = jnp.issubdtype(ids.dtype, jnp.floating)
    if not is_floating and not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ArgumentError(
            f"Ids are integers, got an array of {ids.dtype}. Other keys can be hashed: rx.keras.hashed_ids."
        )
    if jnp.can_cast(ids.dtype, jnp.int32):
        return ids.astype(jnp.int32)
    fits = ids < _NO_ID
    if not jnp.issubdtype(ids.dtype, jnp.unsignedinteger):
        fits &= ids > -_NO_ID
    if is_floating:
        fits &= ids == jnp.rint(ids)
    return jnp.where(fits, ids.astype(jnp.int32), _NO_ID)
