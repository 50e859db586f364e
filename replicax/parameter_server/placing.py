"""Which variable goes to which server. Nothing here talks to one.

Variables whose updates need each other (a weight and its moments) live on the same server, so that a server can apply a
push without asking another one. What every update needs and none changes by data (an optimizer's step counter, its
learning rate) has a copy on each server. Everything else goes, largest first, where there is least so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from replicax.errors import ArgumentError, ProgramError
from replicax.parameter_server.tracing import TracedStep
from replicax.parameter_server.variables import home_of, variable_bytes
from replicax.program.frames import variable_name

_SMALL_BYTES = 1 << 16

Choice = Callable[[Any], int | None]


class Places:
    """The servers' loads, and where new variables go.

    Args:
        servers: How many servers there are.
        choose: Returns the server for a variable, or None to leave it to the loads.

    Attributes:
        bytes: For each server, the bytes of the variables placed there.
    """

    def __init__(self, servers: int, choose: Choice | None = None):
        self.bytes = [0] * servers
        self._choose = choose

    def to_copy(self, step: TracedStep) -> list[Any]:
        """Returns the variables of a step that every server needs a copy of, and that are on one server only."""
        return [v for v in self._copied(step).values() if home_of(v).servers and not home_of(v).copies]

    def copy(self, variable: Any) -> None:
        """Gives a variable a copy on each server."""
        home = home_of(variable)
        home.servers, home.copies, home.bounds = tuple(range(len(self.bytes))), True, (None,)
        self.bytes = [held + variable_bytes(variable) for held in self.bytes]

    def place_for(self, step: TracedStep) -> None:
        """Places the variables of a step that are not placed yet.

        Raises:
            ProgramError: Variables on different servers are updated by each other.
        """
        copied = self._copied(step)
        for variable in copied.values():
            if not home_of(variable).copies:
                self.copy(variable)
        for group in sorted(_groups(step, copied), key=_group_bytes, reverse=True):
            self._place_group(group)

    def place(self, variables: Iterable[Any]) -> None:
        """Places variables that no step updates so far."""
        for variable in variables:
            self._place_group([variable])

    def _copied(self, step: TracedStep) -> dict[int, Any]:
        return _copied(step) if len(self.bytes) > 1 else {}

    def _place_group(self, group: Sequence[Any]) -> None:
        homes = [home_of(variable) for variable in group]
        parts = max(len(home.bounds) for home in homes)
        found = {home.servers for home in homes if home.servers}
        if len(found) > 1:
            raise ProgramError(
                f"The updates of {[variable_name(v) for v in group][:6]} need each other, but an earlier step has "
                "placed them on different servers. Schedule the training step first, or give all of them the same "
                "server with `variable_placement`."
            )
        servers = found.pop() if found else self._chosen(group, parts)
        for variable, home in zip(group, homes, strict=True):
            if not home.servers:
                home.servers = servers
                for server in servers:
                    self.bytes[server] += variable_bytes(variable) // parts

    def _chosen(self, group: Sequence[Any], parts: int) -> tuple[int, ...]:
        for variable in group if self._choose is not None else ():
            server = self._choose(variable)  # type: ignore[misc]
            if server is not None:
                if not isinstance(server, int) or not 0 <= server < len(self.bytes):
                    raise ArgumentError(
                        f"`variable_placement` returned {server!r} for {variable_name(variable)!r}; there are "
                        f"{len(self.bytes)} servers, numbered from 0."
                    )
                return tuple((server + i) % len(self.bytes) for i in range(parts))
        first = self.bytes.index(min(self.bytes))
        return tuple((first + i) % len(self.bytes) for i in range(parts))


def _copied(step: TracedStep) -> dict[int, Any]:
    """Returns the small variables that updates on several servers read, and that need no data to be updated."""
    served = {id(variable): i for i, variable in enumerate(step.written)}
    own: dict[int, Any] = {}
    read_by_others: set[int] = set()
    for i, variable in enumerate(step.written):
        part = step.split.part([i])
        reads = [step.variables[j] for j in part.inputs]
        read_by_others |= {id(read) for read in reads if read is not variable}
        if not part.sent and variable_bytes(variable) <= _SMALL_BYTES:
            own[id(variable)] = (variable, reads)
    clocks = {key: variable for key, (variable, _) in own.items()}
    for read in (step.variables[i] for i in step.split.server_inputs):
        if id(read) not in served and variable_bytes(read) <= _SMALL_BYTES:
            clocks[id(read)] = read
    changed = True
    while changed:  # A clock goes by other clocks only.
        stuck = [key for key, (_, reads) in own.items() if key in clocks and any(id(r) not in clocks for r in reads)]
        for key in stuck:
            del clocks[key]
        changed = bool(stuck)
    return {key: variable for key, variable in clocks.items() if key in read_by_others}


def _groups(step: TracedStep, copied: dict[int, Any]) -> list[list[Any]]:
    """Returns all variables of a step that are no copies, those together whose updates need each other."""
    used = [v for v in [*step.variables, *step.written] if id(v) not in copied and not home_of(v).copies]
    everything = {id(v): v for v in used}
    leader = {key: key for key in everything}

    def find(key: int) -> int:
        while leader[key] != key:
            key = leader[key]
        return key

    for i, variable in enumerate(step.written):
        if id(variable) in everything:
            for j in step.split.part([i]).inputs:
                if id(step.variables[j]) in everything:
                    leader[find(id(step.variables[j]))] = find(id(variable))
    groups: dict[int, list[Any]] = {}
    for key, variable in everything.items():
        groups.setdefault(find(key), []).append(variable)
    return list(groups.values())


def _group_bytes(group: Sequence[Any]) -> int:
    return sum(map(variable_bytes, group))
