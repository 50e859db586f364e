"""Sends hostile messages to every port that a job of replicax opens, while it starts and trains; it must end right.

    python tests/soak/hostile.py [--messages 10000] [--jobs 4] [--seed 0]

Such ports are the one where the workers meet (`cluster/gathering.py`) and each worker's health server
(`health/server.py`). Data, checkpoints and barriers go through the key-value store of JAX's coordination service, and
the launcher talks to its tasks through pipes. JAX's coordination service and Gloo, and Ray's processes with the actors
in them, listen at ports of their own: those are theirs, and are not attacked here.

A crash is a worker that does not end with 0 and the right weights, or prints a traceback. Ends with `RESULT crashes N`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from replicax.testing import free_ports  # noqa: E402
from tests.soak.hostile_job import RATE, ROWS, data  # noqa: E402
from tests.soak.hostile_messages import TOKEN, Attacker  # noqa: E402

STEPS, PAUSE_S = 120, 0.1
_LISTENS = "0A"  # in /proc/net/tcp
_SHOWN = 6000  # characters of a log
_SECONDS_FOR_A_JOB = 240.0


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


def is_health_server(port: int) -> bool:
    """Returns whether who listens there refuses a question without a token, as ours do."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
        connection.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(12) == b"HTTP/1.1 403"
    return False


@contextlib.contextmanager
def worker(
    index: int, ports: Sequence[int], steps: int, attacked: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a worker, which waits in its midst for `attacked`; ends it if it still runs at the end of the block."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TF_CONFIG", "REPLICAX_"))}
    environ |= {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
        "REPLICAX_TOKEN": TOKEN,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.soak.hostile_job", str(steps), str(PAUSE_S), str(attacked)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def expected(steps: int) -> np.ndarray:
    """Returns the weights that the job ends with."""
    x, y = (part.astype(np.float64) for part in data())
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        weights -= RATE * 2 * x.T @ (x @ weights - y) / ROWS
    return weights


def run_job(seed: int, messages: int, folder: Path, steps: int = STEPS) -> tuple[int, list[str]]:
    """Runs one job under attack; returns how many messages were sent, and what went wrong."""
    ports, logs = free_ports(2), [folder / f"job-{seed}-worker-{i}.txt" for i in range(2)]
    attacked = folder / f"job-{seed}-attacked"
    attackers = [Attacker(10 * seed + i) for i in range(3)]
    deadline = time.monotonic() + _SECONDS_FOR_A_JOB
    with contextlib.ExitStack() as stack:
        for attacker in attackers:
            stack.callback(attacker.close)
        processes = [stack.enter_context(worker(0, ports, steps, attacked, logs[0]))]
        while ports[0] not in listening_ports(processes[0].pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        side_by_side(lambda i: attackers[i].attack(ports[0], messages // 4), 2)
        processes.append(stack.enter_context(worker(1, ports, steps, attacked, logs[1])))
        side_by_side(lambda i: attackers[i].attack(ports[0], messages // 12), 2)  # while the worker comes in
        health: set[int] = set()
        while len(health) < 2 and time.monotonic() < deadline and all(process.poll() is None for process in processes):
            found = set().union(*(listening_ports(process.pid) for process in processes)) - set(ports)
            health |= {port for port in found - health if is_health_server(port)}
            time.sleep(0.05)
        if len(health) == 2:
            rest = messages - sum(attacker.sent for attacker in attackers)
            side_by_side(lambda i: attackers[i].attack(sorted(health)[i], -(-rest // 2)), 2)
        attacked.touch()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, deadline - time.monotonic()))
        codes = [process.poll() for process in processes]
    wrong = [f"worker {i} ended with {code}" for i, code in enumerate(codes) if code != 0]
    if len(health) < 2:
        wrong.append(f"only {len(health)} health servers were found")
    for i, log in enumerate(logs):
        said = log.read_text(errors="replace")
        if "Traceback" in said or "monitor failed" in said:
            wrong.append(f"worker {i} printed an error")
        found = [line.split()[1:] for line in said.splitlines() if line.startswith("WEIGHTS")]
        if len(found) != 1 or not np.allclose([float(x) for x in found[0]], expected(steps), rtol=1e-5):
            wrong.append(f"worker {i} has other weights: {found}")
    if wrong:
        wrong += [f"--- {log.name}\n{log.read_text(errors='replace')[:_SHOWN]}" for log in logs]
    return sum(attacker.sent for attacker in attackers), wrong


def side_by_side(run: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    sent = crashes = 0
    with tempfile.TemporaryDirectory() as folder:
        for job in range(options.jobs):
            begun = time.monotonic()
            count, wrong = run_job(
                options.seed + job, -(-options.messages // options.jobs), Path(folder), options.steps
            )
            sent, crashes = sent + count, crashes + bool(wrong)
            print(f"job {job}: {count} messages in {time.monotonic() - begun:.0f} s", *wrong, sep="\n", flush=True)
    print(f"RESULT messages {sent}\nRESULT crashes {crashes}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
