"""Reading and storing an island's own values of variables, as arrays of numbers on one device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from replicax.contracts.placement import Placement
from replicax.contracts.reduce_op import terms_of
from replicax.contracts.variable_access import VariableLike, array_of, dtype_of, is_per_replica_variable
from replicax.islands.exchange import copied
from replicax.islands.kinds import Kind
from replicax.islands.local_variables import own_values
from replicax.islands.registry import Entry
from replicax.program.storing import store_values
from replicax.runtime.transfer import put_all


class Values:
    """The values of an island's variables."""

    def __init__(self, placement: Placement, device: jax.Device):
        self._placement, self.device = placement, device

    def local(self, variable: VariableLike) -> jax.Array:
        """Returns the value of a variable as it can be added up; it may share a buffer."""
        value = array_of(variable)
        if is_per_replica_variable(variable):
            with own_values():  # the sum or mean of its components, as for a reader
                value = variable.value
        whole = value.is_fully_replicated
        shards = {shard.device: shard.data for shard in value.addressable_shards} if whole else {}
        found = shards[self.device] if self.device in shards else jax.device_put(value, self.device)
        if jnp.issubdtype(found.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(found)
        return found.astype(jnp.uint8) if found.dtype == jnp.bool_ else found

    def store(self, entries: Sequence[Entry], arrays: Sequence[jax.Array]) -> None:
        """Gives variables copies of values, all of them at once; programs overwrite what a variable holds."""
        variables = [entry.variable for entry in entries]
        homes = [self._placement.variable_sharding(variable) for variable in variables]
        values = [self._as_held(entry, array) for entry, array in zip(entries, copied(arrays), strict=True)]
        placed = [(v, x, home) for v, x, home in zip(variables, values, homes, strict=True) if home is not None]
        store_values([v for v, _, _ in placed], put_all([x for _, x, _ in placed], [home for _, _, home in placed]))

    def _as_held(self, entry: Entry, array: jax.Array) -> jax.Array:
        variable, held = entry.variable, array_of(entry.variable)
        if jnp.issubdtype(held.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(held))
        value = array.astype(dtype_of(variable))
        if not is_per_replica_variable(variable):
            return value
        replicas = held.shape[0]
        if entry.kind is Kind.SUM:
            return terms_of(value, replicas)
        return jnp.broadcast_to(value, (replicas, *value.shape))


class Counts:
    """The variables that count rows, such as metrics: what was in them when the islands' counts were added up last."""

    def __init__(self, values: Values):
        self._values = values
        self.bases: dict[int, jax.Array] = {}
        # The arrays that the variables held. Python may assign other ones between programs, on all islands alike: a
        # metric is reset. They are held weakly, since a program overwrites only buffers that are held nowhere else.
        self._known: dict[int, weakref.ref[jax.Array]] = {}
        self._differing: set[int] = set()

    def note_assigned(self, entries: Sequence[Entry]) -> None:
        """Called before a program: what was assigned since the last one is where counting begins."""
        for entry in entries:
            if not self._is_known(entry):
                self.begin(entry, copied([self._values.local(entry.variable)])[0])

    def note_counted(self, entries: Sequence[Entry]) -> None:
        """Called after a program, which may have counted."""
        for entry in entries:
            if not self._is_known(entry):
                self._differing.add(entry.key)
                self._remember(entry)

    def begin(self, entry: Entry, base: jax.Array) -> None:
        """Notes that all islands have one value of a variable: `base`."""
        self.bases[entry.key] = base
        self._differing.discard(entry.key)
        self._remember(entry)

    def go_on(self, entry: Entry, base: jax.Array) -> None:
        """Notes that a variable has counted on from `base`, in a training that was restored."""
        self.begin(entry, base)
        self._differing.add(entry.key)

    def differ(self, entry: Entry) -> bool:
        """Returns whether islands may have counted different rows."""
        return entry.key in self._differing and self._is_known(entry)

    def _is_known(self, entry: Entry) -> bool:
        known = self._known.get(entry.key)
        return known is not None and known() is array_of(entry.variable)

    def _remember(self, entry: Entry) -> None:
        self._known[entry.key] = weakref.ref(array_of(entry.variable))
