"""The options of the launcher, checked: each mistake is a `LaunchError` before anything starts."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicax.checks import is_int
from replicax.compat.systems import memory_of_machine
from replicax.errors import LaunchError
from replicax.group.membership.launcher_news import ElasticRange, parse_range

_GRACE_OF_SURVIVORS = 5.0  # `--grace` replaces both: of those that are left when one has failed,
_GRACE_OF_ALL = 30.0  # and of all when the job is told to end. They may have to save.
_MOST_SINGLE_RESTARTS = 1000
_LEAST_BYTES = 100 * 2**20  # that a process takes which has imported JAX


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a job, checked."""

    script: str  # the Python file that each task runs, or the name of a module
    arguments: tuple[str, ...] = ()  # the script's `sys.argv[1:]`
    module: bool = False  # whether `script` names a module, as with `python -m`
    workers: int = 1  # to start; with parameter servers `min_workers` is the number
    min_workers: int | None = None  # with how few the job goes on when workers die for good; None: with no fewer
    devices_per_worker: int = 1  # virtual CPU devices
    # Parameter servers. With any, one process runs the script, the coordinator; it starts the servers and the workers.
    ps: int = 0
    evaluator: bool = False
    # A worker that is lost is started again alone, while the others go on (`rx.LocalSGDStrategy`, `rx.DiLoCoStrategy`).
    islands: bool = False
    # With how few workers the job goes on when some are lost, and how many it may have; see
    # `rx.MultiWorkerMirroredStrategy(elastic=...)`. A worker that is lost is started again alone.
    elastic: ElasticRange | None = None
    # Where the workers of an elastic job reach this machine, if they have networks of their own; None: by loopback.
    address: str | None = None
    # How often all tasks start again after a failure; with `islands` or `elastic`, how often any of them does. None:
    # never, but the lost workers of an elastic job always start again.
    restarts: int | None = None
    # Seconds that tasks have to end, from the first signal to SIGKILL; None: the defaults above.
    grace: float | None = None
    log_dir: Path | None = None  # for one log per task; None makes a new folder in `runs/`

    def __post_init__(self) -> None:
        if self.min_workers is None:
            object.__setattr__(self, "min_workers", self.workers)
        _check_number("--workers", self.workers, 1)
        _check_number("The smaller number of --workers", self.fewest_workers, 1)
        if self.fewest_workers > self.workers:
            raise LaunchError(
                f"--workers {self.fewest_workers}:{self.workers} is not a range: write the smaller number first."
            )
        _check_number("--devices-per-worker", self.devices_per_worker, 1)
        _check_number("--ps", self.ps, 0)
        _check_number("--restarts", self.job_restarts, 0)
        if self.ps and self.evaluator:
            raise LaunchError(
                "--ps and --evaluator exclude each other: with parameter servers the coordinator evaluates. Leave "
                "--evaluator out, or run the evaluator's script by itself."
            )
        if self.ps and self.islands:
            raise LaunchError("--ps and --islands exclude each other: the workers of parameter servers are no islands.")
        self._check_elastic()
        if self.ps:  # Its workers come and go without a restart of the job.
            object.__setattr__(self, "workers", self.min_workers)
        if self.grace is not None and not (math.isfinite(self.grace) and self.grace >= 0):
            raise LaunchError(f"--grace must be a number of seconds of at least 0, got {self.grace!r}.")

    def _check_elastic(self) -> None:
        if self.elastic is None:
            if self.address is not None:
                raise LaunchError("--address is for elastic jobs: it needs --elastic MIN:MAX.")
            return
        if self.ps or self.islands:
            other, why = ("--ps", "they come and go anyway") if self.ps else ("--islands", "islands train alone")
            raise LaunchError(f"--elastic and {other} exclude each other: --elastic is for workers in step, {why}.")
        least, most = self.elastic
        if self.fewest_workers != self.workers or not least <= self.workers <= most:
            told = f"{self.workers}" if self.fewest_workers == self.workers else f"{self.fewest_workers}:{self.workers}"
            raise LaunchError(
                f"With --elastic {self.elastic} --workers is the number to start with, from {least} to "
                f"{most}, got {told}."
            )

    @property
    def goes_on(self) -> bool:
        """Whether the others go on when a worker is lost."""
        return self.islands or self.elastic is not None

    @property
    def job_restarts(self) -> int:
        """How often all tasks are started again."""
        return self.restarts or 0

    @property
    def single_restarts(self) -> int:
        """How often a task is started again alone, of those whose loss the others can bear."""
        if self.restarts is None and self.elastic is not None:
            return _MOST_SINGLE_RESTARTS
        return self.job_restarts

    @property
    def fewest_left(self) -> int:
        """With how few workers the others go on although a lost one does not start again."""
        return self.elastic.fewest if self.elastic is not None else self.fewest_workers

    @property
    def grace_of_survivors(self) -> float:
        """How many seconds the survivors of a failure have to end."""
        return _GRACE_OF_SURVIVORS if self.grace is None else self.grace

    @property
    def grace_of_all(self) -> float:
        """How many seconds all tasks have to end when the launcher gets a signal."""
        return _GRACE_OF_ALL if self.grace is None else self.grace

    @property
    def fewest_workers(self) -> int:
        """`min_workers`, by default the number of workers."""
        return self.workers if self.min_workers is None else self.min_workers


