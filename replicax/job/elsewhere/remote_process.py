"""A worker's process on another machine as its client knows it: a thread asks its host for news."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from replicax.cluster.patience import Patience
from replicax.errors.exit_codes import ExitCode
from replicax.job.elsewhere.messages import (
    Drains,
    Ended,
    Failed,
    HostFacts,
    News,
    Noted,
    Order,
    Output,
    Remains,
    Reply,
)
from replicax.job.processes.events import (
    ClusterLeft,
    EventSink,
    FoundSilent,
    ProcessEnded,
    ProcessLike,
    ScriptEnded,
    Started,
    WaitingForOthers,
)
from replicax.job.processes.job_ledger import append
from replicax.job.processes.output import last_words
from replicax.job.processes.processes import Outlets
from replicax.job.processes.task import PlannedTask
from replicax.ray_cluster.ending_actors import end_actor
from replicax.runtime.threads import StoppedAtEnd

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_FAILED = 1
_SECONDS_TO_WAIT_THERE = 1.0
_SECONDS_BETWEEN_LOOKS = 0.05


class AgentLostError(Exception):
    """A host has gone, or does not answer."""


class RemoteAgent:
    """A worker's host, asked with a limit: neither a lost machine nor a stopped process keeps the client waiting."""

    def __init__(self, actor: ActorHandle[object], name: str, patience: Patience, lost_head: Callable[[], str | None]):
        self.actor, self.name, self.patience, self._lost_head = actor, name, patience, lost_head
        self.facts: HostFacts | None = None  # where it runs; None until Ray has found a place and it has said so
        self.is_spent = False  # Nothing more can start there: its machine is about to go, or nothing is heard of it.

    def ask(self, method: str, *args: object) -> ObjectRef[object]:
        """Calls a method; `answer` returns its result."""
        ref: ObjectRef[object] = getattr(self.actor, method).remote(*args)
        return ref

    def answer(self, ref: ObjectRef[object], seconds: float | None = None) -> object:
        """Returns the answer of a call, or raises the error of the method; `AgentLostError` if none comes."""
        import ray

        limit = self.patience.silence if seconds is None else seconds
        end = time.monotonic() + limit
        try:
            while True:
                left = end - time.monotonic()
                try:
                    return ray.get(ref, timeout=max(0.0, min(self.patience.again, left)))
                except ray.exceptions.GetTimeoutError:
                    if left <= self.patience.again:
                        raise AgentLostError(f"has not answered for {limit:g} s") from None
                # Ray does not report that the server which holds the cluster together is gone.
                if (head := self._lost_head()) is not None:
                    raise AgentLostError(f"cannot be reached: {head}, which holds the cluster together, is gone")
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()
            raise AgentLostError(
                f"is gone: its server or its process has ended ({reason[0] if reason else error!r})"
            ) from error

    def is_gone(self, seconds: float) -> bool:
        """Waits for the end of the actor, at most so many seconds; returns whether it has come."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.answer(self.ask("client"), left)
            except AgentLostError as error:
                return isinstance(error.__cause__, Exception)  # Not for want of an answer.
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return False


class RemoteProcess:
    """A worker's process on another machine, like `Process` on this one; it may wait until its host has a place."""

    def __init__(
        self,
        host: RemoteAgent,
        order: Order,
        payload: ObjectRef[bytes] | None,
        outlets: Outlets,
        events: EventSink,
        waits: bool = False,
    ):
        self.task: PlannedTask = order.task
        self._host, self._outlets, self._events = host, outlets, events
        self.last_words = ""
        self.told: ScriptEnded[ProcessLike] | None = None
        self.pid, self.meets, self.has_left, self.is_lost = 0, 0, False, False
        self.waits = waits
        self.result: bytes | None = None  # see `Remains`
        self.ended_early, self._is_call = False, order.kind == "call"
        self._returncode: int = ExitCode.PEER_LOST
        self._is_over = threading.Event()
        starting = host.ask("start", order, payload)
        StoppedAtEnd(f"replicax-follow-{order.task.name}", self._follow, starting).start()

    @property
    def _seconds_to_end(self) -> float:
        return self._host.patience.silence + self._host.patience.end

    @property
    def log_path(self) -> Path | None:
        return self._outlets.log.path

    def send(self, number: int) -> None:
        """Sends a signal to the task alone. A host that is gone gets none; a task that waits for room ends."""
        if self.waits:
            self._returncode = -number
            end_actor(self._host.actor)
            return
        self._host.ask("send", number)

    def kill(self) -> None:
        """Kills the task and all processes that it started."""
        if self.waits:
            self.send(signal.SIGKILL)
            return
        self._host.ask("kill")

    def tidy_up(self) -> int:
        """Waits until all of its output is here; returns its return code, -n for signal n."""
        if not self._is_over.wait(self._seconds_to_end):
            self._lose("has not ended in time")
        return self._returncode

    def _follow(self, starting: ObjectRef[object]) -> None:
        """Asks for news until the process has ended."""
        try:
            self.pid = cast(int, self._host.answer(starting, math.inf if self._host.facts is None else None))
            if self._host.facts is None:
                self._host.facts = cast(HostFacts, self._host.answer(self._host.ask("about")))
            self.waits = False
            self._events.put(Started(self, self.pid, self._host.facts.ip, self.log_path))
            ended = None
            while ended is None:
                reply = self._asked(_SECONDS_TO_WAIT_THERE)
                offset = time.monotonic() - reply.now
                for news in reply.news:
                    ended = news.time + offset if isinstance(news, Ended) else ended
                    self._take(news, offset)
            remains = self._host.answer(self._host.ask("tidy_up"), self._seconds_to_end)
            for news in self._asked(0.0).news:
                self._take(news, offset)
            self._end(cast(Remains, remains), ended)
        except AgentLostError as error:
            self._lose(str(error))
        except Exception as error:  # A host that cannot start the process says why.
            self._lose(f"cannot run it: {error}")

    def _asked(self, wait_s: float) -> Reply:
        return cast(Reply, self._host.answer(self._host.ask("news", wait_s), wait_s + self._host.patience.silence))

    def _take(self, news: News, offset: float) -> None:
        if isinstance(news, Output):
            self._outlets.log.write(news.chunk)
            self._outlets.streams[news.error].feed(news.chunk)
        elif isinstance(news, Noted):
            if self.log_path is not None:
                append(self.log_path.parent, news.file, news.lines)
        elif isinstance(news, Drains):
            self._host.is_spent = True
        elif isinstance(news, Failed):
            if news.words:
                self._outlets.log.write(f"{news.words}\n".encode())
            self.last_words = news.words or last_words(self._outlets.streams, script_ended=True)
            event = ScriptEnded[ProcessLike](self, news.code, news.time + offset, news.blames)
            self.told = self.told or event  # The first says who is to blame; the end of the script may follow.
            self._events.put(event)
        elif isinstance(news, FoundSilent):
            self._events.put(news)
        elif not isinstance(news, Ended):
            if isinstance(news, WaitingForOthers):
                self.meets = news.size
            self.has_left = self.has_left or isinstance(news, ClusterLeft)
            self._events.put(news._replace(process=self))

    def _end(self, remains: Remains, at: float) -> None:
        self._returncode, self.has_left, self.result = remains
        # An end with exit code 0 before the call has returned is a failure too.
        if self._is_call and self.result is None and self._returncode == 0:
            self.ended_early, self._returncode = True, _FAILED
        self._close()
        self._events.put(ProcessEnded(self, at))

    def _lose(self, why: str) -> None:
        self.is_lost = self._host.is_spent = True
        self.last_words = f"replicax: {self._host.name} {why}."
        self._close()
        self._events.put(ProcessEnded(self, time.monotonic()))

    def _close(self) -> None:
        if self._is_over.is_set():
            return
        for stream in self._outlets.streams:
            stream.feed(b"", final=True)
        if self.told is None and not self.is_lost:
            self.last_words = last_words(self._outlets.streams)
        self._outlets.log.close()
        self._is_over.set()
