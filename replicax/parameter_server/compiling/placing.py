"""`VariablePlacer`: decides which variable goes to which server. It talks to none.

Variables whose updates read each other (a weight and its moments) go to the same server, so that a server can apply a
push without asking another one. Small variables that all updates read and no data changes (an optimizer's step counter,
its learning rate) have a copy on each server. All others go, largest first, to the server with the fewest bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from replicax.checks import is_int
from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import ArgumentError, ProgramError
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.variables.remote import home_of, variable_bytes

_SMALL_BYTES = 1 << 16

Choice = Callable[[VariableLike], int | None]  # the server for a variable; None lets the number of bytes decide


class VariablePlacer:
    """Decides where new variables go, by the bytes that each server has."""

    def __init__(self, servers: int, choose: Choice | None = None):
        self.bytes = [0] * servers  # of the variables that are placed on each
        self._choose = choose
        self._written: set[int] = set()  # ids of the variables that steps update

    def to_copy(self, step: TracedStep) -> list[VariableLike]:
        """Returns the variables of a step that every server needs a copy of, and that are on one server only."""
        if len(self.bytes) == 1:
            return []
        found = [v for v in _copied(step).values() if home_of(v).servers and not home_of(v).copies]
        if updated := [name_of(v) for v in found if home_of(v).number in self._written]:
            raise ProgramError(
                f"{step.name!r} needs {updated[:6]} on every server, but a function that was scheduled before updates "
                "them on one. Schedule the training step first."
            )
        return found

    def copy(self, variable: VariableLike) -> None:
        """Gives a variable a copy on each server."""
        home = home_of(variable)
        for server in range(len(self.bytes)):
            if server not in home.servers:
                self.bytes[server] += variable_bytes(variable)
        home.servers, home.copies = tuple(range(len(self.bytes))), True

    def place_for(self, step: TracedStep) -> None:
        """Places the variables of a step that are not placed yet."""
        copied = _copied(step)
        for variable in copied.values():
            if not home_of(variable).copies:
                self.copy(variable)
        for group in sorted(_groups(step, copied), key=_group_bytes, reverse=True):
            self._place_group(group)
        self._written |= {home_of(variable).number for variable in step.written}

    def place(self, variables: Iterable[VariableLike]) -> None:
        """Places variables that no step updates so far."""
        for variable in variables:
            self._place_group([variable])

    def place_together(self, group: Sequence[VariableLike]) -> None:
        """Places variables on the same servers: those of one of them that is placed already, if one is."""
        self._place_group(group)

    def _place_group(self, group: Sequence[VariableLike]) -> None:
        homes = [home_of(variable) for variable in group]
        parts = max(len(home.bounds) for home in homes)
        if parts > 1:
            self._check_sharded_alike(group)
        found = {home.servers for home in homes if home.servers}
        if len(found) > 1:
            raise ProgramError(
                f"The updates of {[name_of(v) for v in group][:6]} need each other, but an earlier step has "
                "placed them on different servers. Schedule the training step first, or give all of them the same "
                "server with `variable_placement`."
            )
        servers = found.pop() if found else self._chosen(group, parts)
        for variable, home in zip(group, homes, strict=True):
            if not home.servers:
                home.servers = servers
                for server in servers:
                    self.bytes[server] += variable_bytes(variable) // parts

    def _check_sharded_alike(self, group: Sequence[VariableLike]) -> None:
        sharded = {home_of(variable).bounds: name_of(variable) for variable in group}
        if len(sharded) > 1:
            parts = ", ".join(f"{name!r} in {len(bounds)}" for bounds, name in sharded.items())
            raise ProgramError(
                f"The updates of some variables need each other, but they are sharded differently: {parts}. A server "
                "updates its own rows of a variable from the same rows of the others: make a `variable_partitioner` "
                "that shards all of them alike, or returns 1 for them, or choose another optimizer."
            )

    def _chosen(self, group: Sequence[VariableLike], parts: int) -> tuple[int, ...]:
        choose = self._choose
        for variable in group if choose is not None else ():
            server = None if choose is None else choose(variable)
            if server is not None:
                if not _is_index(server, len(self.bytes)):
                    raise ArgumentError(
                        f"`variable_placement` returned {server!r} for {name_of(variable)!r}; there are "
                        f"{len(self.bytes)} servers, numbered from 0."
                    )
                return tuple((server + i) % len(self.bytes) for i in range(parts))
        first = self.bytes.index(min(self.bytes))
        return tuple((first + i) % len(self.bytes) for i in range(parts))


def _is_index(value: object, count: int) -> bool:
    return is_int(value) and 0 <= value < count


def _copied(step: TracedStep) -> dict[int, VariableLike]:
    """Returns the small variables that updates on several servers read, and that need no data to be updated."""
    served = {id(variable): i for i, variable in enumerate(step.written)}
    own: dict[int, tuple[VariableLike, list[VariableLike]]] = {}
    read_by_others: set[int] = set()
    for i, variable in enumerate(step.written):
        part = step.split.part(i)
        reads = [step.variables[j] for j in part.inputs]
        read_by_others |= {id(read) for read in reads if read is not variable}
        if not part.sent and _may_be_copied(variable):
            own[id(variable)] = (variable, reads)
    counters = {key: variable for key, (variable, _) in own.items()}
    for read in (step.variables[i] for i in step.split.server_inputs):
        if id(read) not in served and _may_be_copied(read):
            counters[id(read)] = read
    changed = True
    while changed:  # A counter may be updated from other counters only.
        stuck = [
            key for key, (_, reads) in own.items() if key in counters and any(id(r) not in counters for r in reads)
        ]
        for key in stuck:
            del counters[key]
        changed = bool(stuck)
    return {key: variable for key, variable in counters.items() if key in read_by_others}


def _may_be_copied(variable: VariableLike) -> bool:
    return variable_bytes(variable) <= _SMALL_BYTES and len(home_of(variable).bounds) == 1


def _groups(step: TracedStep, copied: dict[int, VariableLike]) -> list[list[VariableLike]]:
    """Returns the variables of a step that have no copies, in groups whose updates read each other."""
    used = [v for v in [*step.variables, *step.written] if id(v) not in copied and not home_of(v).copies]
    everything = {id(v): v for v in used}
    leader = {key: key for key in everything}

    def find(key: int) -> int:
        while leader[key] != key:
            key = leader[key]
        return key

    for i, variable in enumerate(step.written):
        if id(variable) in everything:
            for j in step.split.part(i).inputs:
                if id(step.variables[j]) in everything:
                    leader[find(id(step.variables[j]))] = find(id(variable))
    groups: dict[int, list[VariableLike]] = {}
    for key, variable in everything.items():
        groups.setdefault(find(key), []).append(variable)
    return list(groups.values())


def _group_bytes(group: Sequence[VariableLike]) -> int:
    return sum(map(variable_bytes, group))
