"""Lets right processes end, in jobs of two and three workers of every kind, on a busy machine: none may end wrongly.

    python tests/soak/normal_ends.py [--processes 1000] [--seed 0] [--quick] [--kinds notebook,elastic]

They are workers under `replicax run` (of fixed size, preemptible, elastic, islands), of a notebook, of tests, and of a
client of standalone servers, and coordinators of parameter servers (`normal_ends_job.py`). They end by their last line,
by `sys.exit(0)` or by an exception, while threads prepare batches and ask other processes. No thread of ours may be
left to Python that may be in compiled code. Several jobs at a time keep
the machine busy; loops fill up where they do not. An abort is another exit code of the job than the ending has, or the
words of one in its output. The time of an end is that from the last line of a script to the end of its process.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.soak.normal_ends_job import CALLS, OF_CALLS  # noqa: E402

JOB = Path(__file__).with_name("normal_ends_job.py")
LONGEST_S = 300.0  # for a job; longer is a hang
LONGEST_END_S = 3.0
AT_ONCE, LOAD = 3, 8
LOOK_S = 0.05
ABORTED = re.compile(r"terminate called|exception not rethrown|Fatal Python error|SIGABRT|SIGSEGV|exit code 13[49]")
#: Threads that call nothing compiled but Python's own sockets and locks.
PLAIN = re.compile(r"replicax-(health-(asking|monitor|server)|meeting-lookout)|Thread-\d+ \(process_request_thread\)")
ENDINGS = ("last", "exit", "exception")
CODES = {"last": 0, "exit": 0, "exception": 1}
OPTIONS: dict[str, list[str]] = {
    "fixed": [],
    "preemptible": [],
    "elastic": ["--elastic", "1:3"],
    "islands": ["--islands"],
    "servers": ["--ps", "1"],
}
#: How many of 20 jobs are of a kind. Those that need Ray take the most time for a process.
OFTEN = {
    **{"notebook": 6, "fixed": 3, "elastic": 3, "islands": 2, "preemptible": 2, "notebook_fit": 1},
    **{"client": 1, "testing": 1, "servers": 1},
}


class Case(NamedTuple):
    """A job and how its processes end.

    Attributes:
        kind: Of job.
        ending: Of its scripts, or of the calls in its workers.
        workers: How many there are.
    """

    kind: str
    ending: str
    workers: int

    @property
    def processes(self) -> int:
        """How many processes come to their last line."""
        if self.kind == "servers":
            return 1
        if self.kind == "client":
            return CALLS * self.workers + 1
        return self.workers + (self.kind in OF_CALLS)

    def __str__(self) -> str:
        return f"{self.kind}, {self.ending}, {self.workers} workers"


class Found(NamedTuple):
    """What came of a job.

    Attributes:
        ends: The seconds that each process has taken from its last line to its end.
        wrong: What was wrong; empty if nothing was.
    """

    ends: list[float]
    wrong: str


def cases(processes: int, seed: int, kinds: Sequence[str]) -> list[Case]:
    """Returns jobs with so many processes in all, each kind with each number of workers and each ending."""
    chance = random.Random(seed)
    found: list[Case] = []
    forms = {kind: itertools.cycle(_forms(kind, chance)) for kind in kinds}
    while True:
        round_ = [kind for kind in kinds for _ in range(OFTEN[kind])]
        chance.shuffle(round_)
        for kind in round_:
            if sum(each.processes for each in found) >= processes:
                return found
            found.append(next(forms[kind]))


def _forms(kind: str, chance: random.Random) -> list[Case]:
    # A function that a client has sent must not end its process.
    endings = [each for each in ENDINGS if each != "exit" or kind not in OF_CALLS]
    forms = [Case(kind, ending, workers) for ending in endings for workers in (2, 3)]
    chance.shuffle(forms)
    return forms


class Servers:
    """Standalone servers, which serve one client after another.

    Args:
        folder: Where their output goes.
        workers: How many there are.
    """

    def __init__(self, folder: Path, workers: int):
        from replicax.testing import free_ports

        self.lock = threading.Lock()
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
        self.environment = {"SERVERS": json.dumps(cluster), "REPLICAX_TOKEN": os.urandom(16).hex()}
        command = [sys.executable, "-m", "replicax", "server", "--no-dashboard", "--job", "worker"]
        command += ["--cluster", json.dumps(cluster), "--index"]
        environment = {**_environment(), **self.environment}
        with (folder / f"servers-{workers}.txt").open("w") as out:
            self._processes = [
                subprocess.Popen([*command, str(index)], env=environment, stdout=out, stderr=out)
                for index in range(workers)
            ]

    def close(self) -> None:
        """Ends them."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


class ServersOfAll:
    """Starts servers when a job needs them, once for each number of workers.

    Args:
        folder: Where their output goes.
    """

    def __init__(self, folder: Path):
        self._folder, self._lock = folder, threading.Lock()
        self._started: dict[int, Servers] = {}

    def of(self, workers: int) -> Servers:
        """Returns those for a number of workers."""
        with self._lock:
            if workers not in self._started:
                self._started[workers] = Servers(self._folder, workers)
            return self._started[workers]

    def close(self) -> None:
        """Ends all."""
        for each in self._started.values():
            each.close()


def _environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **{"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)},
    }


