"""A local cluster with a time limit, for tests and for `replicax doctor`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.cluster.signing import new_token
from replicax.job.launching.local_job import LocalTasks
from replicax.job.options import Options
from replicax.job.plan import Job
from replicax.job.processes.events import Event, Events, SignalReceived
from replicax.job.processes.reaper import Guard
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.run_job import JobPolicy, run_job
from replicax.job.supervision.state import Grace

_TO_WRITE_STACKS_S = 1.0  # A process writes them from the handler of a signal, whatever it does.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a cluster ended."""

    code: int  # 0, or the exit code of the task that failed first
    failed: str  # the name of that task, such as "worker 1"; "" if none failed
    timed_out: bool
    logs: Mapping[str, Path]  # by the names of the tasks


def run_in_time(
    options: Options,
    log_dir: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs a script as a cluster, once and without showing its output; in the end no process is left."""
    inherited = dict(os.environ if environment is None else environment)
    job = Job(options, inherited, new_token(), os.getpid())
    events: Events[Event] = Events()
    terminal = Terminal(io.StringIO(), io.StringIO())
    # It is one attempt, with its logs elsewhere: `restarts` and `log_dir` of the options have no effect.
    policy = JobPolicy(options.workers, Grace.of(options))
    with contextlib.closing(Guard()) as guard, _alarm(events, timeout_s) as rang:
        local = LocalTasks(job, log_dir, terminal, guard, events)
        attempt, _ = run_job(local, policy, terminal, events)
    logs = {task.name: log_dir / task.log_name for task in local.planned}
    return Outcome(attempt.code, attempt.failed, rang.is_set(), logs)


@contextlib.contextmanager
def _alarm(events: Events[Event], timeout_s: float) -> Iterator[threading.Event]:
    """Makes all tasks write their stacks and kills them, unless the block ends in time; yields an event set if not."""
    over, rang = threading.Event(), threading.Event()

    def wait() -> None:
        if over.wait(timeout_s):
            return
        rang.set()
        # At it `faulthandler` writes the stacks to the log. Not SIGTERM, which JAX catches itself.
        events.put(SignalReceived(signal.SIGUSR1))
        over.wait(_TO_WRITE_STACKS_S)
        events.put(SignalReceived(signal.SIGINT))  # As a second signal it kills the tasks.

    thread = threading.Thread(target=wait, name="replicax-alarm", daemon=True)
    thread.start()
    try:
        yield rang
    finally:
        over.set()
        thread.join()
