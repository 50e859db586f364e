"""An elastic job whose workers a test kills, stops, preempts and cuts off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.checks import checked, checked_seconds, environment_names
from replicax.errors import ArgumentError, LaunchError, WorkersFailedError
from replicax.group.membership.membership_log import NAME
from replicax.job.plan import flags_for_workers
from replicax.testing import behind_cable
from replicax.testing.cables import Cables

_OUTPUT = "launcher.txt"
_NOT_STARTED = "The job has not been started: write `with rx.testing.ElasticJob(...) as job:`."


@checked
class ElasticJob:
    """A script under `replicax run --elastic` on this machine, until the block ends.

    The launcher and the workers are processes as in any job. The methods strike workers at moments that the test
    chooses, and wait for what must follow. Workers are named by their index, which a replacement takes over. Whatever
    happens in the block, no process is left after it.

    Args:
        script: A Python file.
        *arguments: Its arguments.
        workers: The largest number of workers, which the launcher starts.
        min_workers: With how few the job goes on.
        stall_timeout: After how many seconds without a sign of life a worker counts as lost.
        environment: Additions to the environment of the launcher and the workers.
        log_dir: A folder for the logs; by default one that is removed at the end.
        cables: Whether each worker has a network of its own, so that `cut` works. This needs Linux and root;
            `rx.testing.why_no_cables()` says why it is impossible here.
        options: More options for `replicax run`.

    Raises:
        LaunchError: The job cannot be started.

    Example:
        >>> with rx.testing.ElasticJob("train.py", workers=3, min_workers=1) as job:  # doctest: +SKIP
        ...     job.wait_for_world(3)
        ...     job.kill(1)
        ...     job.wait_for_world(2)
        ...     job.wait_for_world(3)  # The launcher has started worker 1 again.
        ...     assert job.wait() == 0
    """

    def __init__(
        self,
        script: str | Path,
        *arguments: object,
        workers: int = 2,
        min_workers: int = 1,
        stall_timeout: float = 10.0,
        environment: Mapping[str, str] | None = None,
        log_dir: str | Path | None = None,
        cables: bool = False,
        options: Sequence[str] = (),
    ):
        self.workers = workers
        self._stall_timeout = checked_seconds("stall_timeout", stall_timeout)
        self._script, self._arguments = Path(script), tuple(map(str, arguments))
        self._range, self._options = f"{min_workers}:{workers}", tuple(options)
        self._environment = {**os.environ, "XLA_FLAGS": flags_for_workers(os.environ.get("XLA_FLAGS", ""))}
        self._environment |= {environment_names.STALL_TIMEOUT: str(self._stall_timeout), **(environment or {})}
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._with_cables = cables
        self._cables: Cables | None = None
        self._launcher: Launcher | None = None
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> ElasticJob:
        if not self._script.is_file():
            raise LaunchError(f"There is no file {str(self._script)!r} in {Path.cwd()}.")
        with contextlib.ExitStack() as ending:
            if self._log_dir is None:
                self._log_dir = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="rx-elastic-")))
            self._log_dir.mkdir(parents=True, exist_ok=True)
            if self._with_cables:
                self._cables = ending.enter_context(Cables(self.workers))
            output = self._log_dir / _OUTPUT
            self._launcher = Launcher(str(self._script), self._command(), self._environment, output)
            ending.callback(_close, self._launcher, self._log_dir)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    @property
    def log_dir(self) -> Path:
        """The folder with the logs of all workers and the log of the members."""
        if self._log_dir is None:
            raise LaunchError(_NOT_STARTED)
        return self._log_dir

    @property
    def output(self) -> str:
        """The output of the launcher and of all workers."""
        return self._running.printed

    @property
    def membership(self) -> Membership:
        """The runs of the workers and the worlds (periods with a fixed set of members) until now."""
        return Membership.read(self.log_dir)

    def run_of(self, worker: int) -> Run:
        """Returns the present run of a worker.

        Raises:
            ArgumentError: The worker does not run now.
        """
        run = self.membership.running.get(worker)
        if run is None:
            running = sorted(self.membership.running)
            raise ArgumentError(f"Worker {worker} does not run now; workers that do: {running}.")
        return run

    def kill(self, worker: int) -> Run:
        """Kills a worker with SIGKILL, as the kernel does when memory runs out; returns the run that it ended."""
        return self._signal(worker, signal.SIGKILL)

    def stop(self, worker: int) -> Run:
        """Stops a worker (SIGSTOP): it keeps its connections and does nothing. `resume` lets it go on."""
        return self._signal(worker, signal.SIGSTOP)

    def resume(self, run: Run) -> None:
        """Lets a run that was stopped go on, if it still exists: the launcher ends those that are left out."""
        if run == self.membership.running.get(run.worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGCONT)

    def preempt(self, worker: int) -> Run:
        """Announces to a worker that it must go (SIGTERM), as a scheduler does."""
        return self._signal(worker, signal.SIGTERM)

    def cut(self, worker: int) -> Run:
        """Cuts the cable of a worker: it runs on and reaches nobody. A replacement reaches nobody until `mend`."""
        run = self.run_of(worker)
        self._cable().cut(worker)
        return run

    def mend(self, worker: int) -> None:
        """Connects a worker again."""
        self._cable().mend(worker)

    def wait_for_world(self, size: int, timeout: float = 60.0, after: int = 0) -> int:
        """Waits until the present world has `size` members.

        Args:
            size: How many.
            timeout: Seconds until it gives up.
            after: Only worlds with a greater number count.

        Returns:
            The number of the world.

        Raises:
            WorkersFailedError: There was none in time, or the job has ended.
        """

        def found() -> bool:
            worlds = self.membership.worlds
            return bool(worlds) and len(worlds[-1].members) == size and worlds[-1].number > after

        self.wait_until(found, f"a world of {size} members", timeout)
        return self.membership.worlds[-1].number

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        """Waits until something is so while the job runs.

        Args:
            condition: Says whether it is so.
            what: It, for the message.
            timeout: Seconds until it gives up.

        Raises:
            WorkersFailedError: It was not so in time, or the job has ended.
        """
        self._running.wait_until(condition, what, timeout)

    def wait(self, timeout: float = 60.0) -> int:
        """Waits for the end of the job; returns its exit code.

        Raises:
            WorkersFailedError: It has not ended in time.
        """
        return self._running.wait(timeout)

    def _command(self) -> list[str]:
        run = [sys.executable, "-m", "replicax", "run", "--elastic", self._range, "--log-dir", str(self.log_dir)]
        if self._cables is None:
            return [*run, *self._options, str(self._script), *self._arguments]
        enter = ["ip", "netns", "exec", self._cables.hub]
        shim = [behind_cable.__file__, self._cables.prefix, str(self._script.absolute())]
        return [*enter, *run, "--address", self._cables.hub_address, *self._options, *shim, *self._arguments]

    def _signal(self, worker: int, number: int) -> Run:
        run = self.run_of(worker)
        try:
            os.kill(run.pid, number)
        except ProcessLookupError:
            raise ArgumentError(f"Worker {worker} ended by itself just now.") from None
        return run

    def _cable(self) -> Cables:
        if self._cables is None:
            raise ArgumentError("The workers have no cables: write `rx.testing.ElasticJob(..., cables=True)`.")
        return self._cables

    @property
    def _running(self) -> Launcher:
        if self._launcher is None:
            raise LaunchError(_NOT_STARTED)
        return self._launcher


def _close(launcher: Launcher, log_dir: Path) -> None:
    """Ends a job; a stopped process would not end when it is told to."""
    for run in Membership.read(log_dir).running.values() if launcher.is_running() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGCONT)
    launcher.close()


# The membership, read from the log that the launcher writes.


class Run(NamedTuple):
    """One run of a worker; its replacement has the same index and another life."""

    worker: int
    life: int  # counts the runs of this worker, from 0
    pid: int


class SeenWorld(NamedTuple):
    """A world, as the log shows it."""

    number: int
    members: tuple[int, ...]  # the indices of its workers
    time: float  # when it began, in seconds since 1970


class Membership(NamedTuple):
    """The runs of all workers, and the worlds."""

    running: dict[int, Run]  # by worker
    ended: dict[Run, int | None]  # exit codes; None where unknown
    runs: tuple[Run, ...]  # in the order in which they began
    worlds: tuple[SeenWorld, ...]

    @property
    def present(self) -> tuple[int, ...]:
        """The workers of the present world; empty before the first one."""
        return self.worlds[-1].members if self.worlds else ()

    @classmethod
    def read(cls, log_dir: Path) -> Membership:
        """Reads the log in a folder; a line that is not yet whole is left out."""
        path = log_dir / NAME
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return cls.of(json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n"))

    @classmethod
    def of(cls, events: Iterable[dict[str, object]]) -> Membership:
        """Returns the membership after some events of the log."""
        running: dict[int, Run] = {}
        ended: dict[Run, int | None] = {}
        runs: list[Run] = []
        worlds: list[SeenWorld] = []
        for event in events:
            if event["event"] == "start":
                run = _run(event)
                runs.append(run)
                running[run.worker] = run
            elif event["event"] == "end":
                run, code = _run(event), event["code"]
                assert code is None or isinstance(code, int)
                ended[run] = code
                if running.get(run.worker) == run:
                    del running[run.worker]
            elif event["event"] == "world":
                number, members, time = event["number"], event["members"], event["time"]
                assert isinstance(number, int) and isinstance(members, list) and isinstance(time, (int, float))
                worlds.append(SeenWorld(number, tuple(members), time))
        return cls(running, ended, tuple(runs), tuple(worlds))


def _run(event: dict[str, object]) -> Run:
    worker, life, pid = event["worker"], event["life"], event["pid"]
    assert isinstance(worker, int) and isinstance(life, int) and isinstance(pid, int)
    return Run(worker, life, pid)


# The launcher: a process whose output is kept.


_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_GO = 1.0  # for a launcher that was told to end,
_SECONDS_TO_KILL = 20.0  # or was killed
_LINES_SHOWN = 80


class Launcher:
    """A process that starts workers, and its output."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path):
        self._name, self._output = name, output
        with open(output, "wb") as stream:
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """Its output and that of the workers."""
        return self._output.read_text(errors="replace", encoding="utf-8")

    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self._popen.poll() is None

    def wait(self, timeout: float) -> int:
        """Returns its exit code; raises a `WorkersFailedError` if it has not ended in time."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"was not done after {timeout:g} s", True) from None

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Waits until something is so; raises a `WorkersFailedError` if it is not in time, or the job has ended."""
        deadline = time.monotonic() + timeout
        while not condition():
            if not self.is_running():
                raise self._failure(f"ended with code {self._popen.returncode}, and there was no {what}", False)
            if time.monotonic() > deadline:
                raise self._failure(f"showed no sign of {what} within {timeout:g} s", True)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def close(self) -> None:
        """Ends it, and the workers with it."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # The second one kills the workers.
            if self.is_running():
                self._popen.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(_SECONDS_TO_KILL if number == signal.SIGKILL else _SECONDS_TO_GO)

    def _failure(self, problem: str, timed_out: bool) -> WorkersFailedError:
        end = "\n".join(self.printed.splitlines()[-_LINES_SHOWN:])
        return WorkersFailedError(self._name, problem, {"launcher and workers": end}, timed_out)
