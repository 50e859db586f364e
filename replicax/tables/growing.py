"""`GrowingTable`: the configuration of a table that gives ids rows as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replicax.checks import checked_int
from replicax.errors import ArgumentError

if TYPE_CHECKING:
    import keras
    from keras_rs.layers import TableConfig as _TableConfig  # For type checkers: features take either.
else:
    _TableConfig = object

#: An index has for each row its id (this where it is free), its last update, how many there were, and the first.
FREE_ROW = -1
INDEX_COLUMNS = 4
EVICTIONS = ("lru", "lfu", "age")


class GrowingTable(_TableConfig):
    """A table without a vocabulary: any int32 of at least 0 is an id, and gets a row when it is first trained.

    It stands in the place of a `keras_rs.layers.TableConfig`, under a `ParameterServerStrategy`. A new row begins with
    what the initializer makes of the id, whatever the order in which ids come, and its optimizer's slots begin anew
    too. When all rows are taken, a server takes that of another id, which begins anew when it comes again.

    Args:
        name: The name of the table.
        embedding_dim: How long a row is.
        capacity: How many rows there are, on all servers together. Each has room for the ids that hash to it: a batch
            must not have more of them.
        initializer: An initializer of Keras with a fixed seed; the same default as keras_rs's.
        optimizer: SGD, Adagrad, Adam or Ftrl of Keras.
        combiner: `"mean"`, `"sum"` or `"sqrtn"`.
        evict: Whose row is taken when none is free: `"lru"`, of the id that was trained longest ago, `"lfu"`, of the
            one that was trained least often, or `"age"`, of the one that came first.

    Raises:
        ArgumentError: `capacity` is not positive, or `evict` none of these.

    Example:
        >>> table = GrowingTable("users", embedding_dim=16, capacity=1_000_000, optimizer="adagrad", evict="lru")
        >>> table.vocabulary_size
        1000000
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        capacity: int,
        initializer: str | keras.initializers.Initializer | None = None,
        optimizer: str | keras.optimizers.Optimizer = "adam",
        combiner: str = "mean",
        evict: str = "lru",
    ):
        import keras

        self.capacity = checked_int("capacity", capacity, least=1)
        if evict not in EVICTIONS:
            raise ArgumentError(f"`evict` is one of {', '.join(map(repr, EVICTIONS))}, got {evict!r}.")
        self.name, self.embedding_dim, self.optimizer, self.combiner = name, embedding_dim, optimizer, combiner
        self.initializer = keras.initializers.VarianceScaling(mode="fan_out") if initializer is None else initializer
        self.evict = evict
        self.vocabulary_size, self.placement = capacity, "auto"

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments as plain data."""
        import keras

        return {
            "name": self.name,
            "embedding_dim": self.embedding_dim,
            "capacity": self.capacity,
            "initializer": keras.saving.serialize_keras_object(self.initializer),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "combiner": self.combiner,
            "evict": self.evict,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GrowingTable:
        """Returns the table that `get_config` has described."""
        import keras

        made = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("initializer", "optimizer")}
        return cls(**{**config, **made})
