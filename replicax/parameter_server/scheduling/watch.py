"""Which workers and servers are up, gone or hung: values and pure functions of them. Nothing here waits, talks to
anybody, or looks at a clock."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from replicax.cluster.patience import Patience

WORKER, SERVER = "worker", "ps"
_LONGEST = 8.0  # times the patience: a machine that is too busy for it must not have everything restarted forever
_PINGS_IN_A_TIMEOUT, _PINGS_AT_START = 8, 10  # at the start so many in the time of one


def longest_wait(patience: Patience) -> float:
    """Returns for how many seconds to wait for workers or servers that do not come back, before that is an error."""
    # An actor can be found hung at its start twice in that time, the second time with twice the patience.
    return 3 * patience.start + 2 * patience.stall


@dataclasses.dataclass(frozen=True)
class ActorId:
    """A worker or a server."""

    job: str  # `WORKER` or `SERVER`
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


class Stage(enum.Enum):
    """How far an actor has come."""

    GONE = "has gone"
    STARTING = "is starting"
    SETTING_UP = "is being set up"
    UP = "is up"
    ENDING = "is being ended"


class ActorRecord(NamedTuple):
    """The state of one actor. Times are those of the caller's clock."""

    stage: Stage = Stage.GONE
    life: int = 0  # how many times it was started; news of an earlier life is ignored
    since: float = 0.0  # when it entered its stage
    pinged_at: float | None = None  # when a ping was sent that has no answer yet
    heard_at: float = 0.0  # when it answered last
    progress_at: float = 0.0  # when it made progress last, or was given work after it had none
    set_up_done: int = 0
    set_up_goal: int | None = None  # set-ups to be done before it can take steps; None while that is not known
    is_busy: bool = False
    hangs: int = 0  # how many times in a row it was ended because it hung
    start_at: float = 0.0  # when it may be started again
    why: str = ""  # the last thing that was wrong with it

    def starts(self, now: float, goal: int | None) -> ActorRecord:
        """Returns the record of the next life."""
        return ActorRecord(
            Stage.STARTING, self.life + 1, now, heard_at=-math.inf, progress_at=self.progress_at,
            set_up_goal=goal, hangs=self.hangs, start_at=self.start_at, why=self.why,
        )  # fmt: skip

    def enters(self, stage: Stage, now: float) -> ActorRecord:
        return self._replace(stage=stage, since=now, pinged_at=None)

    def answers(self, set_up_done: int, now: float, patience: Patience) -> ActorRecord:
        """Returns the record after an answer to a ping."""
        it = self._replace(pinged_at=None, heard_at=now)
        if it.stage is Stage.STARTING:
            it = it.enters(Stage.SETTING_UP, now)._replace(progress_at=now)
        if set_up_done > it.set_up_done:
            it = it._replace(set_up_done=set_up_done, progress_at=now)
        if it.stage is Stage.SETTING_UP and it.set_up_goal is not None and it.set_up_done >= it.set_up_goal:
            return it.enters(Stage.UP, now)
        if it.stage is Stage.UP and it.hangs and now - it.since > 2 * patience.stall and not it.is_busy:
            it = it._replace(hangs=0)
        return it

    def goes(self, why: str, now: float, patience: Patience) -> ActorRecord:
        """Returns the record after the actor has gone."""
        came_up = self.stage in (Stage.UP, Stage.ENDING)
        # Ray refuses at once what it cannot place, such as an actor whose node is away.
        gone, start_at = self.enters(Stage.GONE, now), now + (0.0 if came_up else 2 * patience.again)
        return gone._replace(start_at=start_at, why=why or self.why, is_busy=False)

    def wants_ping(self, now: float, patience: Patience) -> bool:
        """Returns whether the actor is to be asked for a sign of life."""
        if self.stage in (Stage.GONE, Stage.ENDING) or self.set_up_goal is None or self.pinged_at is not None:
            return False
        usual = patience.again if self.stage is Stage.UP else patience.again / _PINGS_AT_START
        return now - self.heard_at >= min(usual, patience.stall / _PINGS_IN_A_TIMEOUT)

    def is_silent(self, now: float, seconds: float) -> bool:
        """Returns whether a ping has had no answer for longer than so many seconds."""
        return self.pinged_at is not None and now - self.pinged_at > seconds

    def hang(self, actor: ActorId, now: float, patience: Patience, is_server_suspect: bool) -> str:
        """Returns how it shows that the actor hangs; "" if it does not."""
        times = min(2.0**self.hangs, _LONGEST)
        if self.stage is Stage.STARTING:
            limit = times * patience.start
            return f"{actor} has not come up within {limit:g} s" if now - self.since > limit else ""
        if self.stage not in (Stage.SETTING_UP, Stage.UP):
            return ""
        limit = times * patience.stall
        if self.is_silent(now, limit):
            return f"{actor} has not answered for {limit:g} s"
        if actor.job == WORKER and (self.is_busy or self.stage is Stage.SETTING_UP):
            limit *= 3 if is_server_suspect else 1
            if now - self.progress_at > limit:
                return f"{actor} has got no further with {self._work()} for {limit:g} s"
        return ""

    def _work(self) -> str:
        if self.stage is Stage.UP:
            return "its steps"
        return f"being set up ({self.set_up_done} of {self.set_up_goal} things are done)"


