"""All that an island has for the others: its values, and what its rounds have begun with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from replicax.islands.kinds import Kind
from replicax.islands.outer_optimizers import OuterOptimizer
from replicax.islands.registry import Entry
from replicax.islands.values import Counts, Values
from replicax.program.keras.state import seed_of_replica
from replicax.typing import PyTree


class IslandState(NamedTuple):
    """The state of an island."""

    values: list[jax.Array]
    anchors: list[jax.Array]  # of each trained variable, the value at the start of its round
    outer: list[PyTree]  # for each fragment
    bases: list[jax.Array]  # of each variable that counts rows, the value when counts were added up last


class Common:
    """The state that islands have in common besides the values of variables."""

    def __init__(self, outer: OuterOptimizer, values: Values, fragments: int):
        self._outer, self._values, self._fragments = outer, values, fragments
        self.anchors: dict[int, jax.Array] = {}  # by the variables' keys
        self.outer_states: dict[int, PyTree] = {}  # by fragment
        self.counts = Counts(values)
        self._keys: dict[int, list[int]] = {}  # of the variables that a fragment's state is for

    @property
    def outer_kind(self) -> str:
        """The name of the outer optimizer."""
        return self._outer.kind

    def outer_state(self, fragment: int, trained: Sequence[Entry], values: Sequence[jax.Array]) -> PyTree:
        """Returns the outer optimizer's state for a fragment; it begins for variables that have none."""
        found, keys = self.outer_states.get(fragment), [entry.key for entry in trained]
        before = self._keys.get(fragment, keys)
        if found is None:
            return self._outer.init(values)
        if before == keys:
            return found
        positions = [before.index(key) if key in before else None for key in keys]
        return self._outer.grown(found, positions, values)

    def keep_outer(self, states: dict[int, PyTree], entries: Sequence[Entry]) -> None:
        """Keeps new states of the outer optimizer, by fragment, for the variables that there are."""
        self.outer_states |= states
        for fragment in states:
            own = [entry.key for entry in entries if entry.kind is Kind.TRAINED and entry.fragment == fragment]
            self._keys[fragment] = own

    def state(self, entries: Sequence[Entry], changed: dict[int, jax.Array], outer: dict[int, PyTree]) -> IslandState:
        """Returns the island's state, with the values (by key) and outer states that are about to be stored."""
        values = [changed[e.key] if e.key in changed else self._values.local(e.variable) for e in entries]
        now = {entry.key: value for entry, value in zip(entries, values, strict=True)}
        trained = [entry for entry in entries if entry.kind is Kind.TRAINED]
        anchors = now | self.anchors | changed
        states = [
            outer[f] if f in outer else self.outer_state(f, of_f, [now[entry.key] for entry in of_f])
            for f in range(self._fragments)
            for of_f in [[entry for entry in trained if entry.fragment == f]]
        ]
        counting = [entry for entry in entries if entry.kind is Kind.SUM]
        bases = now | self.counts.bases | changed
        return IslandState(
            values,
            [anchors[entry.key] for entry in trained],
            states,
            [bases[entry.key] for entry in counting],
        )

    def take(self, entries: Sequence[Entry], state: IslandState, replicas_away: int) -> None:
        """Makes another island's state this one's."""
        counting = [entry for entry in entries if entry.kind is Kind.SUM]
        bases = {entry.key: base for entry, base in zip(counting, state.bases, strict=True)}
        # The other one goes on counting its own rows.
        values = [bases.get(entry.key, value) for entry, value in zip(entries, state.values, strict=True)]
        self.take_values(entries, values, replicas_away)
        trained = [entry for entry in entries if entry.kind is Kind.TRAINED]
        self.anchors = {entry.key: x for entry, x in zip(trained, state.anchors, strict=True)}
        self.keep_outer(dict(enumerate(state.outer)), entries)
        for entry, base in zip(counting, state.bases, strict=True):
            self.counts.begin(entry, base)

    def take_values(self, entries: Sequence[Entry], values: Sequence[jax.Array], replicas_away: int) -> None:
        """Stores another island's values in variables."""
        # `replicas_away`: how many replicas this island comes after the other. Each has random numbers of its own.
        own = [
            seed_of_replica(value, jnp.asarray(replicas_away)) if entry.kind is Kind.SEED else value
            for entry, value in zip(entries, values, strict=True)
        ]
        self._values.store(entries, own)
