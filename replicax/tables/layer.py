"""`rx.keras.DistributedEmbedding`: a layer of tables. Its class is made when it is first asked for, with Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.contracts.strategy import or_null
from replicax.errors import ArgumentError
from replicax.tables.contents import Deal
from replicax.tables.features import Features, as_ids, is_preprocessed, parts_of
from replicax.tables.growing import GrowingTable
from replicax.tables.making import make_table, read_table, write_table
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras


class TablesLayer:
    """Looks ids up in tables that are too large for one device, and combines the rows of several ids.

    It takes the configurations of `keras_rs.layers.DistributedEmbedding` unchanged. In the scope of a mirrored
    strategy each table is split by rows over the devices: in a step, row numbers and rows travel by all-to-all,
    inside the compiled program. In the scope of a `ParameterServerStrategy` it lives on the servers. Each table has
    an optimizer of its own, which changes only the rows that a step has looked up, each once with the sum of its
    gradients. That happens where the gradients of the other weights are computed, in `fit` and in
    `rx.value_and_grad`; the model's optimizer does not see the tables.

    Ids out of range give NaN, as in Keras; those that are known when the layer is called are an error.

    Args:
        feature_configs: Pytree of `keras_rs.layers.FeatureConfig`. Inputs and outputs have its structure.
            The first number of a feature's `input_shape`, of rows in the batch, need not be right.
        table_stacking: Accepted as in `keras_rs`; it is for SparseCores.
        update_stats: Accepted as in `keras_rs`. There is no number of ids that a table must be told of beforehand.
        kwargs: Those of a Keras layer.

    Raises:
        ArgumentError: A configuration makes no sense, asks for SparseCores or for an optimizer that changes other
            rows than those looked up; or the layer computes in float16, whose gradients are scaled.

    Example:
        >>> import keras_rs
        >>> table = keras_rs.layers.TableConfig("words", vocabulary_size=100, embedding_dim=4, optimizer="sgd")
        >>> feature = keras_rs.layers.FeatureConfig("title", table, input_shape=(2, 3), output_shape=(2, 4))
        >>> layer = rx.keras.DistributedEmbedding({"title": feature})
        >>> layer({"title": [[1, 2], [3, 4, 5]]})["title"].shape
        (2, 4)
    """

    compute_dtype: str
    add_weight: Callable[..., keras.Variable]

    def __init__(
        self,
        feature_configs: PyTree,
        *,
        table_stacking: object = "auto",
        update_stats: bool = False,
        **kwargs: Any,
    ):
        cast(Any, super()).__init__(**kwargs)
        if self.compute_dtype == "float16":
            raise ArgumentError(
                "DistributedEmbedding computes in float16, in which losses are scaled, and with them the gradients "
                "of its rows. Use mixed_bfloat16; or give the layer dtype='float32' and compile with "
                "auto_scale_loss=False."
            )
        self.table_stacking, self.update_stats = table_stacking, update_stats
        self._features = Features(feature_configs)
        strategy = context.current().strategy
        host = or_null(strategy)
        replicas = 1 if strategy is None or host.is_asynchronous else host.num_replicas_in_sync
        self._hook = self.add_weight(shape=(), initializer="zeros", name="hook")
        vars(self._hook)["optimizer_check"] = _check_model_optimizer
        tables = [make_table(self, spec, Deal(spec.rows, replicas), host, self._hook) for spec in self._features.specs]
        self._tables = tuple(tables)

    def build(self, input_shapes: PyTree) -> None:
        """Checks the shapes of inputs; the tables are made with the layer."""
        self._features.check_shapes(input_shapes)
        self.built = True

    def preprocess(self, inputs: PyTree, weights: PyTree | None = None, training: bool = False) -> dict[str, Any]:
        """Makes arrays of ids and weights, for a pipeline of data: rows of different lengths are filled up.

        Args:
            inputs: Structure of ids: arrays of shape `(batch,)` or `(batch, ids)`, or rows of different lengths: a
                list of lists, a NumPy array of arrays, a pair of values and row splits.
            weights: One for each id, in the same structure and form, or None.
            training: Accepted as in `keras_rs`.

        Returns:
            What the layer takes in the place of the inputs.

        Raises:
            ArgumentError: An id is not in its table, or what a feature gets are no ids.
        """
        del training
        return self._features.preprocessed(inputs, weights)

    def __call__(self, inputs: PyTree, weights: PyTree | None = None, **kwargs: Any) -> PyTree:
        """Looks ids up; see `call`."""
        import keras

        is_symbolic = any(isinstance(each, keras.KerasTensor) for each in keras.tree.flatten(inputs))
        if is_symbolic:
            return cast(Any, super()).__call__(inputs, weights, **kwargs)
        if not is_preprocessed(inputs):
            inputs = self._features.preprocessed(inputs, weights)
        return cast(Any, super()).__call__(inputs, **kwargs)

    def call(self, inputs: PyTree, weights: PyTree | None = None, training: bool = False) -> PyTree:
        """Looks ids up in the tables and combines them.

        Args:
            inputs: As for `preprocess`, or what that returns.
            weights: As for `preprocess`.
            training: Not used: the tables are updated where gradients are computed.

        Returns:
            Arrays of shape `(batch, embedding_dim)` in the structure of the features.
        """
        del training
        if not is_preprocessed(inputs):
            inputs = self._features.preprocessed(inputs, weights)
        ids, given = parts_of(inputs)
        hook = self._hook.value
        by_table: dict[int, list[str]] = {}
        for path in ids:
            by_table.setdefault(self._features.by_path[path].table, []).append(path)
        found: dict[str, jax.Array] = {}
        for number, paths in by_table.items():
            found |= self._looked_up(number, {path: as_ids(ids[path]) for path in paths}, given, hook)
        results = {path: self._combined(path, rows, given.get(path)) for path, rows in found.items()}
        return self._features.map(lambda path: results[path])

    def _looked_up(
        self, number: int, ids: dict[str, jax.Array], weights: dict[str, jax.Array], hook: jax.Array
    ) -> dict[str, jax.Array]:
        """Returns the rows of all features of a table, which are looked up at once."""
        flat = jax.numpy.concatenate([each.reshape(-1) for each in ids.values()])
        counts = None
        if any(weights.get(path) is not None for path in ids):
            each_counts = [self._counting(path, each, weights.get(path)) for path, each in ids.items()]
            counts = jax.numpy.concatenate([each.reshape(-1) for each in each_counts])
        rows = self._tables[number].look_up(flat, hook, counts)
        parts = np.cumsum([each.size for each in ids.values()])[:-1]
        split = zip(ids.items(), jax.numpy.split(rows, parts), strict=True)
        return {path: part.reshape(*each.shape, part.shape[-1]) for (path, each), part in split}

    def _counting(self, path: str, ids: jax.Array, weights: jax.Array | None) -> jax.Array:
        """Returns which ids count: those of weight 0 are padding, unless the weights of single ids are not used."""
        if weights is None or jax.numpy.shape(weights) != ids.shape:  # Others are refused where rows are combined.
            return jax.numpy.ones(ids.shape, bool)
        is_used = ids.ndim > 1 or self._features.by_path[path].spec.combiner == "sum"
        return jax.numpy.asarray(weights) != 0 if is_used else jax.numpy.ones(ids.shape, bool)

    def _combined(self, path: str, rows: jax.Array, weights: jax.Array | None) -> jax.Array:
        feature = self._features.by_path[path]
        weights = None if weights is None else jax.numpy.asarray(weights)
        return combined(rows.astype(self.compute_dtype), weights, feature.spec.combiner, feature.config.name)

    def get_embedding_tables(self) -> dict[str, jax.Array]:
        """Returns the tables by their names, arrays of shape `(vocabulary_size, embedding_dim)`."""
        return {table.spec.name: read_table(table, "") for table in self._tables}

    def compute_output_shape(self, input_shapes: PyTree) -> PyTree:
        """Returns the shapes of the outputs, as the configurations of the features say."""
        self._features.check_shapes(input_shapes)
        return self._features.map(lambda path: tuple(self._features.by_path[path].config.output_shape))

    def compute_output_spec(self, inputs: PyTree, weights: PyTree | None = None, training: bool = False) -> PyTree:
        """Returns what the outputs of a functional model are."""
        import keras

        del weights, training

        def spec(path: str, ids: keras.KerasTensor) -> keras.KerasTensor:
            shape = ids.shape if len(ids.shape) == 1 else ids.shape[:-1]
            return keras.KerasTensor((*shape, self._features.by_path[path].spec.columns), dtype=self.compute_dtype)

        return self._features.map(spec, inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration as plain data; tables that features share come once."""
        config = cast(Any, super()).get_config()
        config |= {"table_stacking": self.table_stacking, "update_stats": self.update_stats}
        return {**config, **configuration(self._features)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> keras.Layer:
        """Makes a layer of what `get_config` has returned; it needs `keras_rs`."""
        config = dict(config)
        return cls(features_from(config.pop("feature_configs"), config.pop("tables")), **config)

    def save_own_variables(self, store: Any) -> None:
        """Writes the tables as they are on one device, with what their optimizers keep."""
        store["hook"] = np.asarray(self._hook.value)
        for table in self._tables:
            for name in table.variables:
                store[_key(table.spec.name, name)] = np.asarray(read_table(table, name))
            store[_key(table.spec.name, "step")] = np.asarray(table.step.value)
            if table.index is not None:
                store[_key(table.spec.name, "index")] = np.asarray(table.index)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` has written, on however many devices."""
        if "hook" in store:
            self._hook.assign(store["hook"])
        for table in self._tables:
            for name in table.variables:
                key = _key(table.spec.name, name)
                if key not in store and name:
                    continue  # Only rows: a table is taken over into a new training.
                write_table(table, name, np.asarray(store[key]))
            if table.index is not None:
                table.index.assign(np.asarray(store[_key(table.spec.name, "index")]))
            if _key(table.spec.name, "step") in store:
                table.step.assign(np.asarray(store[_key(table.spec.name, "step")]))


def _check_model_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that the gradients of rows, as a step computes them, are those that the optimizer works with."""
    import keras

    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise ArgumentError(
            f"The optimizer of the model has gradient_accumulation_steps={steps}, but the rows of a "
            "DistributedEmbedding are updated in each step, with gradients of its part of the rows. Leave it out, and "
            "make batches larger."
        )
    factor = getattr(optimizer, "loss_scale_factor", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or factor:
        how = type(optimizer).__name__ + (f"(loss_scale_factor={factor})" if factor else "")
        raise ArgumentError(
            f"The optimizer of the model is {how}, for which the loss is scaled, and with it the gradients of the rows "
            "of a DistributedEmbedding, which it does not see. Use mixed_bfloat16 or float32, in which losses need no "
            "scale; with mixed_float16, compile(auto_scale_loss=False)."
        )


@functools.cache
def distributed_embedding_class() -> type:
    """Returns the class: the layer on top of Keras's."""
    import keras

    namespace = {"__doc__": TablesLayer.__doc__, "__module__": "replicax.keras"}
    made = type("DistributedEmbedding", (TablesLayer, keras.layers.Layer), namespace)
    registered: type = keras.saving.register_keras_serializable("replicax")(made)
    return registered


def _key(table: str, part: str) -> str:
    return f"{table}.{part}" if part else table


# Combining the rows of several ids: sum, mean, and the sum divided by the square root of the number.


def combined(rows: jax.Array, weights: jax.Array | None, combiner: str, feature: str) -> jax.Array:
    """Combines looked-up rows as `keras_rs.layers.EmbedReduce` does; without `weights` all are 1."""
    if weights is not None and weights.shape != rows.shape[: weights.ndim]:
        raise ArgumentError(
            f"The weights of feature {feature!r} have shape {weights.shape}, and its ids {rows.shape[:-1]}: give each "
            "id one."
        )
    if rows.ndim <= 2:  # (batch, columns), and not (..., ids, columns): one id has nothing to be combined with.
        return rows if weights is None or combiner != "sum" else rows * _beside(weights, rows)
    dtype = rows.dtype if weights is None else jnp.result_type(rows, weights)
    each = jnp.ones(rows.shape[:-1], dtype) if weights is None else weights.astype(dtype)
    each = _beside(each, rows)
    summed = (rows * each).sum(axis=-2)
    if combiner == "sum":
        return summed
    divisor = each.sum(axis=-2) if combiner == "mean" else jnp.sqrt(jnp.square(each).sum(axis=-2))
    # Where the sum of the weights is zero, so is the result: all ids are padding.
    is_zero = divisor == 0
    return jnp.where(is_zero, 0, summed / jnp.where(is_zero, 1, divisor))


def _beside(weights: jax.Array, rows: jax.Array) -> jax.Array:
    return weights.reshape(*weights.shape, *[1] * (rows.ndim - weights.ndim))


# The configuration of a layer of tables as plain data, in the form of `keras_rs`: shared tables come once.


def configuration(features: Features) -> dict[str, Any]:
    """Returns the features with the numbers of their tables, and the tables."""
    import keras

    numbers = {id(each.config): each.table for each in features.by_path.values()}

    def described(config: Any) -> dict[str, Any]:
        return {**config.get_config(), "table": numbers[id(config)]}

    return {
        "feature_configs": keras.tree.map_structure(described, features.configs),
        "tables": [table.get_config() for table in features.tables],
    }


def features_from(features: PyTree, tables: list[dict[str, Any]]) -> PyTree:
    """Returns the structure of `keras_rs.layers.FeatureConfig` that `configuration` has described."""
    import keras
    import keras_rs

    made = [(GrowingTable if "evict" in table else keras_rs.layers.TableConfig).from_config(table) for table in tables]

    def feature(node: Any) -> Any:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            return None  # The structure goes on.
        return keras_rs.layers.FeatureConfig(
            node["name"], made[node["table"]], tuple(node["input_shape"]), tuple(node["output_shape"])
        )

    return keras.tree.traverse(feature, features)