@dataclasses.dataclass(frozen=True)
class Watch:
    """The records of all actors, busy or not, from their start.

    An actor *starts*; from its first answer to a ping on it is *set up*; a worker is *up* when it has done all that it
    was told at its start, a server at once. It *hangs* if it does not come up in time, does not answer a ping, or, a
    worker, makes no progress with what it has to do. An actor that hangs is ended, and has twice the time in its next
    life, up to eight times. A worker is not blamed while a server may be what it waits for.

    Example:
        >>> from replicax.ray_cluster.deadline import PATIENCE
        >>> watch = Watch.of(workers=1, servers=0, patience=PATIENCE._replace(start=60))
        >>> worker = ActorId("worker", 0)
        >>> starting = watch.starts(worker, now=0.0)
        >>> watch[worker].stage.value, starting[worker].stage.value
        ('has gone', 'is starting')
        >>> starting.hung(now=61.0)
        {ActorId(job='worker', index=0): 'worker:0 has not come up within 60 s'}
    """

    patience: Patience
    actors: Mapping[ActorId, ActorRecord]

    @classmethod
    def of(cls, workers: int, servers: int, patience: Patience) -> Watch:
        """Returns a watch of so many workers and servers, none of which has been started."""
        everybody = [ActorId(WORKER, i) for i in range(workers)] + [ActorId(SERVER, i) for i in range(servers)]
        return cls(patience, dict.fromkeys(everybody, ActorRecord()))

    def __getitem__(self, actor: ActorId) -> ActorRecord:
        return self.actors[actor]

    def is_current(self, actor: ActorId, life: int) -> bool:
        """Returns whether this life of an actor is its last one, and not over."""
        it = self.actors[actor]
        return it.life == life and it.stage is not Stage.GONE

    def workers(self) -> list[ActorId]:
        return [actor for actor in self.actors if actor.job == WORKER]

    # Transitions: each returns the watch afterwards.

    def starts(self, actor: ActorId, now: float) -> Watch:
        """Notes that an actor is started: another life of it begins."""
        return self._with(actor, self.actors[actor].starts(now, 0 if actor.job == SERVER else None))

    def has_goal(self, actor: ActorId, life: int, goal: int) -> Watch:
        """Notes how much an actor has to do before it is up."""
        if not self.is_current(actor, life):
            return self
        return self._with(actor, self.actors[actor]._replace(set_up_goal=goal))

    def pinged(self, actor: ActorId, now: float) -> Watch:
        """Notes that a ping was sent."""
        return self._with(actor, self.actors[actor]._replace(pinged_at=now))

    def answers(self, actor: ActorId, life: int, set_up_done: int, now: float) -> Watch:
        """Notes the answer to a ping: how much of the setting up is done."""
        it = self.actors[actor]
        if not self.is_current(actor, life) or it.stage is Stage.ENDING:
            return self
        return self._with(actor, it.answers(set_up_done, now, self.patience))

    def goes(self, actor: ActorId, life: int, why: str, now: float) -> Watch:
        """Notes that an actor has gone; the same watch if that is not new."""
        return (
            self._with(actor, self.actors[actor].goes(why, now, self.patience))
            if self.is_current(actor, life)
            else self
        )

    def ends(self, actor: ActorId, why: str, now: float) -> Watch:
        """Notes that an actor is being ended because it hangs."""
        it = self.actors[actor].enters(Stage.ENDING, now)
        return self._with(actor, it._replace(hangs=it.hangs + 1, why=why))

    def gets_work(self, actor: ActorId, now: float) -> Watch:
        """Notes that a worker has steps to do."""
        it = self.actors[actor]
        return self if it.is_busy else self._with(actor, it._replace(progress_at=now, is_busy=True))

    def makes_progress(self, actor: ActorId, now: float, is_busy: bool) -> Watch:
        """Notes that a worker has answered a step, and whether it has others."""
        it = self.actors[actor]._replace(progress_at=now, is_busy=is_busy, hangs=0)
        return self._with(actor, it)

    def _with(self, actor: ActorId, record: ActorRecord) -> Watch:
        return Watch(self.patience, {**self.actors, actor: record})

    # Decisions.

    def to_ping(self, now: float) -> list[ActorId]:
        """Returns the actors to ask for a sign of life."""
        return _those(self, lambda actor, it: it.wants_ping(now, self.patience))

    def to_start(self, now: float) -> list[ActorId]:
        """Returns the workers to start. Servers are not among them: their variables have to be restored with them."""
        return _those(self, lambda actor, it: actor.job == WORKER and it.stage is Stage.GONE and now >= it.start_at)

    def hung(self, now: float) -> dict[ActorId, str]:
        """Returns the actors that hang, and how that shows."""
        found = {actor: it.hang(actor, now, self.patience, False) for actor, it in self.actors.items()}
        if any(found.values()) and self._is_a_server_suspect(now):
            found = {actor: it.hang(actor, now, self.patience, True) for actor, it in self.actors.items()}
        return {actor: why for actor, why in found.items() if why}

    def never_ended(self, now: float) -> list[ActorId]:
        """Returns the actors whose end was ordered long ago, without news of it: their nodes may be out of reach."""
        return _those(self, lambda actor, it: it.stage is Stage.ENDING and now - it.since > 3 * self.patience.end)

    def lost_servers(self) -> list[ActorId]:
        """Returns the servers that have gone and have not been started again."""
        return _those(self, lambda actor, it: actor.job == SERVER and it.stage is Stage.GONE)

    def _is_a_server_suspect(self, now: float) -> bool:
        suspect_after = min(self.patience.silence, self.patience.stall / 2)
        return any(
            it.stage is not Stage.UP or it.is_silent(now, suspect_after)
            for actor, it in self.actors.items()
            if actor.job == SERVER
        )

    def describe_absent(self) -> str:
        """Returns what each worker is doing that is not up, in words."""
        absent = [(actor, self.actors[actor]) for actor in self.workers()]
        return "; ".join(
            f"{actor} {it.stage.value}" + (f" ({it.why})" if it.why else "")
            for actor, it in absent
            if it.stage is not Stage.UP
        )


def _those(watch: Watch, condition: Callable[[ActorId, ActorRecord], bool]) -> list[ActorId]:
    return [actor for actor, it in watch.actors.items() if condition(actor, it)]