def _check_number(name: str, number: int, least: int) -> None:
    if not is_int(number) or number < least:
        raise LaunchError(f"{name} must be a whole number of at least {least}, got {number!r}.")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Returns the addresses in `"host1,host2:2223"`."""
    hosts = tuple(host.strip() for host in text.split(","))
    if not all(hosts) or len(set(hosts)) < len(hosts):
        raise LaunchError(f"--hosts must be different addresses such as host1,host2:2223, got {text!r}.")
    return hosts


def parse_variables(given: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of `NAME=VALUE`, or of `NAME` with the value that it has here."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not (equals or name in environment):
            raise LaunchError(f"--env must be NAME=VALUE, or the NAME of a variable that is set here, got {text!r}.")
        found[name] = value if equals else environment[name]
    return found


def parse_workers(text: str) -> tuple[int, int]:
    """Returns the smallest and the largest number of workers in `"4"` or `"2:4"`.

    >>> parse_workers("4"), parse_workers("2:4")
    ((4, 4), (2, 4))
    """
    numbers = text.split(":")
    if len(numbers) > 2 or not all(number.strip().isdecimal() for number in numbers):
        raise LaunchError(f"--workers must be a number such as 4, or a range such as 2:4, got {text!r}.")
    return int(numbers[0]), int(numbers[-1])


def parse_elastic(text: str) -> ElasticRange:
    """Returns the range in `"2:8"`."""
    try:
        return parse_range(text)
    except ValueError as error:
        raise LaunchError(f"--elastic {error}.") from None


def check_script(options: Options) -> None:
    """Raises a `LaunchError` if the script or module does not exist, so that not each worker has to."""
    if not options.script:
        raise LaunchError("No script is named. Write: replicax run --workers 4 train.py, followed by its arguments.")
    if options.module:
        _check_module(options.script)
    elif not Path(options.script).is_file():
        raise LaunchError(f"There is no file {options.script!r} in {Path.cwd()}.{_hint(options.script)}")


def check_memory(options: Options) -> None:
    """Raises a `LaunchError` if this machine has too little memory for so many processes, before it starts any."""
    count = options.workers + options.ps
    memory = memory_of_machine()
    if count * _LEAST_BYTES > memory:
        raise LaunchError(
            f"{count:,} processes take {count * _LEAST_BYTES / 2**30:,.0f} GiB at the least, and this machine has "
            f"{memory / 2**30:,.0f}. Start fewer workers, with several devices each (--devices-per-worker), or more "
            "machines (--hosts, --on)."
        )


def _hint(script: str) -> str:
    if Path(script).name.startswith("python"):
        return " Name the script itself: the launcher starts each worker with the Python that runs the launcher."
    if Path(script).is_dir():
        return " It is a folder; to run a package, write -m before its name."
    if _is_module(script):
        return " It is a module: write -m before its name."
    return ""


def _check_module(name: str) -> None:
    if not _is_module(name):
        raise LaunchError(
            f"There is no module {name!r} in {Path.cwd()} or among the installed packages. Leave out -m to run a file."
        )


def _is_module(name: str) -> bool:
    """Returns whether a module exists, without importing anything, not even its packages."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    for depth in range(name.count(".") + 1):
        full_name = ".".join(name.split(".")[: depth + 1])
        found = importlib.machinery.PathFinder.find_spec(full_name, path) if path is not None else None
        if found is None:
            return False
        path = found.submodule_search_locations
    return True


def make_log_dir(options: Options) -> Path:
    """Makes the folder for the logs and returns it."""
    name = options.script if options.module else Path(options.script).stem
    folder = options.log_dir or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder for the logs cannot be made: {error}. Choose another --log-dir.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"Nothing can be written to the folder for the logs, {folder}. Choose another --log-dir.")
    return folder
