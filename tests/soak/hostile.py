"""Strangers at every port of every kind of job, while it starts and trains; it must end right.

    python tests/soak/hostile.py [--rounds 4] [--seconds 60] [--kinds fixed,elastic,...] [--seed 0]

Each round runs each kind of job once: two workers started one by one, an elastic job with one that joins, islands,
parameter servers, standalone servers with a client, `rx.notebook.launch`, `replicax doctor`, and two jobs at once. The
ports are found by what the job's processes have open, whoever opened them: replicax, JAX's coordination service, Gloo,
Ray. Two processes of strangers attack them all from the first moment, while workers connect, and to the end; one of
them belongs to the user `nobody`, if this one may start it. They send rubbish, forged and pickled messages, calls of
Ray's without a token, connect and say nothing, and hang up half-way. A pickle of theirs that is unpickled, or a command
of theirs that is run, makes a file.

In the kinds that end in `-store` they also write to the key-value stores of JAX's coordination services, under the
keys of our exchanges, pickles and messages of the job from other places. Then the job may end, but with words of ours.

Left out is what JAX's service does for anybody, since nobody has to prove anything there: a forged shutdown, a forged
report of an error, a forged member, keys that are removed, and forged addresses of Gloo's. Gloo itself knows a member
by a small number that anybody can guess; a stranger who comes first with it takes the place of one, and the job waits
in vain. All that ends a job; see SECURITY.md.

A *crash* is a process that ends in another way than it should, late, or with other weights than it should. A *raw
error* is a traceback that strangers have caused, of an error that is none of ours. A member is *shut out* if it has the
token and does not get in. The token must be in no command line, no output, and no file that others can read.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from replicax.testing import free_ports  # noqa: E402
from tests.soak.hostile_job import expected  # noqa: E402
from tests.soak.hostile_messages import TOKEN  # noqa: E402
from tests.soak.marked import marked  # noqa: E402

STORE = "-store"
PAUSE_S = 0.05
_MARK = "REPLICAX_HOSTILE_JOB"
_JOB = "tests/soak/hostile_job.py"
_LISTENS = "0A"  # in /proc/net/tcp
_SHOWN = 3000  # characters of a log
_SECONDS_ALONE = 3.0  # that strangers have before the others come
_SECONDS_TO_START, _SECONDS_TO_END = 240.0, 150.0
_STEPS_MORE = 100
_NOBODY = "nobody"
_WORDS = "a stranger wrote it"
_RAW = re.compile(
    r"Traceback \(most recent|terminate called|Check failure|Segmentation|Fatal Python|not rethrown|core dumped"
)
_ERROR_OF_OURS = re.compile(r"^\S*(?:replicax\.errors\.\w+|ClusterTimeoutError|WorkersFailedError): ", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        members: How many say that they are in.
        results: How many say what they have.
        first: The command lines with which it begins.
        then: Those that follow when strangers have been there for a while.
    """

    members: int
    results: int
    first: Callable[[Path], list[list[str]]]
    then: Callable[[Path], list[list[str]]] = lambda folder: []


def _replicax(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "replicax", *map(str, arguments)]


def _run(*options: object) -> Callable[[Path], list[list[str]]]:
    *given, kind = options
    return lambda folder: [_replicax("run", *given, "--log-dir", folder / "logs", _JOB, kind, folder, PAUSE_S)]


def _script(kind: str, *prefix: str) -> Callable[[Path], list[list[str]]]:
    return lambda folder: [[*prefix, sys.executable, _JOB, kind, str(folder), str(PAUSE_S)]]


def _worker(index: int) -> Callable[[Path], list[list[str]]]:
    return lambda folder: _script("fixed", "env", f"TF_CONFIG={_tf_config(folder, index)}")(folder)


def _tf_config(folder: Path, index: int) -> str:
    return json.dumps({"cluster": _cluster(folder), "task": {"type": "worker", "index": index}})


