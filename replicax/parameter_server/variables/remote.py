"""Variables whose values live on servers: reading one fetches its value, assigning one sends it.

A variable made in the scope of a `ParameterServerStrategy`, Keras's or ours, gets a subclass of its class that stores
the value on servers. Everything that reads or assigns variables (optimizers, saving, checkpoints, callbacks) works as
always.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import threading
from collections.abc import Sequence
from typing import Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.keras import change_class
from replicax.contracts.variable_access import VariableLike, dtype_of, name_of, shape_of
from replicax.errors import VariableError
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.actors.messages import ShardId
from replicax.parameter_server.variables.partition import shard_bounds
from replicax.program.replicas.outer_program import enclosing_program
from replicax.runtime.devices import device_name

# Methods that a remote variable takes from `RemoteVariable` or `ShardedVariable`, although its own class has them too.
_OVERRIDDEN = ("__getitem__", "device")
_MOST_CACHED_BYTES = 1 << 20  # The coordinator does not cache larger values once the servers have them.
_Variable = TypeVar("_Variable", bound=type)


class VariableStore(Protocol):
    """The servers, as a variable asks them; `scheduling.Servers` fills it in."""

    @property
    def age(self) -> int:
        """Counts whatever may have changed variables."""

    @property
    def restorations(self) -> int:
        """How many times a recovery of servers has begun or ended."""

    def check(self) -> None:
        """Raises if variables have no values any more."""

    def wait_until_restored(self) -> None:
        """Waits for the end of a recovery, if there is one."""

    def fetch(self, wanted: Sequence[tuple[int, ShardId]]) -> list[np.ndarray]:
        """Returns the values of shards, each from its server."""

    def fetch_rows(self, wanted: Sequence[tuple[int, ShardId, np.ndarray]]) -> list[np.ndarray]:
        """Returns rows of shards, each from its server, by their indices in the shard."""


class Home:
    """Where a variable is: which servers have its shards, and what this process knows of its value."""

    def __init__(self, number: int, store: VariableStore):
        self.number = number
        self.servers: tuple[int, ...] = ()  # of each shard; empty while only this process has the value
        self.copies = False  # Every server has a copy of the whole value and updates it for itself (a counter, say).
        self.bounds: tuple[tuple[int, int] | None, ...] = (None,)  # first row and end of each; None if not sharded
        # Assigned here and not sent yet; and whether a lost server had a newer value than this process has.
        self.changed, self.is_unknown = True, False
        self._store, self._age = store, -1
        # The newest value that this process knows. Its shape and dtype alone: the servers have the value.
        self._array: jax.Array | jax.ShapeDtypeStruct | None = None
        self._sending: jax.Array | jax.ShapeDtypeStruct | None = None
        self.row_code: bytes | None = None  # of a growing table: `CreatedRows.code` for the first values of ids
        self._created: CreatedRows | None = None  # the first value, which servers compute and this process has not
        self._lock = threading.RLock()

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The ids of the variable's shards, in order."""
        return tuple(ShardId(self.number, index) for index in range(len(self.bounds)))

    @property
    def restorations(self) -> int:
        """How many times a recovery of servers has begun or ended."""
        return self._store.restorations

    def shard(self, rows: int, parts: int) -> None:
        """Shards the variable, before it is placed."""
        self.bounds = tuple(shard_bounds(rows, parts)) if parts > 1 else (None,)

    def read(self) -> jax.Array | jax.ShapeDtypeStruct | None:
        """Returns the newest value; while a program is traced its shape and dtype are enough."""
        if self.servers and enclosing_program() is None:
            self._store.wait_until_restored()
        if enclosing_program() is None:
            self._store.check()
        with self._lock:
            # Tracing needs a shape and a dtype only.
            if self.changed or enclosing_program() is not None or not self.servers:
                is_asked_for_value = self._created is not None and enclosing_program() is None
                return self._created.compute() if self._created and is_asked_for_value else self._array
            if self._age == self._store.age and self.has_value:
                return self._array
            age = self._store.age
        # Without the lock: if a server was lost, the recovery that this waits for writes here.
        value = jnp.asarray(self.fetch())
        with self._lock:
            if not self.changed:
                self._cache(value, age)
        return value

    def fetch(self) -> np.ndarray:
        """Returns the newest value from the servers."""
        servers = self.servers[:1] if self.copies else self.servers
        parts = self._store.fetch(list(zip(servers, self.shards, strict=True)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def fetch_rows(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows from the servers that have them, by their indices."""
        asked, found = [], np.zeros(len(rows), bool)
        for server, shard, bounds in zip(self.servers, self.shards, self.bounds, strict=True):
            mine = found | True if bounds is None else (rows >= bounds[0]) & (rows < bounds[1])
            if mine.any():
                asked.append((server, shard, mine, rows[mine] - (0 if bounds is None else bounds[0])))
        parts = self._store.fetch_rows([(server, shard, numbers) for server, shard, _, numbers in asked])
        value = self._array
        assert value is not None  # The servers have it.
        result = np.empty((len(rows), *value.shape[1:]), value.dtype)
        for (_, _, mine, _), part in zip(asked, parts, strict=True):
            result[mine] = part
        return result

    def write(self, value: jax.Array | None) -> None:
        """Makes `value` the newest value; servers get it before the next step."""
        self._store.check()
        with self._lock:
            self._array, self.changed, self.is_unknown = value, value is not None, False
            self._created = None

    def create(self, rows: CreatedRows) -> None:
        """Makes the rows of a program the first value: servers compute their own, before the next step."""
        with self._lock:
            shape = (rows.bounds[1], *rows.row_shape)
            self._array, self.changed, self._created = jax.ShapeDtypeStruct(shape, rows.dtype), True, rows

    @property
    def spec(self) -> jax.ShapeDtypeStruct | None:
        """Shape and dtype of the value, without reading it; None before there is one."""
        value = self._array
        return None if value is None else jax.ShapeDtypeStruct(value.shape, value.dtype)

    def sent(self) -> None:
        """Notes that the servers have what `parts` returned last."""
        with self._lock:
            if self._array is not None and self._array is self._sending:  # Otherwise it was assigned again meanwhile.
                self.changed = False
                self._cache(self._array, self._store.age)
                self._created = None
            self._sending = None

    def forget_servers(self, lost: Sequence[int]) -> None:
        """Notes that servers have been replaced: the new ones need the value again."""
        with self._lock:
            if not self.changed and any(server in lost for server in self.servers):
                self.changed, self.is_unknown = True, self._age != self._store.age or not self.has_value

    @property
    def has_value(self) -> bool:
        """Whether this process has a value, the newest or an older one."""
        return not isinstance(self._array, jax.ShapeDtypeStruct)

    def _cache(self, value: jax.Array | jax.ShapeDtypeStruct, age: int) -> None:
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        large = not is_key and value.size * value.dtype.itemsize > _MOST_CACHED_BYTES
        self._array = jax.ShapeDtypeStruct(value.shape, value.dtype) if large else value
        self._age = age

    def parts(self) -> Sequence[np.ndarray | CreatedRows]:
        """Returns this process's value, one array for each shard, or what computes it there."""
        with self._lock:
            self._sending, created = self._array, self._created
        if created is not None:
            return [dataclasses.replace(created, bounds=bounds or created.bounds) for bounds in self.bounds]
        whole = np.asarray(self._sending)
        return [whole if bounds is None else whole[slice(*bounds)] for bounds in self.bounds]


class RemoteVariable:
    """Mixed into the class of a variable whose value lives on servers: they hold `_value`, its array."""

    __slots__ = ()  # An object can change to a class of the same layout only.
    _replicax_home: Home

    @property
    def _value(self) -> jax.Array | jax.ShapeDtypeStruct | None:
        home = self.__dict__.get("_replicax_home")
        return None if home is None else home.read()

    @_value.setter
    def _value(self, value: jax.Array | None) -> None:
        self._replicax_home.write(value)

    @property
    def device(self) -> str:
        """The servers that have the value, such as `"ps:0"`; while none has it, this process's device."""
        home = self._replicax_home
        servers = home.servers[:1] if home.copies else home.servers
        return ", ".join(f"ps:{server}" for server in servers) or device_name(jax.local_devices()[0])

    @property
    def _replicax_restorations(self) -> int:
        """How many times a recovery of servers has begun or ended: odd while the values are being replaced."""
        return self._replicax_home.restorations


@functools.cache
def _remote_class(own: _Variable, kind: type) -> _Variable:
    # Its own class comes first, for the layout; `_value` is found all the same, as nothing else defines it in a class.
    names: dict[str, object] = {"__slots__": (), "__module__": own.__module__, "__qualname__": own.__qualname__}
    names["_replicax_is_remote"] = True
    for name in _OVERRIDDEN:
        if hasattr(kind, name):
            names[name] = inspect.getattr_static(kind, name)
    return cast(_Variable, type(own.__name__, (own, kind), names))


def move_to_servers(variable: VariableLike, home: Home, kind: type = RemoteVariable) -> None:
    """Stores a variable's value on servers from now on; `kind` is the class that is mixed into its own."""
    value = variable.__dict__.pop("_value", None)
    change_class(variable, lambda own: _remote_class(own, kind))
    vars(variable)["_replicax_home"] = home
    home.write(value)


def home_of(variable: VariableLike) -> Home:
    """Returns where a variable lives."""
    home: Home | None = vars(variable).get("_replicax_home")
    if home is None:
        raise VariableError(
            f"Variable {name_of(variable)!r} was not made in the scope of the ParameterServerStrategy, so no "
            "server has its value. Create models, optimizers, metrics and variables inside `with strategy.scope():`; "
            "call `model.compile` there too, as it makes metrics."
        )
    return home


def variable_bytes(variable: VariableLike) -> int:
    """Returns the size of a variable's value in bytes."""
    return math.prod(shape_of(variable)) * jnp.dtype(dtype_of(variable)).itemsize
