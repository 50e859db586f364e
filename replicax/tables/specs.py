"""The description of a table for the places where tables live: read from the configurations of Keras RS.

The configurations (`keras_rs.layers.TableConfig` and `FeatureConfig`) are taken as they are. They are known by their
attributes, so that a program without Keras RS can pass objects that have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from replicax.checks import is_int
from replicax.errors import ArgumentError
from replicax.tables.row_optimizers import RowOptimizer, row_optimizer

if TYPE_CHECKING:
    import keras

COMBINERS = ("mean", "sum", "sqrtn")
PLACEMENTS = ("auto", "default_device", "sparsecore")


class TableConfigLike(Protocol):
    """The attributes of `keras_rs.layers.TableConfig` that are read here."""

    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: str | keras.initializers.Initializer
    optimizer: str | keras.optimizers.Optimizer
    combiner: str
    placement: str

    def get_config(self) -> dict[str, Any]:
        """Returns them as plain data."""


class FeatureConfigLike(Protocol):
    """The attributes of `keras_rs.layers.FeatureConfig` that are read here."""

    name: str
    table: TableConfigLike
    input_shape: Sequence[int | None]
    output_shape: Sequence[int | None]


class TableSpec(NamedTuple):
    """A table."""

    name: str
    rows: int  # the size of the vocabulary
    columns: int  # the length of a row
    initializer: keras.initializers.Initializer  # makes the first value, of shape (rows, columns)
    optimizer: RowOptimizer
    combiner: str  # one of COMBINERS
    evict: str | None = None  # whose row a table that grows gives to a new id (`growing.EVICTIONS`); None: it does not

    @property
    def grows(self) -> bool:
        """Whether any int32 of at least 0 is an id."""
        return self.evict is not None


def table_spec(config: TableConfigLike) -> TableSpec:
    """Reads the configuration of a table, and checks it."""
    import keras

    # `max_ids_per_partition` and `max_unique_ids_per_partition` are not needed: as many ids as there are get exchanged.
    name = getattr(config, "name", None)
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"A table has a name, a str that is not empty; got {name!r} in {config!r:.100}.")
    for attribute in ("vocabulary_size", "embedding_dim"):
        value = getattr(config, attribute)
        if not is_int(value) or value < 1:
            raise ArgumentError(f"Table {name!r}: `{attribute}` is an int of at least 1, got {value!r}.")
    if config.combiner not in COMBINERS:
        raise ArgumentError(f"Table {name!r}: `combiner` is one of {', '.join(COMBINERS)}; got {config.combiner!r}.")
    _check_placement(name, config.placement)
    # Keras RS says so of a table without one.
    initializer = config.initializer or keras.initializers.VarianceScaling(mode="fan_out")
    try:
        optimizer = row_optimizer(config.optimizer)
    except ArgumentError as error:
        raise ArgumentError(f"Table {name!r}: {error}") from None
    return TableSpec(
        name,
        int(config.vocabulary_size),
        int(config.embedding_dim),
        keras.initializers.get(initializer),
        optimizer,
        config.combiner,
        getattr(config, "evict", None),
    )


def _check_placement(name: str, placement: str) -> None:
    if placement not in PLACEMENTS:
        raise ArgumentError(f"Table {name!r}: `placement` is one of {', '.join(PLACEMENTS)}; got {placement!r}.")
    if placement == "sparsecore":
        raise ArgumentError(
            f"Table {name!r} is to live on SparseCores (placement='sparsecore'). Here tables live in the memory of the "
            "devices, or on servers: use 'auto' or 'default_device'."
        )
