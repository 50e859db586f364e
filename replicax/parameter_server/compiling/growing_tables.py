"""Growing tables of a step: where their parts go, and what servers are told of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import ProgramError
from replicax.parameter_server.actors.growing_rows import GrowingShard
from replicax.parameter_server.variables.remote import home_of
from replicax.tables.marks import eviction_of, index_of, spec_of


@dataclasses.dataclass(frozen=True)
class GrowingTable:
    """A growing table, with the variables that are placed together with it."""

    table: VariableLike
    slots: tuple[VariableLike, ...]  # what its optimizer keeps, of the same number of rows
    index: VariableLike  # which id each row has

    @property
    def variables(self) -> tuple[VariableLike, ...]:
        """The table, its slots and its index."""
        return (self.table, *self.slots, self.index)

    def shards(self) -> dict[int, GrowingShard]:
        """Returns the part of each of their servers."""
        evict = eviction_of(self.table)
        assert evict is not None
        found = {}
        homes, index = [home_of(each) for each in (self.table, *self.slots)], home_of(self.index)
        for number, server in enumerate(index.servers):
            initial = [(home.shards[number], _code(home.row_code, self.table)) for home in homes]
            found[server] = GrowingShard(
                homes[0].shards[number], index.shards[number], tuple(initial), evict, number, len(index.servers)
            )
        return found


def _code(code: bytes | None, table: VariableLike) -> bytes:
    if code is None:
        raise ProgramError(
            f"The growing table {name_of(table)!r} has an initializer whose rows depend on each other or on a seed "
            "generator, and an id's first value is computed from the id alone. Choose one with a fixed seed that draws "
            "each number on its own, such as RandomNormal(seed=0)."
        )
    return code


def growing_tables(used: Iterable[VariableLike], known: Sequence[VariableLike]) -> list[GrowingTable]:
    """Returns the growing tables among the variables that a step uses."""
    numbers = {home_of(variable).number for variable in used}
    found = []
    for index in known:
        table = index_of(index)
        if table is None:
            continue
        parts = [each for each in known if spec_of(each) is spec_of(table)]
        if any(home_of(each).number in numbers for each in parts):
            slots = tuple(each for each in parts if each is not table)
            found.append(GrowingTable(next(each for each in parts if each is table), slots, index))
    return found