def _cluster(folder: Path) -> dict[str, list[str]]:
    """Returns a cluster of two; the same at each call."""
    path = folder / "servers.json"
    if not path.exists():
        path.write_text(json.dumps({"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}))
    found: dict[str, list[str]] = json.loads(path.read_text())
    return found


def _servers(folder: Path) -> list[list[str]]:
    cluster = json.dumps(_cluster(folder))
    return [
        _replicax("server", "--no-dashboard", "--cluster", cluster, "--job", "worker", "--index", i) for i in (0, 1)
    ]


def _elastic_there(folder: Path) -> list[list[str]]:
    return _run("--elastic", "1:2", "--hosts", ",".join(_cluster(folder)["worker"]), "elastic")(folder)


_TWO = ("--workers", 2)
KINDS = {
    "fixed": Kind(2, 2, _worker(0), _worker(1)),
    "elastic": Kind(3, 3, _run("--elastic", "1:3", "elastic")),
    "elastic_servers": Kind(2, 2, _servers, _elastic_there),
    "islands": Kind(2, 2, _run(*_TWO, "--islands", "islands")),
    "ps": Kind(1, 1, _run(*_TWO, "--ps", 1, "ps")),
    "servers": Kind(2, 2, _servers, _script("servers")),
    "notebook": Kind(2, 2, _script("notebook")),
    "doctor": Kind(0, 0, lambda folder: [_replicax("doctor")]),
}
STORES = tuple(f"{kind}{STORE}" for kind in ("fixed", "elastic", "islands"))
TWO_AT_ONCE = "fixed+elastic"
ALL = (*KINDS, *STORES, TWO_AT_ONCE)


class Job:
    """A job with all of its processes.

    Args:
        kind: One of `KINDS`; with `STORE` behind it, strangers write to its stores, too.
        folder: Where its files are.
    """

    def __init__(self, kind: str, folder: Path):
        self.kind, self.folder, self.writes = kind, folder, kind.endswith(STORE)
        self.plan = KINDS[kind.removesuffix(STORE)]
        folder.mkdir()
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.secrets: set[str] = {TOKEN}
        self.shown: set[str] = set()  # command lines that show one of them
        self.ports: set[int] = set()  # all that were ever open

    def start(self, commands: Sequence[Sequence[str]]) -> None:
        """Starts processes."""
        clean = ("TF_CONFIG", "REPLICAX_", "RAY_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(clean)}
        environment |= {
            _MARK: str(self.folder),
            "REPLICAX_TOKEN": TOKEN,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        for command in commands:
            log = self.folder / f"output-{len(self.started)}.txt"
            with log.open("wb") as file:
                self.started.append(
                    (subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT), log)
                )

    def look(self) -> list[int]:
        """Returns the ports where its processes listen now, and notes what they show."""
        found: set[int] = set()
        for pid in processes_of(self.folder):
            found |= listening_ports(pid)
            self.secrets |= tokens_of(pid)
            line = _read(f"/proc/{pid}/cmdline")
            self.shown |= {line for secret in self.secrets if secret in line}
        self.ports |= found
        return sorted(found)

    def said(self) -> str:
        """Returns all that its processes have printed."""
        return "\n".join(log.read_text(errors="replace") for _, log in self.started)

    def count(self, word: str) -> int:
        """Returns how many of its processes have said a word."""
        return len(re.findall(rf"^(?:\[[^\]]*\] )?{word}\b", self.said(), re.MULTILINE))

    def is_open(self) -> bool:
        """Returns whether others may come."""
        return self.count("worker:. .*serves") == 2 if self.plan.first is _servers else bool(self.ports)

    def finish(self) -> None:
        """Names the last step: one that nobody has come to."""
        steps = [int(step) for step in re.findall(r"\bSTEP (\d+)", self.said())]
        (self.folder / "new").write_text(str(max(steps, default=0) // 10 * 10 + _STEPS_MORE))
        (self.folder / "new").rename(self.folder / "target")

    def main(self) -> list[subprocess.Popen[bytes]]:
        """Returns the processes that end by themselves: servers do not."""
        processes = [process for process, _ in self.started]
        return processes[2:] if self.plan.first is _servers else processes

    def is_over(self) -> bool:
        """Returns whether one of its processes has ended that ends by itself."""
        return any(process.poll() is not None for process in self.main())

    def end(self) -> list[int | None]:
        """Waits for the end, ends what does not, and returns the exit codes."""
        deadline = time.monotonic() + _SECONDS_TO_END
        for process in self.main():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        codes = [process.poll() for process in self.main()]
        if None in codes:
            for pid in processes_of(self.folder):
                if f"{_JOB}\0" in _read(f"/proc/{pid}/cmdline") and "\0replicax\0" not in _read(f"/proc/{pid}/cmdline"):
                    os.kill(pid, signal.SIGUSR1)  # It says where it is.
            time.sleep(1.0)
        for process, _ in self.started:
            if process.poll() is None:
                process.terminate()
        for process, _ in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process, _ in self.started:
            process.wait()
        return codes

    def problems(self, codes: Sequence[int | None]) -> Counter[str]:
        """Returns what went wrong, counted."""
        said, found = self.said(), Counter[str]()
        ended_by_words = self.writes and _WORDS in said
        raw = [*_RAW.finditer(said)]
        if raw and not (ended_by_words and _ERROR_OF_OURS.search(said)):
            found["raw_errors"] += len(raw)
        if self.writes and any(code is None or code < 0 or code > 128 for code in codes):
            found["crashes"] += 1
        elif ended_by_words:
            return found
        elif any(codes) or None in codes or not self._is_right(said):
            found["crashes"] += 1
        found["members_shut_out"] += max(0, self.plan.members - self.count("IN"))
        return found

    def token_shown(self) -> list[str]:
        """Returns where a secret of the job is to be seen."""
        found = sorted(self.shown)
        for path in self.folder.rglob("*"):
            others_read = path.is_file() and path.stat().st_mode & 0o077
            if others_read and any(secret in _read(str(path)) for secret in self.secrets):
                found.append(str(path))
        return found

    def _is_right(self, said: str) -> bool:
        results = [each.split() for each in re.findall(r"\bWEIGHTS (.*)", said)]
        counted = [each.split() for each in re.findall(r"\bCOUNTED (.*)", said)]
        if len(results) + len(counted) != self.plan.results:
            return False
        right = (np.allclose([*map(float, w)], expected(int(n)), rtol=1e-4) for n, *w in results)
        return all(right) and all(done == count for done, count in counted)


class Strangers:
    """Two processes of strangers.

    Args:
        seed: Of what they do.
        marks: Where their pickles make files.
    """

    def __init__(self, seed: int, marks: Path):
        users = [""] if os.getuid() else ["", _NOBODY]
        self._orders: dict[str, object] = {}
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.soak.hostile_strangers",
                    str(seed + 100 * i),
                    str(marks),
                    *filter(None, [user]),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for i, user in enumerate(users)
        ]

    def attack(self, ports: Sequence[int], writes: bool) -> None:
        """Tells them what to attack."""
        orders = {"ports": list(ports), "writes": writes}
        if orders != self._orders:
            self._orders = orders
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(json.dumps(orders).encode() + b"\n")
                process.stdin.flush()

    def close(self) -> Counter[str]:
        """Ends them; returns what they have done."""
        found = Counter[str]()
        for process in self._processes:
            said = json.loads(process.communicate(timeout=120)[0])  # Nothing, if it has failed.
            found["strangers_of_another_user"] += said.pop("uid") != os.getuid()
            found += Counter(said)
        return found


@contextlib.contextmanager
def attacked(jobs: Sequence[Job], strangers: Strangers) -> Iterator[None]:
    """Lets strangers attack the ports of jobs, as they open and close, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            ports = sorted({port for job in jobs for port in job.look()})
            strangers.attack(ports, any(job.writes for job in jobs))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def listening_ports(process: int) -> set[int]:
    """Returns the ports where a process listens."""
    inodes = set()
    with contextlib.suppress(OSError):  # It has ended.
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(file))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def processes_of(folder: Path) -> list[int]:
    """Returns the processes that come of a job."""
    return list(marked(f"{_MARK}={folder}"))


def tokens_of(pid: int) -> set[str]:
    """Returns the secrets in the environment of a process."""
    found = re.findall(r"\b(?:REPLICAX_TOKEN|RAY_AUTH_TOKEN)=([^\0]+)", _read(f"/proc/{pid}/environ"))
    return set(found)


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes().decode(errors="replace")
    return ""


def _soon(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def run(name: str, seed: int, seconds: float, folder: Path) -> tuple[Counter[str], str]:
    """Runs one job, or some at once, under attack; returns counts, and what to show."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    jobs = [Job(kind, folder / f"{i}-{kind}") for i, kind in enumerate(name.split("+"))]
    strangers = Strangers(1000 * seed, marks)
    with attacked(jobs, strangers):
        for job in jobs:
            job.start(job.plan.first(job.folder))
        _soon(lambda: all(job.is_open() or job.is_over() for job in jobs), _SECONDS_TO_START)
        time.sleep(_SECONDS_ALONE)
        for job in jobs:
            job.start(job.plan.then(job.folder))
        _soon(lambda: all(job.count("IN") >= job.plan.members or job.is_over() for job in jobs), _SECONDS_TO_START)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(job.is_over() for job in jobs):
            time.sleep(0.2)
        for job in jobs:
            job.finish()
        codes = [job.end() for job in jobs]
    found, shown = strangers.close(), []
    found["ports"] += sum(len(job.ports) for job in jobs)
    found["stranger_code_run"] += len(list(marks.iterdir()))
    for job, each in zip(jobs, codes, strict=True):
        problems, told = job.problems(each), job.token_shown()
        found += problems
        found["token_shown"] += len(told)
        found["ended_by_words"] += job.writes and _WORDS in job.said()
        if any(problems.values()) or told:
            shown += [f"--- {job.kind}: {dict(problems)}, exit codes {each}, token in {told}", job.said()[-_SHOWN:]]
    return found, "\n".join(shown)


RESULTS = ("raw_errors", "crashes", "stranger_code_run", "members_shut_out", "token_shown")
_COUNTS = ("strangers_of_another_user", "ports", "messages", "silent", "calls", "writes", "ended_by_words")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="of attack on each job when all have come")
    parser.add_argument("--kinds", default=",".join(ALL))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    total = Counter[str]()
    for number in range(options.rounds):
        for i, name in enumerate(options.kinds.split(",")):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="replicax-hostile-") as folder:
                os.chmod(folder, 0o755)
                found, shown = run(name, options.seed + 100 * number + i, options.seconds, Path(folder) / "job")
            total += found
            counts = ", ".join(f"{each} {found[each]}" for each in (*_COUNTS, *RESULTS) if found[each])
            print(f"round {number} {name}: {time.monotonic() - begun:.0f} s, {counts}", shown, sep="\n", flush=True)
    for each in (*_COUNTS, *RESULTS):
        print(f"RESULT {each} {total[each]}")
    return 1 if any(total[each] for each in RESULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
