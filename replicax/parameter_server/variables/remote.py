"""Variables whose values live on servers: reading one fetches it, assigning one sends it.

A variable made in the scope of a `ParameterServerStrategy`, Keras's or ours, gets a class that derives from its own and
keeps the value elsewhere. Everything that reads or assigns variables (optimizers, saving, checkpoints, callbacks) works
as always.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.keras import change_class
from replicax.errors import VariableError
from replicax.parameter_server.actors.messages import ShardId
from replicax.parameter_server.variables.partition import shard_bounds
from replicax.program.replica import enclosing_program
from replicax.runtime.devices import device_name
from replicax.variable_access import name_of, shape_of

# What a variable that lives elsewhere does in another way than its own class says.
_OF_ITS_KIND = ("__getitem__", "device")
_KEPT_BYTES = 1 << 20  # Larger values are not kept by the coordinator once the servers have them.


class Home:
    """Where a variable is: which servers have its parts, and what this process knows of its value.

    Attributes:
        number: The variable's number.
        servers: For each part the server that has it; empty while only this process has the value.
        copies: Whether every server has a copy of the whole, which each updates for itself (a counter, say).
        bounds: First row and end of each part.
        changed: Whether the value was assigned here and the servers do not know yet.
        is_unknown: Whether a server that was lost had a newer value than this process has.
    """

    def __init__(self, number: int, store: Any):
        self.number = number
        self.servers: tuple[int, ...] = ()
        self.copies = False
        self.bounds: tuple[tuple[int, int] | None, ...] = (None,)
        self.changed, self.is_unknown = True, False
        self._store, self._age = store, -1
        self._value: Any = None
        self._sending: Any = None
        self._lock = threading.RLock()

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The parts of the variable, in order."""
        return tuple(ShardId(self.number, index) for index in range(len(self.bounds)))

    @property
    def restorations(self) -> int:
        """How many times a recovery of servers has begun or ended."""
        return int(getattr(self._store, "restorations", 0))

    def cut(self, rows: int, parts: int) -> None:
        """Cuts the variable into parts, before it is placed."""
        self.bounds = tuple(shard_bounds(rows, parts)) if parts > 1 else (None,)

    def read(self) -> Any:
        """Returns the newest value.

        Raises:
            ContextError: The strategy is closed.
            ParameterServerLost: A server was lost for good.
        """
        if self.servers and enclosing_program() is None:
            self._store.wait_until_restored()
        if enclosing_program() is None:
            self._store.check()
        with self._lock:
            # What is traced needs no numbers, only a shape and a dtype.
            if self.changed or enclosing_program() is not None or not self.servers:
                return self._value
            if self._age == self._store.age and self.has_value:
                return self._value
            age = self._store.age
        # Without the lock: if a server was lost, the recovery that this waits for writes here.
        value = jnp.asarray(self.fetch())
        with self._lock:
            if not self.changed:
                self._keep(value, age)
        return value

    def fetch(self) -> np.ndarray:
        """Returns the newest value from the servers."""
        servers = self.servers[:1] if self.copies else self.servers
        parts = self._store.fetch(list(zip(servers, self.shards, strict=True)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def fetch_rows(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows from the servers that have them, by their numbers."""
        asked, found = [], np.zeros(len(rows), bool)
        for server, shard, bounds in zip(self.servers, self.shards, self.bounds, strict=True):
            mine = found | True if bounds is None else (rows >= bounds[0]) & (rows < bounds[1])
            if mine.any():
                asked.append((server, shard, mine, rows[mine] - (0 if bounds is None else bounds[0])))
        parts = self._store.fetch_rows([(server, shard, numbers) for server, shard, _, numbers in asked])
        value = self._value
        result = np.empty((len(rows), *value.shape[1:]), value.dtype)
        for (_, _, mine, _), part in zip(asked, parts, strict=True):
            result[mine] = part
        return result

    def write(self, value: Any) -> None:
        """Makes `value` the newest value; servers get it before the next step.

        Raises:
            ContextError: The strategy is closed.
            ParameterServerLost: A server was lost for good.
        """
        self._store.check()
        with self._lock:
            self._value, self.changed, self.is_unknown = value, value is not None, False

    def sent(self) -> None:
        """Notes that the servers have what `parts` returned last."""
        with self._lock:
            if self._value is self._sending:  # Otherwise it has been assigned again meanwhile.
                self.changed = False
                self._keep(self._value, self._store.age)
            self._sending = None

    def forget_servers(self, lost: Sequence[int]) -> None:
        """Notes that servers have begun anew: those have to be told the value again."""
        with self._lock:
            if not self.changed and any(server in lost for server in self.servers):
                self.changed, self.is_unknown = True, self._age != self._store.age or not self.has_value

    @property
    def has_value(self) -> bool:
        """Whether this process has some value, if not the newest."""
        return not isinstance(self._value, jax.ShapeDtypeStruct)

    def _keep(self, value: Any, age: int) -> None:
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        large = not is_key and value.size * value.dtype.itemsize > _KEPT_BYTES
        self._value = jax.ShapeDtypeStruct(value.shape, value.dtype) if large else value
        self._age = age

    def parts(self) -> list[np.ndarray]:
        """Returns the parts of this process's value."""
        with self._lock:
            self._sending = self._value
        whole = np.asarray(self._sending)
        return [whole if bounds is None else whole[slice(*bounds)] for bounds in self.bounds]


class RemoteVariable:
    """Makes `_value`, which Keras's variables and ours keep their array in, a matter of servers."""

    __slots__ = ()  # An object can change to a class of the same layout only.
    _replicax_home: Home

    @property
    def _value(self) -> Any:
        home = self.__dict__.get("_replicax_home")
        return None if home is None else home.read()

    @_value.setter
    def _value(self, value: Any) -> None:
        self._replicax_home.write(value)

    @property
    def device(self) -> str:
        """Names of the servers that have the value, such as `"ps:0"`; of this process's device while none has it."""
        home = self._replicax_home
        servers = home.servers[:1] if home.copies else home.servers
        return ", ".join(f"ps:{server}" for server in servers) or device_name(jax.local_devices()[0])

    @property
    def _replicax_restorations(self) -> int:
        """How many times a recovery of servers has begun or ended: odd while the values are being replaced."""
        return int(self._replicax_home.restorations)


@functools.cache
def _remote_class(own: Any, kind: Any) -> type:
    # Its own class comes first, for the layout; `_value` is found all the same, as nothing else defines it in a class.
    names: dict[str, Any] = {"__slots__": (), "__module__": own.__module__, "__qualname__": own.__qualname__}
    names["_replicax_is_remote"] = True
    for name in _OF_ITS_KIND:
        if hasattr(kind, name):
            names[name] = inspect.getattr_static(kind, name)
    return type(own.__name__, (own, kind), names)


def move_to_servers(variable: Any, home: Home, kind: Any = RemoteVariable) -> None:
    """Lets a variable's value live on servers from now on; `kind` says what else it can do then."""
    value = variable.__dict__.pop("_value", None)
    change_class(variable, lambda own: _remote_class(own, kind))
    variable._replicax_home = home
    home.write(value)


def home_of(variable: Any) -> Home:
    """Returns where a variable lives.

    Raises:
        VariableError: It was not made in the strategy's scope.
    """
    home = variable.__dict__.get("_replicax_home")
    if home is None:
        raise VariableError(
            f"Variable {name_of(variable)!r} was not made in the scope of the ParameterServerStrategy, so no "
            "server has it. Create models, optimizers, metrics and variables inside `with strategy.scope():`; call "
            "`model.compile` there too, as it makes metrics."
        )
    return home


def variable_bytes(variable: Any) -> int:
    """Returns the size of a variable's value in bytes."""
    return math.prod(shape_of(variable)) * jnp.dtype(variable.dtype).itemsize
