"""Reading a variable: its value, here and in traced functions, and what is shown of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import is_random_key
from replicax.contracts.shown import html_facts
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import lives_elsewhere
from replicax.errors import StrategyMismatchError, VariableError
from replicax.runtime import turns
from replicax.runtime.devices import device_name
from replicax.values.aggregation import VariableAggregation
from replicax.values.array_like import ArrayLike
from replicax.variables.whole_values import as_numpy

_MOST_SHOWN = 24  # entries of a value that are printed all


class ReadableVariable(ArrayLike):
    """The value of a variable, and how it is read.

    Attributes:
        name: Name for messages.
        strategy: The strategy in whose scope the variable was made, or None.
        aggregation: How the components of a variable that keeps one for each replica make its value.
        per_replica: Whether `_value` stacks one component per replica, shape `(num_replicas, ...)`.
    """

    name: str
    strategy: StrategyBase | None
    aggregation: VariableAggregation
    per_replica: bool
    _value: jax.Array
    _shape: tuple[int, ...]
    _dtype: np.dtype

    @property
    def value(self) -> jax.Array:
        """The current value: this replica's inside `strategy.run`, the aggregated one outside of it.

        Raises:
            VariableError: An `"on_read"` variable without aggregation is read outside of a replica.
            StrategyMismatchError: Another strategy is current.
        """
        raw = self._read()
        if not self.per_replica or context.current().manual_replicas is not None:
            return raw
        if self.aggregation is VariableAggregation.SUM:
            return jnp.sum(raw, axis=0, dtype=raw.dtype)
        if self.aggregation is VariableAggregation.MEAN:
            return jnp.mean(raw, axis=0)
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return raw[0]
        raise VariableError(
            f"Variable {self.name!r} has one value per replica and no aggregation, so it has no single value outside "
            "of a replica. Create it with aggregation='sum', 'mean' or 'only_first_replica'."
        )

    def read_value(self) -> jax.Array:
        """Returns `value`; the spelling of tf.Variable."""
        return self.value

    def numpy(self) -> np.ndarray:
        """Returns the current value as a NumPy array; where workers hold shards of it, all of them call this."""
        return as_numpy(self, self.value)

    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        value = self.value
        return np.array(as_numpy(self, value) if isinstance(value, jax.Array) else value, dtype=dtype, copy=copy)

    def _read(self) -> jax.Array:
        current = context.current()
        check_owner(self.strategy, current.strategy, self.name)
        if current.frame is None:
            if lives_elsewhere(self):
                return self._value
            with turns.DISPATCH: return self._value  # noqa: E701  # fmt: skip
        value = current.frame.read(self)
        current.frame.note_read(self, value)
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the value."""
        return self._dtype

    @property
    def device(self) -> str:
        """Name of the device that has the value, such as `"cpu:0"`; of several, the first of this process."""
        devices: set[jax.Device] = self._value.sharding.addressable_devices
        return device_name(min(devices, key=lambda device: device.id))

    def __repr__(self) -> str:
        copies = f", replicas={self.strategy.num_replicas_in_sync}" if self.strategy is not None else ""
        return f"<Variable {self.name!r} shape={self._shape} dtype={self._dtype}{copies}{self._shown_value()}>"

    def _facts(self) -> dict[str, object]:
        """Returns the lines of the table that a notebook shows."""
        facts: dict[str, object] = {"shape": str(list(self._shape)), "dtype": str(self._dtype)}
        if self.strategy is not None:
            facts["replicas"] = self.strategy.num_replicas_in_sync
        if self.per_replica:
            facts["each replica has its own; together"] = self.aggregation.value
        what, _, value = self._shown_value().removeprefix(", ").partition("=")
        return {**facts, what: value} if what else facts

    def _repr_html_(self) -> str:
        return html_facts(f"{type(self).__name__} {self.name}", self._facts())

    def _shown_value(self) -> str:
        """Returns the value for messages; nothing where it would have to be fetched or is known only later."""
        if lives_elsewhere(self):
            return f", device={self.device!r}"
        value = getattr(self, "_value", None)
        if context.current().frame is not None or not isinstance(value, jax.Array) or is_random_key(value):
            return ""
        if value.is_deleted() or not (value.is_fully_addressable or value.is_fully_replicated):
            return ""
        what = "components" if self.per_replica else "value"
        with turns.DISPATCH: shown = np.asarray(value)  # noqa: E701  # fmt: skip
        text = np.array2string(shown, separator=", ", threshold=_MOST_SHOWN, edgeitems=2)
        return f", {what}={text}"


def check_owner(owner: StrategyBase | None, current: StrategyBase | None, name: str) -> None:
    """Checks that a variable of strategy `owner` may be used while `current` is the current strategy."""
    if owner is not None and current is not None and owner is not current:
        raise StrategyMismatchError(
            f"Variable {name!r} was created under {owner!r} and used under {current!r}. Create the variables (model, "
            "optimizer, metrics) inside the scope of the strategy that runs them."
        )
