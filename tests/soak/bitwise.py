"""The same bits: trains models on devices and processes in other numbers, and compares the bits of all that they leave.

python tests/soak/bitwise.py [--only MODEL ...] [--on PROCESSES:DEVICES ...] [--no-times]

With `--on` only these are compared with one device; the devices are those of all processes together.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = Path(__file__).with_name("bitwise_models.py")
TIMES = Path(__file__).with_name("bitwise_times.py")
ON = ["1:2", "1:4", "1:8", "2:2", "2:4", "2:8", "4:4", "4:8"]
SECONDS = 3600.0
_LINE = re.compile(r"(?:\[worker 0\] )?(BITS|REFUSED) (\S+) (.*)")


def _output(command: list[str], devices: int) -> str:
    environ = {**os.environ, "BITWISE_DEVICES": str(devices), "PYTHONPATH": str(MODELS.parents[2])}
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            command, env=environ, cwd=folder, text=True, capture_output=True, timeout=SECONDS, check=False
        )
    if found.returncode:
        print(found.stdout[-2000:], found.stderr[-2000:], f"exit code {found.returncode}", flush=True)
    return found.stdout


def results(processes: int, devices: int, names: list[str]) -> dict[str, str]:
    """Returns what each model leaves: the digest of its bits, or why it was refused."""
    command = [sys.executable]
    if processes > 1:
        each = str(devices // processes)
        command += ["-m", "replicax", "run", "--workers", str(processes), "--devices-per-worker", each]
    lines = _output([*command, str(MODELS), *names], devices).splitlines()
    found = (_LINE.match(line) for line in lines)
    return {match[2]: f"{match[1]} {match[3]}" for match in found if match}


def step_ratio() -> float:
    """Returns the largest ratio of a step's time to that of a plain one, of a transformer and a convolutional net."""
    worst = 0.0
    for devices in (1, 8):
        for line in _output([sys.executable, str(TIMES)], devices).splitlines():
            print(f"{devices} devices: {line}", flush=True)
            worst = max(worst, float(line.rsplit(" ", 1)[1]))
    return worst


def main() -> None:
    """Compares, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--on", nargs="*", default=ON)
    parser.add_argument("--no-times", action="store_true")
    chosen = parser.parse_args()
    expected = results(1, 1, chosen.only)
    runs, differing, refused = len(expected), 0, set[str]()
    print(f"1 process, 1 device: {expected}", flush=True)
    for each in chosen.on:
        processes, devices = map(int, each.split(":"))
        found = results(processes, devices, chosen.only)
        others = [name for name in expected if found.get(name) != expected[name]]
        runs, differing = runs + len(found), differing + len(others)
        refused |= {name for name, said in found.items() if said.startswith("REFUSED")}
        told = {name: found.get(name, "nothing") for name in others}
        print(f"{processes} processes, {devices} devices: {len(found)} models, {told or 'the same bits'}", flush=True)
    print("RESULT bitwise_runs", runs)
    print("RESULT bitwise_differing", differing)
    print("RESULT bitwise_refused", ",".join(sorted(refused)) or "none")
    if not chosen.no_times:
        print(f"RESULT bitwise_step_ratio {step_ratio():.2f}")


if __name__ == "__main__":
    main()
