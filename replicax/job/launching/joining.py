"""Joins a running elastic job with one more worker: `replicax run --join`. See also `supervision.joined_workers`."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from replicax.checks.environment_names import LOG_DIR
from replicax.cluster.addresses import join_address
from replicax.cluster.outages import end_if_silent
from replicax.cluster.patience import Patience
from replicax.cluster.token_proof import Session, proved
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode, describe, is_restartable
from replicax.job.launching.join_credentials import JoinCredentials, invitation_to
from replicax.job.options import Options, check_script, make_log_dir
from replicax.job.plan import MEMBER_VARIABLES
from replicax.job.processes.events import Event, Events, FoundSilent, MemberNews, SignalReceived
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import Log, error_line
from replicax.job.processes.processes import Process
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import WORKER, PlannedTask, Program, common_environment
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.joined_workers import PATIENCE
from replicax.job.supervision.run_job import JobPolicy, Tasks, run_job, signals_as
from replicax.job.supervision.state import Grace

_SECONDS_OF_A_USEFUL_LIFE = 60.0  # A worker that ends sooner counts as one that cannot run here.
_MOST_WORDS = 100_000
_MOST_RESTARTS = 1000
# Whoever starts several of these launchers numbers them; the numbers of the job are others.
_RANKS = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def join(
    options: Options,
    where: str,
    start_timeout: float = 120.0,
    terminal: Terminal | None = None,
    environment: Mapping[str, str] | None = None,
    patience: Patience = PATIENCE,
) -> int:
    """Runs a script as one more worker of an elastic job, and returns its exit code. Call it in the main thread."""
    check_script(options)
    inherited = dict(os.environ if environment is None else environment)
    for name in _RANKS:
        inherited.pop(name, None)
    join_credentials = invitation_to(where, inherited)
    terminal = terminal or Terminal(sys.stdout, sys.stderr)
    visitor = _Visitor(options, join_credentials, inherited, make_log_dir(options), terminal, patience)
    try:
        return visitor.stay(start_timeout)
    finally:
        visitor.guard.close()


class _Assignment(NamedTuple):
    """A place in the job: the connection with its launcher, its number, and the variables of the cluster."""

    session: Session
    number: int
    environment: Mapping[str, str]


class _End(NamedTuple):
    """The end of one run: its exit code, its last words, and whether it is not to join again."""

    code: int
    words: str
    is_over: bool


class _Visitor:
    """Joins a job, and again if the worker is lost while the job goes on, unless a restart would repeat its error."""

    def __init__(
        self,
        options: Options,
        join_credentials: JoinCredentials,
        inherited: Mapping[str, str],
        log_dir: Path,
        terminal: Terminal,
        patience: Patience = PATIENCE,
    ):
        self.guard = Guard()
        self._options, self._invitation, self._inherited = options, join_credentials, inherited
        self._log_dir, self._terminal = log_dir, terminal
        self._patience = patience
        self._wanted: int | None = None

    def stay(self, start_timeout: float) -> int:
        """Joins until there is nothing more to do; returns the exit code."""
        left = _MOST_RESTARTS if self._options.restarts is None else self._options.restarts
        shortest, longest = ElasticPolicy.shortest_pause, ElasticPolicy.longest_pause
        pause, before = shortest / 2, ""
        seat = self._take_seat(start_timeout)
        for run in itertools.count():
            began = time.monotonic()
            with contextlib.closing(seat.session.connection):
                end = self._run(seat, run)
            error = error_line(end.words) if end.code == ExitCode.FAILED else ""
            if end.is_over or not is_restartable(end.code) or run >= left or (error and error == before):
                return end.code
            useful = time.monotonic() - began > _SECONDS_OF_A_USEFUL_LIFE
            pause, before = shortest if useful else min(2 * pause, longest), error
            self._terminal.say(f"The worker ended with {describe(end.code)}. It joins again in {pause:g} s.")
            time.sleep(pause)
            try:
                seat = self._take_seat(self._patience.stall)
            except LaunchError as refusal:
                self._terminal.say(f"It does not join again. {refusal}")
                return end.code
        raise AssertionError("unreachable")

    def _take_seat(self, seconds: float) -> _Assignment:
        """Asks for a place in the job, with the index that the worker had before if possible."""
        host, port = self._invitation.address
        there = join_address(host, port)
        session = _met(self._invitation, seconds, self._patience)
        connection = session.connection
        try:
            session.tell({"host": socket.gethostname(), "wanted": self._wanted})
            told = session.hear(time.monotonic() + self._patience.start)
        except (OSError, ValueError) as error:
            connection.close()
            raise LaunchError(f"The job at {there} does not let this worker in: {error}.") from error
        index, environment = told.get("index"), told.get("environment")
        if not isinstance(index, int) or not isinstance(environment, dict):
            connection.close()
            raise LaunchError(f"The job at {there} does not let this worker in: {told.get('no', told)}.")
        if environment.keys() != MEMBER_VARIABLES or not all(isinstance(each, str) for each in environment.values()):
            connection.close()
            raise LaunchError(
                f"The job at {there} sends the variables {sorted(environment)!r:.300}, not {sorted(MEMBER_VARIABLES)}: "
                "install the same version of replicax here and there."
            )
        connection.settimeout(None)
        self._wanted = index
        return _Assignment(session, index, environment)

    def _run(self, seat: _Assignment, run: int) -> _End:
        options = self._options
        common = common_environment(self._inherited, options.devices_per_worker, self._invitation.token, attempt=0)
        own = {LOG_DIR: str(self._log_dir.absolute()), **common, **seat.environment}
        task = PlannedTask(WORKER, seat.number, None, own)
        program = Program("module" if options.module else "file", options.script, options.arguments)
        events = Events[Event]()
        wire = _Wire(seat.session, events, self._patience)

        @contextlib.contextmanager
        def start(workers: int, attempt: int) -> Iterator[Tasks]:
            del workers, attempt  # It is one, once.
            log = Log(self._log_dir / task.log_name, run)
            process = Process(task, program, outlets_to(self._terminal, log, 0, task), wire, self.guard)
            wire.begin(process)
            yield Tasks([process])

        with signals_as(events):
            attempt, failure = run_job(start, JobPolicy(1, Grace.of(options)), self._terminal, events)
        words = failure.words if failure is not None else ""
        wire.end(attempt.code, words)
        if wire.over:
            self._terminal.say(f"The job needs this worker no more: {wire.over}.")
            return _End(ExitCode.OK, words, True)
        code = ExitCode.PEER_LOST if wire.is_cut else attempt.code
        return _End(code, words, attempt.interrupted and not wire.was_told)


class _Wire:
    """The connection with the job's launcher: news of the others goes there, other events to the supervisor here."""

    def __init__(self, session: Session, events: Events[Event], patience: Patience):
        # The launcher has told the worker to end; why the job needs it no more, "" if it does; the connection was lost.
        self.was_told, self.over, self.is_cut = False, "", False
        self._session, self._events, self._patience = session, events, patience
        self._ending = False
        self._process: Process | None = None
        self._thread = threading.Thread(target=self._listen, name="replicax-join", daemon=True)

    def begin(self, process: Process) -> None:
        """Tells that the worker runs, and listens."""
        self._process = process
        self._tell({"pid": process.pid})
        self._thread.start()

    def put(self, event: Event) -> None:
        """Takes an event of the worker."""
        if isinstance(event, FoundSilent):
            self._tell({"silent": event.task, "life": event.incarnation})
        elif isinstance(event, MemberNews):
            self._tell(
                {"leaving": event.leaving} if event.leaving else {"world": event.world, "lives": event.incarnations}
            )
        else:
            self._events.put(event)

    def end(self, code: int, words: str) -> None:
        """Tells how the worker has ended."""
        self._ending = True
        if self._process is not None and self._process.has_left:
            self._tell({"leaves": True})
        self._tell({"ended": code, "words": words[-_MOST_WORDS:]})
        with contextlib.suppress(OSError):
            self._session.connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(self._patience.end)

    def _tell(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):  # It is cut, which `_listen` notices.
            self._session.tell(message)

    def _listen(self) -> None:
        """Takes the orders of the job's launcher until the connection ends; without it the worker ends, too."""
        assert self._process is not None
        with contextlib.suppress(OSError, ValueError):
            while True:
                told = self._session.hear()
                number = told.get("signal")
                self.over = str(told.get("no", "")) or self.over
                self.was_told = True
                if isinstance(number, int) and number != signal.SIGKILL:
                    self._events.put(SignalReceived(number))
                else:
                    self._process.kill()
        if not self._ending:
            self.is_cut = not self.was_told
            self._process.kill()


def _met(join_credentials: JoinCredentials, seconds: float, patience: Patience) -> Session:
    """Returns a session with the job's launcher; strangers who knock too may have it dropped a few times."""
    there, until = join_address(*join_credentials.address), time.monotonic() + patience.end
    while True:
        connection = _connected(*join_credentials.address, seconds, patience)
        end_if_silent(connection, patience.silence)
        try:
            return proved(connection, join_credentials.token, patience.start)
        except ConnectionRefusedError as refusal:
            connection.close()
            raise LaunchError(f"The job at {there} does not let this worker in: {str(refusal)!r:.200}.") from refusal
        except (OSError, ValueError) as error:
            connection.close()
            if not isinstance(error, ConnectionError) or time.monotonic() >= until:
                raise LaunchError(
                    f"The program that listens at {there} is no launcher of this elastic job: {error}."
                ) from error
        time.sleep(patience.again)


def _connected(host: str, port: int, seconds: float, patience: Patience) -> socket.socket:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=patience.start)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise LaunchError(
                    f"No elastic job lets workers in at {join_address(host, port)} ({error}). Its launcher has ended, "
                    "or listens elsewhere (--address)."
                ) from error
        time.sleep(patience.again)
