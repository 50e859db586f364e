"""Strikes a job of three islands at random, and checks that the others lose no round.

    python tests/soak/islands.py --kills 20 [--seed 0]

The islands are started by `replicax run --islands`. They are killed (also two at once, also in the midst of an
exchange, also while another one starts again, also island 0) or stopped for longer than the stall time-out. After each
strike all three must meet again in time. In the end the journals are read: each life has made every round from its
first one to its last, a newcomer has waited for at most one exchange, and the values are those of NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from islands_job import SHAPES, part, weight  # It needs the path.
from marked import marked

ISLANDS = 3
ROUND_S = 0.05
STALL_S = 3.0
_MARK = "REPLICAX_ISLANDS_SOAK"
_SECONDS_TO_MEET = 120.0
_ROUNDS_MORE = 15
_KINDS = ("kill", "kill", "exchange", "exchange", "two", "two", "rejoining", "stop")


class Soak:
    """A job under strikes.

    Args:
        folder: Where the islands write.
        random_numbers: Decides what is struck.
    """

    def __init__(self, folder: Path, random_numbers: random.Random):
        self.folder, self.random = folder, random_numbers
        self.hangs = self.kills = 0
        job = Path(__file__).with_name("islands_job.py")
        command = [sys.executable, "-m", "replicax", "run", "--workers", str(ISLANDS), "--islands", "--restarts", "999"]
        command += ["--log-dir", str(folder / "logs"), str(job), str(folder), str(ROUND_S), str(STALL_S)]
        environment = {**os.environ, _MARK: str(os.getpid()), "JAX_PLATFORMS": "cpu"}
        self.launcher = subprocess.Popen(command, env=environment)

    def lines(self, island: int) -> list[dict[str, Any]]:
        """Returns the journal of an island; the last line may be unfinished."""
        path = self.folder / f"journal-{island}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]

    def pid(self, island: int) -> int:
        return int((self.folder / f"pid-{island}").read_text())

    def all_meet(self, after: float) -> bool:
        """Waits until all islands have met in an exchange later than `after`; returns whether they have in time."""
        deadline = time.monotonic() + _SECONDS_TO_MEET
        while time.monotonic() < deadline and self.launcher.poll() is None:
            last = [(self.lines(island) or [None])[-1] for island in range(ISLANDS)]
            if all(line and line["time"] > after and len(line["all"]) == ISLANDS for line in last):
                return True
            time.sleep(0.1)
        self.hangs += 1
        return False

    def kill(self, island: int) -> None:
        os.kill(self.pid(island), signal.SIGKILL)
        self.kills += 1

    def strike(self, kind: str) -> None:
        """Strikes one island or two."""
        time.sleep(self.random.uniform(0.0, 0.5))
        first, second, _ = self.random.sample(range(ISLANDS), ISLANDS)
        print(f"strike {self.kills + 1}: {kind} {first}" + (f" {second}" if kind in ("two", "rejoining") else ""))
        if kind == "kill":
            self.kill(first)
        elif kind == "exchange":
            (self.folder / f"die-{first}").touch()
            self._wait_for_end(self.pid(first))
            self.kills += 1
        elif kind == "two":
            self.kill(first)
            self.kill(second)
        elif kind == "rejoining":
            pid = self.pid(first)
            self.kill(first)
            # The process of the second is killed somewhere between the start of the first and its first exchange.
            time.sleep(self.random.uniform(0.0, 3.0))
            del pid
            self.kill(second)
        else:
            os.kill(self.pid(first), signal.SIGSTOP)  # The launcher kills it when the others have left it out.
            self.kills += 1
            self._wait_for_end(self.pid(first))

    def _wait_for_end(self, pid: int) -> None:
        deadline = time.monotonic() + _SECONDS_TO_MEET
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self) -> None:
        """Lets the islands make some more rounds, and waits for the end of the job."""
        rounds = max((line["round"] for island in range(ISLANDS) for line in self.lines(island)), default=0)
        unfinished = self.folder / "target.new"
        unfinished.write_text(str(rounds + _ROUNDS_MORE))
        unfinished.rename(self.folder / "target")
        try:
            self.launcher.wait(_SECONDS_TO_MEET)
        except subprocess.TimeoutExpired:
            self.hangs += 1
            self.launcher.terminate()
            self.launcher.wait()


def lost_rounds(journals: list[list[dict[str, Any]]]) -> int:
    """Counts the rounds that a life has missed, and the exchanges that newcomers have waited for in vain."""
    lost = 0
    for island, lines in enumerate(journals):
        for before, line in zip([None, *lines], lines, strict=False):
            if before is not None and before["pid"] == line["pid"]:
                lost += line["round"] != before["round"] + 1 or line["was"] != before["round"]
            elif line["round"]:
                others = [other for i, each in enumerate(journals) if i != island for other in each]
                passed = {each["round"] for each in others if line["came"] < each["time"] < line["time"]}
                # One exchange may have begun before it came; the next is its own, whose line others write first.
                lost += max(0, len(passed - {line["round"]}) - 1)
    return lost


def replayed(journals: list[list[dict[str, Any]]]) -> list[np.ndarray]:
    """Returns the values that NumPy computes from who took part in which exchange."""
    took_part: dict[int, list[int]] = {}
    for line in (line for lines in journals for line in lines):
        if took_part.setdefault(line["round"], line["old"]) != line["old"]:
            raise AssertionError(f"Islands differ about round {line['round']}: {took_part[line['round']]}, {line}")
    state = [np.zeros(shape) for shape in SHAPES]
    for number in range(1, max(took_part) + 1):
        old = took_part[number]
        shares = np.array([weight(index, number) for index in old], float)
        parts = [part(index, number) for index in old]
        means = [sum(s * p[i] for s, p in zip(shares, parts, strict=True)) / shares.sum() for i in range(len(SHAPES))]
        state = [value + mean for value, mean in zip(state, means, strict=True)]
    return state


def main(kills: int, seed: int) -> bool:
    """Runs the soak; returns whether all is well."""
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), random.Random(seed))
        recovery = []
        met = soak.all_meet(0.0)
        while met and soak.kills < kills:
            soak.strike(soak.random.choice(_KINDS))
            struck = time.time()
            met = soak.all_meet(struck)
            recovery.append(time.time() - struck)
            print(f"  all meet again after {recovery[-1]:.1f} s", flush=True)
        soak.end()
        time.sleep(1.0)
        left = marked(f"{_MARK}={os.getpid()}")
        journals = [soak.lines(island) for island in range(ISLANDS)]
        lost = lost_rounds(journals)
        results = [list(np.load(path).values()) for path in sorted(Path(name).glob("result-*.npz"))]
        expected = replayed(journals)
        equal = len(results) == ISLANDS and all(
            np.array_equal(value, first) for each in results for value, first in zip(each, results[0], strict=True)
        )
        scale = max(float(np.abs(value).max()) for value in expected)
        error = max(float(np.abs(a - b).max()) / scale for each in results for a, b in zip(each, expected, strict=True))
        code = soak.launcher.returncode
    print(f"RESULT islands_kills {soak.kills}\nRESULT islands_rounds {max(each[-1]['round'] for each in journals)}")
    print(f"RESULT islands_recovery_s_max {max(recovery, default=0.0):.1f}\nRESULT islands_error {error:.1e}")
    print(f"RESULT islands_values_equal {int(equal)}\nRESULT exit_code {code}\nRESULT islands_lost_rounds {lost}")
    print(f"RESULT hangs {soak.hangs}\nRESULT processes_left {len(left)}")
    return not lost and not soak.hangs and not left and not code and equal and error < 1e-5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(0 if main(arguments.kills, arguments.seed) else 1)
