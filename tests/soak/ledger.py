"""Jobs that lose time in known ways: the ledger has to name each cause, and to count what it has cost.

    python tests/soak/ledger.py [--only TEXT]

Each job notes itself what its fault costs (`ledger_job.py`). The times of its steps are those of sleeping, so that a
busy machine does not decide.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax

import replicax as rx
from replicax.job.launching import Options, Terminal, launch
from replicax.tools.ledger.culprits import FAILING, NEW_SHAPES, RECOMPILING, SLOW_DEVICES
from tests.soak.ledger_truth import errors_of

SCRIPT = Path(__file__).with_name("ledger_job.py")
STAND_S = 6.0


class Case(NamedTuple):
    """A job and what is to be said of it."""

    fault: str
    worker: str = ""
    what: str = ""  # nothing stands out
    workers: int = 2
    restarts: int = 0


CASES = [
    Case("none"),
    Case("hidden", workers=1),
    Case("slow_input", "", "waiting for input"),
    Case("slow_input", "", "waiting for input", workers=1),
    Case("slow_input:1", "worker 1", "waiting for input"),
    Case("slow_input:0", "worker 0", "waiting for input"),
    Case("slow_callback", "", "callbacks and user code"),
    Case("slow_callback:0", "worker 0", "callbacks and user code"),
    Case("slow_callback:1", "worker 1", "callbacks and user code"),
    Case("slow_backward:0", "worker 0", SLOW_DEVICES),
    Case("slow_backward:1", "worker 1", SLOW_DEVICES),
    Case("slow_backward:2", "worker 2", SLOW_DEVICES, workers=3),
    Case("save", "", "checkpoint"),
    Case("evaluate", "", "evaluation"),
    Case("new_shapes", "", NEW_SHAPES),
    Case("recompile", "", RECOMPILING),
    Case("kill:1", "worker 1", FAILING, restarts=1),
    Case("error:0", "worker 0", FAILING, restarts=1),
    Case("halt:1", "worker 1", "stall"),
    Case("stand:1", "", "stall"),
]


def run(case: Case, folder: Path) -> tuple[rx.ledger.Ledger, float]:
    """Runs a job; returns its ledger and how long it took."""
    environment = {**os.environ, "REPLICAX_STALL_TIMEOUT": str(STAND_S)}
    options = Options(
        str(SCRIPT), (case.fault, str(folder)), workers=case.workers, restarts=case.restarts, log_dir=folder / "logs",
    )  # fmt: skip
    begin = time.perf_counter()
    launch(options, Terminal(io.StringIO(), io.StringIO()), environment)
    wall = time.perf_counter() - begin
    return rx.ledger.read(folder / "logs"), wall


def cost_us(steps: int = 500, rounds: int = 60) -> float:
    """Returns how many microseconds of a processor a ledger adds to a step of a loop that reads each result."""
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        count = rx.Variable(0.0)

    @rx.function
    def step(x: float) -> jax.Array:
        count.assign_add(x)
        return count.value

    def loop() -> float:
        begin = time.process_time()  # Other programs run on this machine.
        for _ in range(steps):
            step(1.0).block_until_ready()
        return (time.process_time() - begin) / steps

    loop()
    without, with_one = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            without.append(loop())
            with rx.ledger.recording(folder):
                with_one.append(loop())
    return 1e6 * (min(with_one) - min(without))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    right, class_errors, sum_errors = 0, [0.0], [0.0]
    cases = [case for case in CASES if arguments.only in case.fault]
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            found, wall = run(case, Path(folder))
            named = found.culprit
            got = (named.worker, named.what) if named is not None else ("", "")
            is_right = got == (case.worker, case.what)
            right += is_right
            sums = [abs(sum(worker.seconds.values()) - wall) / wall for worker in found.workers]
            errors = errors_of(case.fault, found, Path(folder))
            sum_errors += sums
            class_errors += [error for _, error in errors]
            said = f"{case.fault:16} x{case.workers} {found.wall:5.1f} s {'ok' if is_right else 'NOT'}: {named}"
            compared = ", ".join(f"{name} {error:.4f}" for name, error in errors)
            print(f"{said} | {compared} | {max(sums):.5f}", flush=True)
            if not is_right or max([0.0, *(error for _, error in errors)]) > 0.02:
                for worker in found.workers:
                    print(
                        "   ",
                        worker.name,
                        {k: round(v, 2) for k, v in worker.seconds.items()},
                        worker.own_step,
                        worker.steps,
                    )
                if found.code:
                    print((Path(folder) / "logs" / "worker-0.log").read_text()[-1500:])
    print(f"RESULT ledger_culprits {right}")
    print(f"RESULT ledger_jobs {len(cases)}")
    print(f"RESULT ledger_class_error {max(class_errors):.4f}")
    print(f"RESULT ledger_sum_error {max(sum_errors):.5f}")
    print(f"RESULT ledger_cost_us {cost_us():.1f}")


if __name__ == "__main__":
    main()