class Ends:
    """Notices the ends of processes that have written `begin-PID` into a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path):
        self._folder, self._known, self._poll = folder, set[int](), select.poll()
        self._running: dict[int, int] = {}
        self.at: dict[int, float] = {}

    def look(self, wait_s: float) -> None:
        """Looks for processes that have begun, and for ends."""
        for path in self._folder.glob("begin-*[0-9]"):
            pid = int(path.name.partition("-")[2])
            if pid not in self._known:
                self._known.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    number = os.pidfd_open(pid)
                    self._running[number] = pid
                    self._poll.register(number, select.POLLIN)
        for number, _ in self._poll.poll(1000 * wait_s):
            self.at[self._running.pop(number)] = time.time()
            self._poll.unregister(number)
            os.close(number)

    def close(self, longest_s: float) -> None:
        """Waits for those that have not ended yet."""
        deadline = time.monotonic() + longest_s
        while self._running and time.monotonic() < deadline:
            self.look(LOOK_S)
        for number in self._running:
            os.close(number)


def run(case: Case, folder: Path, servers: ServersOfAll) -> Found:
    """Runs a job, and looks at how its processes ended."""
    script = [str(JOB), case.kind, case.ending, str(folder), str(case.workers)]
    command = [sys.executable, *script]
    environment = _environment()
    with contextlib.ExitStack() as held:
        if case.kind in OPTIONS:
            launcher = [sys.executable, "-m", "replicax", "run", "--workers", str(case.workers), *OPTIONS[case.kind]]
            command = [*launcher, "--log-dir", str(folder / "logs"), *script]
        elif case.kind == "client":
            servers_of_case = servers.of(case.workers)
            held.enter_context(servers_of_case.lock)
            environment |= servers_of_case.environment
        output, ends = folder / "output.txt", Ends(folder)
        with output.open("w") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        deadline = time.monotonic() + LONGEST_S
        try:
            while process.poll() is None and time.monotonic() < deadline:
                ends.look(LOOK_S)
            code = process.poll()
            ends.close(LONGEST_END_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = "\n".join([output.read_text(), *(each.read_text() for each in sorted(folder.glob("logs/*.log")))])
    took, wrong = _examined(case, code, said, folder, ends.at)
    return Found(took, wrong or _threads_left(folder))


def _examined(
    case: Case, code: int | None, said: str, folder: Path, ended: dict[int, float]
) -> tuple[list[float], str]:
    """Returns how long the ends have taken, and what was wrong."""
    last = {int(path.name.partition("-")[2]): float(path.read_text()) for path in folder.glob("last-*[0-9]")}
    took = [ended[pid] - at for pid, at in last.items() if pid in ended]
    expected = 0 if case.kind in OF_CALLS else CODES[case.ending]
    aborted = ABORTED.search(said)
    if code is None:
        return took, f"it hung:\n{said[-3000:]}"
    if aborted:
        return took, f"it aborted ({aborted.group()}):\n{said[-6000:]}"
    if code != expected:
        return took, f"code {code}, and not {expected}:\n{said[-3000:]}"
    if len(took) != case.processes:
        return took, f"{len(took)} of {case.processes} processes have come to their end:\n{said[-3000:]}"
    return took, ""


def _threads_left(folder: Path) -> str:
    """Returns which threads of ours Python has had to end that may have been in compiled code."""
    found = {}
    for path in folder.glob("threads-*[0-9]"):
        for name, stack in json.loads(path.read_text()).items():
            ours = name.startswith("replicax") or any("/replicax/" in each for each in stack)
            if ours and not PLAIN.fullmatch(name):
                found[name] = stack[-1].strip()
    return f"threads were left: {found}" if found else ""


@contextlib.contextmanager
def load(wanted: int) -> Iterator[None]:
    """Adds busy loops where the jobs leave the machine less busy than is wanted."""
    over, loops = threading.Event(), list[subprocess.Popen[bytes]]()

    def fill() -> None:
        while not over.wait(1.0):
            runnable = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
            if runnable < wanted and len(loops) < wanted:
                loops.append(subprocess.Popen([sys.executable, "-SEc", "while True: pass"]))
            elif runnable > wanted and loops:
                _ended(loops.pop())

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for each in loops:
            _ended(each)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def soak(todo: Sequence[Case], at_once: int = AT_ONCE) -> dict[int, Found]:
    """Returns what came of each job."""
    with tempfile.TemporaryDirectory() as name, contextlib.closing(ServersOfAll(Path(name))) as servers:

        def one(number: int) -> Found:
            folder = Path(name) / str(number)
            folder.mkdir()
            begun = time.monotonic()
            try:
                found = run(todo[number], folder, servers)
            except Exception as error:
                found = Found([], repr(error))
            longest = max(found.ends, default=0.0)
            took = f"{time.monotonic() - begun:.0f} s, longest end {longest:.1f} s"
            print(f"{number + 1}: {todo[number]} ({took}): {found.wrong or 'well'}", flush=True)
            return found

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return dict(enumerate(pool.map(one, range(len(todo)))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a job of each kind that needs no Ray")
    parser.add_argument("--kinds", default=",".join(OFTEN), help="only these")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="jobs at a time")
    parser.add_argument("--load", type=int, default=LOAD, help="how many threads are to be runnable")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    todo = cases(arguments.processes, arguments.seed, kinds)
    if arguments.quick:
        quick = [kind for kind in kinds if kind not in ("client", "servers")]
        todo = [Case(kind, ENDINGS[0], 2) for kind in quick]
    begun = time.monotonic()
    with load(arguments.load):
        found = soak(todo, arguments.at_once)
    ends = [seconds for each in found.values() for seconds in each.ends]
    aborts = sum("it aborted" in each.wrong for each in found.values())
    wrong = sum(bool(each.wrong) for each in found.values())
    longest = max(ends, default=0.0)
    print(f"RESULT normal_ends {len(ends)}")
    print(f"RESULT aborts {aborts}")
    print(f"RESULT other_failures {wrong - aborts}")
    print(f"RESULT longest_end_s {longest:.1f}")
    print(f"RESULT seconds {time.monotonic() - begun:.0f}")
    return bool(wrong or longest > LONGEST_END_S)


if __name__ == "__main__":
    sys.exit(main())
