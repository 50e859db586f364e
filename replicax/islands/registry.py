"""The variables of a strategy of islands, in the order in which they were made, and what each of them is."""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

import jax.numpy as jnp

from replicax.contracts.variable_access import VariableLike, dtype_of, has_array, name_of, shape_of
from replicax.islands.kinds import Kind, kinds_of
from replicax.islands.rounds import cut_evenly

_NUMBER = "_replicax_number"


class Entry(NamedTuple):
    """A variable, how it is synchronized, and with which fragment."""

    variable: VariableLike
    kind: Kind
    fragment: int
    key: int  # that no other variable of the strategy has had

    @property
    def described(self) -> str:
        """The properties that it has on all islands. Keras numbers names, so only the last word counts."""
        return f"{name_of(self.variable).rpartition('/')[2]} {dtype_of(self.variable)}{list(shape_of(self.variable))}"


class Registry:
    """The variables of a strategy."""

    def __init__(self, fragments: int):
        self._fragments = fragments
        self._numbers = itertools.count()
        self._references: list[weakref.ref[VariableLike]] = []
        self._entries: list[Entry] | None = None
        self._of: dict[int, Entry] = {}
        self._of_kinds: dict[tuple[Kind, ...], list[Entry]] = {}

    def add(self, variable: VariableLike) -> None:
        """Adds a variable that has just been made."""
        vars(variable)[_NUMBER] = next(self._numbers)
        self._references.append(weakref.ref(variable, self._forget))
        self._entries = None

    def _forget(self, reference: weakref.ref[VariableLike]) -> None:
        self._references.remove(reference)
        self._entries = None

    def entries(self) -> list[Entry]:
        """Returns all variables that are still in use and have a value; the same list as long as they are the same."""
        if self._entries is None:
            found = [variable for reference in list(self._references) if (variable := reference()) is not None]
            entries = self._entries_of([v for v in found if has_array(v)])
            self._of, self._of_kinds = {entry.key: entry for entry in entries}, {}
            if len(entries) < len(found):
                return entries  # Some get their values later.
            self._entries = entries
        return self._entries

    def _entries_of(self, variables: list[VariableLike]) -> list[Entry]:
        variables = sorted(variables, key=lambda variable: int(vars(variable)[_NUMBER]))
        kinds = kinds_of(variables)
        sizes = [_bytes(v) if k is not Kind.OWN else 0 for v, k in zip(variables, kinds, strict=True)]
        parts = cut_evenly(sizes, self._fragments)
        return [Entry(v, k, f, vars(v)[_NUMBER]) for v, k, f in zip(variables, kinds, parts, strict=True)]

    def of_kind(self, *kinds: Kind) -> list[Entry]:
        """Returns the variables of these kinds."""
        entries = self.entries()
        if kinds not in self._of_kinds:
            self._of_kinds[kinds] = [entry for entry in entries if entry.kind in kinds]
        return self._of_kinds[kinds]

    def trained(self) -> list[VariableLike]:
        return [entry.variable for entry in self.of_kind(Kind.TRAINED)]

    def entry(self, variable: VariableLike) -> Entry | None:
        """Returns what is known of a variable; None if it has no value yet."""
        self.entries()
        return self._of.get(vars(variable)[_NUMBER])


def _bytes(variable: VariableLike) -> int:
    size = jnp.dtype(dtype_of(variable)).itemsize
    for length in shape_of(variable):
        size *= length
    return size
