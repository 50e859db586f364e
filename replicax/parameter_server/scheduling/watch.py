"""Which workers and servers are there, which have gone, which hang: decisions only, nothing here waits or talks to
anybody, or looks at a clock."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import NamedTuple

WORKER, SERVER = "worker", "ps"
_MOST_PATIENCE = 8.0  # A machine that is too busy for the time-outs must not have everything started again for ever.
_SUSPECT_AFTER_S = 5.0
_ENDED_WITHIN_S = 30.0
_BETWEEN_STARTS_S = 2.0  # Ray refuses at once what it cannot place, such as an actor whose node is away.
_PINGS_IN_A_TIMEOUT, _MOST_BETWEEN_PINGS_S, _BETWEEN_PINGS_AT_START_S = 8, 1.0, 0.1


def longest_wait(start_timeout: float, stall_timeout: float) -> float:
    """Returns for how many seconds to wait for workers or servers that do not come back, before that is an error.

    An actor can be found hung at its start twice in that time, the second time with twice the patience.
    """
    return 3 * start_timeout + 2 * stall_timeout


class Who(NamedTuple):
    """A worker or a server.

    Attributes:
        job: `"worker"` or `"ps"`.
        number: Its number.
    """

    job: str
    number: int

    def __str__(self) -> str:
        return f"{self.job}:{self.number}"


class State(enum.Enum):
    """How far an actor has come."""

    GONE = "has gone"
    STARTING = "is starting"
    SETTING_UP = "is being set up"
    UP = "is up"
    ENDING = "is being ended"


@dataclasses.dataclass
class _Watched:
    """What is known of an actor. Times are those of the caller's clock.

    Attributes:
        state: How far it has come.
        life: How many times it was started; what belongs to an earlier life is ignored.
        since: When it got into its state.
        asked: When a ping was sent that has no answer yet.
        heard: When it answered last.
        moved: When it got on with its work last, or was given some after it had none.
        done: How much of its setting up is done.
        goal: How much must be, before it can take steps; None while that is not known.
        busy: Whether it has steps to do.
        hangs: How many times in a row it has been ended because it hung.
        start_at: When it may be started again.
        why: The last thing that was wrong with it.
    """

    state: State = State.GONE
    life: int = 0
    since: float = 0.0
    asked: float | None = None
    heard: float = 0.0
    moved: float = 0.0
    done: int = 0
    goal: int | None = None
    busy: bool = False
    hangs: int = 0
    start_at: float = 0.0
    why: str = ""

    def enter(self, state: State, now: float) -> None:
        self.state, self.since, self.asked = state, now, None


class Watch:
    """Watches all actors, busy or not, from their start.

    An actor *starts*; from its first answer to a ping on it is *set up*; a worker is *up* when it has done all that it
    was told at its start, a server at once. It *hangs* if it does not come up in time, does not answer a ping, or, a
    worker, gets no further with what it has to do. Who hangs is ended, and has twice the time in its next life, up to
    eight times. A worker is not blamed while a server may be what it waits for.

    Args:
        workers: How many workers there are.
        servers: How many servers.
        stall_timeout: How long an actor may take to answer or to get on, in seconds.
        start_timeout: How long it may take to start.
    """

    def __init__(self, workers: int, servers: int, stall_timeout: float, start_timeout: float):
        self._stall_timeout, self._start_timeout = stall_timeout, start_timeout
        self._between_pings = min(_MOST_BETWEEN_PINGS_S, stall_timeout / _PINGS_IN_A_TIMEOUT)
        self._suspect_after = min(_SUSPECT_AFTER_S, stall_timeout / 2)
        self._all = {Who(WORKER, i): _Watched() for i in range(workers)}
        self._all |= {Who(SERVER, i): _Watched() for i in range(servers)}

    def state(self, who: Who) -> State:
        """Returns how far an actor has come."""
        return self._all[who].state

    def is_current(self, who: Who, life: int) -> bool:
        """Whether this life of an actor is its last one, and not over."""
        it = self._all[who]
        return it.life == life and it.state is not State.GONE

    # What has happened.

    def begins(self, who: Who, now: float) -> int:
        """Notes that an actor is started; returns the number of this life of it."""
        it = self._all[who]
        it.life += 1
        it.enter(State.STARTING, now)
        it.done, it.goal, it.busy, it.heard = 0, 0 if who.job == SERVER else None, False, -math.inf
        return it.life

    def has_goal(self, who: Who, life: int, goal: int) -> None:
        """Notes how much an actor has to do before it is up."""
        if self.is_current(who, life):
            self._all[who].goal = goal

    def asked(self, who: Who, now: float) -> None:
        """Notes that a ping was sent."""
        self._all[who].asked = now

    def answers(self, who: Who, life: int, done: int, now: float) -> bool:
        """Notes the answer to a ping: how much of the setting up is done; returns whether it is up by that."""
        it = self._all[who]
        if not self.is_current(who, life) or it.state is State.ENDING:
            return False
        it.asked, it.heard = None, now
        if it.state is State.STARTING:
            it.enter(State.SETTING_UP, now)
            it.moved = now
        if done > it.done:
            it.done, it.moved = done, now
        if it.state is State.SETTING_UP and it.goal is not None and it.done >= it.goal:
            it.enter(State.UP, now)
            return True
        if it.state is State.UP and now - it.since > 2 * self._stall_timeout and not it.busy:
            it.hangs = 0
        return False

    def goes(self, who: Who, life: int, why: str, now: float) -> bool:
        """Notes that an actor has gone; returns whether that is new."""
        it = self._all[who]
        if not self.is_current(who, life):
            return False
        came_up = it.state in (State.UP, State.ENDING)
        it.start_at = now + (0.0 if came_up else _BETWEEN_STARTS_S)
        it.enter(State.GONE, now)
        it.why, it.busy = why or it.why, False
        return True

    def is_ended(self, who: Who, why: str, now: float) -> None:
        """Notes that an actor is being ended because it hangs."""
        it = self._all[who]
        it.hangs += 1
        it.enter(State.ENDING, now)
        it.why = why

    def has_work(self, who: Who, now: float) -> None:
        """Notes that a worker has steps to do."""
        it = self._all[who]
        it.moved = it.moved if it.busy else now
        it.busy = True

    def gets_on(self, who: Who, now: float, is_busy: bool) -> None:
        """Notes that a worker has answered a step, and whether it has others."""
        it = self._all[who]
        it.moved, it.busy, it.hangs = now, is_busy, 0

    # What to do.

    def all_of(self, job: str) -> list[Who]:
        """Returns all actors of a job."""
        return [who for who in self._all if who.job == job]

    def life(self, who: Who) -> int:
        """Returns the number of an actor's last life."""
        return self._all[who].life

    def to_ping(self, now: float) -> list[Who]:
        """Returns whom to ask for a sign of life."""
        alive = (State.STARTING, State.SETTING_UP, State.UP)
        return [
            who
            for who, it in self._all.items()
            if it.state in alive and it.goal is not None and it.asked is None and now - it.heard >= self._pause(it)
        ]

    def _pause(self, it: _Watched) -> float:
        return self._between_pings if it.state is State.UP else min(self._between_pings, _BETWEEN_PINGS_AT_START_S)

    def to_start(self, now: float) -> list[Who]:
        """Returns the workers to start. Servers are not among them: their variables have to be restored with them."""
        return [
            who for who, it in self._all.items() if who.job == WORKER and it.state is State.GONE and now >= it.start_at
        ]

    def hung(self, now: float) -> dict[Who, str]:
        """Returns who hangs, and how that shows."""
        suspect = self._is_a_server_suspect(now)
        found = {who: self._what_hangs(who, it, now, suspect) for who, it in self._all.items()}
        return {who: why for who, why in found.items() if why}

    def _what_hangs(self, who: Who, it: _Watched, now: float, suspect: bool) -> str:
        patience = min(2.0**it.hangs, _MOST_PATIENCE)
        if it.state is State.STARTING:
            limit = patience * self._start_timeout
            return f"{who} has not come up within {limit:g} s" if now - it.since > limit else ""
        if it.state not in (State.SETTING_UP, State.UP):
            return ""
        limit = patience * self._stall_timeout
        if it.asked is not None and now - it.asked > limit:
            return f"{who} has not answered for {limit:g} s"
        if who.job == WORKER and (it.busy or it.state is State.SETTING_UP):
            limit *= 3 if suspect else 1
            if now - it.moved > limit:
                doing = (
                    "its steps" if it.state is State.UP else f"being set up ({it.done} of {it.goal} things are done)"
                )
                return f"{who} has got no further with {doing} for {limit:g} s"
        return ""

    def _is_a_server_suspect(self, now: float) -> bool:
        servers = [it for who, it in self._all.items() if who.job == SERVER]
        return any(
            it.state is not State.UP or (it.asked is not None and now - it.asked > self._suspect_after)
            for it in servers
        )

    def never_ended(self, now: float) -> list[Who]:
        """Returns those whose end was ordered long ago, without news of it: their nodes may be out of reach."""
        return [who for who, it in self._all.items() if it.state is State.ENDING and now - it.since > _ENDED_WITHIN_S]

    def lost_servers(self) -> list[Who]:
        """Returns the servers that have gone and are not started again."""
        return [who for who, it in self._all.items() if who.job == SERVER and it.state is State.GONE]

    def told(self) -> str:
        """Returns what each worker is doing that is not up, in words."""
        absent = [(who, it) for who, it in self._all.items() if who.job == WORKER and it.state is not State.UP]
        return "; ".join(f"{who} {it.state.value}" + (f" ({it.why})" if it.why else "") for who, it in absent)
