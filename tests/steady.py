"""Runs `make test` again and again, each time in another order: a test that fails once is mended at its cause.

    python tests/steady.py [--rounds 5] [--seed 0] [--args "-k name"]

The second round runs beside other work (a load of 8), the third as `nohup make test &` does, where SIGINT and SIGHUP
are ignored. The order is that of `REPLICAX_TESTS_ORDER`, a number: files are shuffled, and the tests in each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.soak.normal_ends import LOAD, load  # noqa: E402

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", re.MULTILINE)


def ignore_as_nohup_does() -> None:
    """Ignores the signals of the terminal; the processes that are started from here inherit it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    """Runs the rounds and prints what failed, and how often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--args", default="", help="further arguments of pytest")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # So that the load ends, too.
    failures: Counter[str] = Counter()
    for number in range(options.rounds):
        seed, is_busy, is_nohup = options.seed + number, number == 1, number == 2
        print(f"round {number + 1}: REPLICAX_TESTS_ORDER={seed}", "busy" * is_busy, "nohup" * is_nohup, flush=True)
        begun = time.monotonic()
        with load(LOAD) if is_busy else contextlib.nullcontext():
            done = subprocess.run(
                ["make", "test", f"ARGS={options.args}"],
                cwd=ROOT,
                env={**os.environ, "REPLICAX_TESTS_ORDER": str(seed)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=ignore_as_nohup_does if is_nohup else None,
                check=False,
            )
        failed = FAILED.findall(done.stdout) or ([f"make test: exit code {done.returncode}"] if done.returncode else [])
        failures.update(failed)
        if failed:
            kept = Path(tempfile.gettempdir()) / f"steady-{os.getpid()}-round-{number + 1}.txt"
            kept.write_text(done.stdout, encoding="utf-8")
            failed.append(f"all of its output: {kept}")
        print(f"  {(time.monotonic() - begun) / 60:.1f} min", *failed, sep="\n  ", flush=True)
    for test, times in failures.most_common():
        print(f"{times} of {options.rounds}: {test}")
    print(f"RESULT steady_failures {sum(failures.values())}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
