"""A whole job: one attempt after the other, until it is done or no restart is left."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from replicax.checks.environment_names import SNAPSHOTS, TOKEN
from replicax.cluster.addresses import Address
from replicax.cluster.signing import new_token
from replicax.compat.systems import check_system
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode, describe
from replicax.group.membership.membership_log import MembershipLog
from replicax.group.membership.store_process import Host
from replicax.job.launching.join_credentials import INVITATION, write_invitation
from replicax.job.launching.snapshot_memory import memory_for_snapshots
from replicax.job.launching.starting import supervisor_of
from replicax.job.options import Options, check_script, make_log_dir
from replicax.job.plan import HOST, Job, count_ports, make_plan, meeting_address, meeting_host
from replicax.job.processes.compile_cache import keep_within
from replicax.job.processes.events import Event, Events, ProcessLike, SignalReceived
from replicax.job.processes.output import error_line, shortened
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, cache_folder
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.joined_workers import JoinListener
from replicax.job.supervision.loss_policy import Failure
from replicax.job.supervision.member_record import MemberRecord
from replicax.job.supervision.restart_policy import AttemptResult, Finish, decide
from replicax.job.supervision.supervisor import ENDING

_RULE = "─" * 8

#: The result of an attempt, and its first failure.
Outcome = tuple[AttemptResult, Failure | None]


def launch(options: Options, terminal: Terminal | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Runs a script as a cluster of processes on this machine; returns its exit code. Call it in the main thread."""
    check_system()
    check_script(options)
    log_dir = make_log_dir(options)
    terminal = terminal or Terminal(sys.stdout, sys.stderr)
    inherited = dict(os.environ if environment is None else environment)
    told = inherited.get(TOKEN) if options.join_listener is not None else None  # Those who join must know it.
    job = Job(options, inherited, told or new_token(), os.getpid())
    keep_within(cache_folder(inherited))
    events: Events[Event] = Events()
    join_listener = _join_listener(options, job, log_dir, terminal, events)
    guard = Guard()
    revived: list[int] = []  # in each attempt before

    def run(workers: int, attempt: int) -> Outcome:
        with reserved_ports(count_ports(options, workers), meeting_host(options)) as ports:
            plan = make_plan(job, workers, attempt, ports, log_dir.absolute())
            if not options.goes_on:
                return supervisor_of(plan, job, log_dir, terminal, guard, events).run()
            with _meeting(meeting_address(options, ports), job.token, guard) as host:
                log = _log(options, log_dir, attempt)
                members = functools.partial(_members, options, revived, host, terminal, log)
                outcome = supervisor_of(plan, job, log_dir, terminal, guard, events, members).run()
                revived.append(outcome[0].revived)
                if log is not None:
                    log.finish(outcome[0].code, describe(outcome[0].code))
                return outcome

    try:
        # Only the main thread can catch signals, and only it lives as long as the process, with which the tasks die.
        with signals_as(events), memory_for_snapshots(options, inherited, guard) as memory:
            inherited[SNAPSHOTS] = memory  # The environment of the tasks.
            return run_attempts(options, terminal, run)
    finally:
        if join_listener is not None:
            join_listener.close()
        guard.close()


def _join_listener(
    options: Options, job: Job, log_dir: Path, terminal: Terminal, events: Events[Event]
) -> JoinListener | None:
    """Opens the listener at which workers may join, if the job is elastic."""
    if options.elastic is None:
        return None
    try:
        join_listener = JoinListener(options.join_listener or Address(HOST, 0), job.token, events)
        write_invitation(log_dir, join_listener.address, job.token)
    except OSError as error:
        raise LaunchError(
            f"No worker could join at {options.join_listener or HOST}: {error}. Choose another --address."
        ) from error
    if options.join_listener is not None:
        terminal.say(
            f"Workers join with: replicax run --join {join_listener.address} {options.script} (their REPLICAX_TOKEN is "
            f"in {log_dir / INVITATION})"
        )
    return join_listener


@contextlib.contextmanager
def _meeting(address: str, token: str, guard: Guard) -> Iterator[Host]:
    """Keeps the job store of the islands' meeting while the block runs."""
    host = Host(address, token)
    guard.watch([host.pid])
    try:
        yield host
    finally:
        host.close()
        guard.forget(host.pid)


def _log(options: Options, log_dir: Path, attempt: int) -> MembershipLog | None:
    """Returns the membership log of an elastic job, in which an attempt begins."""
    if options.elastic is None:
        return None
    log = MembershipLog(log_dir)
    log.job(*options.elastic, options.workers, attempt)
    return log


def _members(
    options: Options,
    revived: Sequence[int],
    host: Host,
    terminal: Terminal,
    log: MembershipLog | None,
    start: Callable[[PlannedTask], ProcessLike],
) -> ElasticPolicy:
    return ElasticPolicy(options, options.single_restarts - sum(revived), host, start, terminal, MemberRecord(log))


def run_attempts(options: Options, terminal: Terminal, run: Callable[[int, int], Outcome]) -> int:
    """Runs one attempt after the other until the job is done or no restart is left, and returns the exit code."""
    workers, history = options.workers, list[AttemptResult]()
    while True:
        attempt, failure = run(workers, len(history))
        history.append(attempt)
        decision = decide(history, options)
        if isinstance(decision, Finish):
            _tell_end(terminal, attempt, failure)
            return decision.code
        how = failure.how if failure is not None else describe(attempt.code)
        terminal.say(f"{attempt.failed} ended with {how}{_reason(failure)}. {decision.why}.")
        workers = decision.workers


def _reason(failure: Failure | None) -> str:
    """Returns the error of the first failing task, in one line."""
    line = error_line(failure.process.last_words) if failure else ""
    return f" ({line})" if line else ""


def _tell_end(terminal: Terminal, attempt: AttemptResult, failure: Failure | None) -> None:
    """Shows the last words of the first failing task, below everything else, where users look for them."""
    if attempt.interrupted:
        terminal.say(f"All tasks have ended; {describe(attempt.code)}.")
    elif failure is not None and failure.code == ExitCode.RESUME:
        terminal.say(f"{attempt.failed} ended with {describe(attempt.code)}.")
    elif failure is not None:
        terminal.show(f"\n{_RULE} {attempt.failed} failed first: {failure.how} {_RULE}")
        words = shortened(failure.process.last_words) or "It printed nothing."
        found = f" (found by {failure.process.task.name})" if failure.process is not failure.culprit else ""
        terminal.show(f"Its log: {failure.culprit.log_path}{found}\n\n{words}")


@contextlib.contextmanager
def signals_as(events: Events[Event]) -> Iterator[None]:
    """Reports signals as events while the block runs. Signals that are ignored (`nohup`) stay ignored."""

    def report(number: int, _: FrameType | None) -> None:
        events.put(SignalReceived(number))

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in ENDING}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, report)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
