"""Whether a job that lasts grows: memory, threads, open files and logs of an elastic job, and of parameter servers.

    python benchmarks/long_job.py [--minutes 30] [--workers 4] [--loss-s 60] [--save-s 10] [--steps 100000]
                                  [--only elastic|servers]

The elastic job saves every `--save-s` seconds, and loses a worker every `--loss-s` seconds: any but worker 0, which so
lives as long as the launcher. What grows is the slope of a line through all samples after the first third, in which
caches fill: memory by changes of the membership, other things from the first of these samples to the last. The job of
parameter servers makes `--steps` asynchronous steps; each process of it, those of Ray too, is looked at.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replicax.testing import ElasticJob
from tests.soak.marked import marked

_SAMPLE_S, _SECONDS_TO_START, _SECONDS_TO_END = 2.0, 120.0, 90.0
_STALL_S = 7.0
_MARK = "REPLICAX_LONG_JOB"
_AT_ONCE = 64  # steps that parameter servers are given before they are waited for


class Sample(NamedTuple):
    """What a process holds at one time."""

    at: float  # in changes of the membership, or in thousands of steps
    mib: float
    threads: int
    files: int


def status(pid: int) -> dict[str, str]:
    """Returns what Linux says of a process."""
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)


def sample(pid: int, at: float) -> Sample:
    """Returns what a process holds now."""
    found = status(pid)
    memory = int(found["VmRSS"].split()[0]) / 1024
    return Sample(at, memory, int(found["Threads"]), len(os.listdir(f"/proc/{pid}/fd")))


def slope(samples: Sequence[Sample]) -> float:
    """Returns how many MiB a process has more with each change, or each thousand steps, once its caches are full."""
    later = np.array([(each.at, each.mib) for each in samples[len(samples) // 3 :]])
    return float(np.polyfit(*later.T, 1)[0]) if np.ptp(later[:, 0]) else 0.0


def elastic(folder: Path, args: argparse.Namespace) -> None:
    """Disturbs a job, looks at its launcher and at worker 0, and prints by how much they have grown."""
    options = {"workers": args.workers, "min_workers": 2, "stall_timeout": _STALL_S}
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    launcher, worker, chance = list[Sample](), list[Sample](), random.Random(0)
    with ElasticJob(__file__, folder, args.save_s, log_dir=folder / "logs", environment=environment, **options) as job:
        job.wait_for_world(args.workers, _SECONDS_TO_START)
        survivor = job.run_of(0)
        launching = int(status(survivor.pid)["PPid"])
        end, next_loss, losses = time.monotonic() + 60 * args.minutes, time.monotonic() + args.loss_s, 0
        while time.monotonic() < end:
            due = time.monotonic() + _SAMPLE_S
            job.wait_until(lambda due=due: time.monotonic() > due, "the next sample", 2 * _SAMPLE_S)
            worlds = job.membership.worlds[-1].number
            launcher.append(sample(launching, worlds))
            worker.append(sample(survivor.pid, worlds))
            if time.monotonic() >= next_loss and len(job.membership.present) == args.workers:
                job.kill(chance.randrange(1, args.workers))
                losses, next_loss = losses + 1, time.monotonic() + args.loss_s
        assert job.run_of(0) == survivor, "Worker 0 was lost, although nothing has struck it."
        (folder / "turn").write_text("end 0")
        code = job.wait(_SECONDS_TO_END)
    logs = sum(path.stat().st_size for path in (folder / "logs").rglob("*") if path.is_file()) / 2**20
    print(f"{args.minutes:g} minutes, {losses} losses, {worker[-1].at:g} worlds, exit code {code}")
    print(f"RESULT long_losses {losses}\nRESULT long_log_mib {logs:.2f}")
    for name, samples in (("launcher", launcher), ("worker", worker)):
        first, last = samples[len(samples) // 3], samples[-1]
        print(f"{name}: {first} to {last}")
        print(f"RESULT long_{name}_mib_per_change {slope(samples):.2f}")
        print(f"RESULT long_{name}_threads_grown {last.threads - first.threads}")
        print(f"RESULT long_{name}_files_grown {last.files - first.files}")


def work(folder: Path, save_s: float) -> None:
    """Is one worker of the elastic job: steps without a pause, and saves."""
    from elastic_worker import Training, turn

    import replicax as rx
    from replicax.checkpoint.policies import EverySeconds

    strategy = rx.MultiWorkerMirroredStrategy(elastic=rx.Elastic(min_workers=2))
    training = Training(strategy)
    with rx.CheckpointManager(
        folder / "checkpoints", checkpoint=training.checkpoint, max_to_keep=2, save_when=EverySeconds(save_s)
    ) as manager:
        strategy.join(training.checkpoint)
        for batch in training.dataset:
            training.train(batch)
            manager.save(int(training.step.numpy()))
            if turn(folder)[0] == "end":
                return


def servers(steps: int) -> None:
    """Makes asynchronous steps, and prints by how much each process has grown."""
    os.environ[_MARK] = str(os.getpid())
    import replicax as rx

    strategy = rx.ParameterServerStrategy(workers=2, servers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = rx.Variable(np.zeros([64, 64], np.float32))
    dataset = iter(coordinator.create_per_worker_dataset(lambda: itertools.repeat(np.ones([8, 64], np.float32))))

    @rx.function
    def step(batches):
        x = next(batches)
        loss, [gradient] = rx.value_and_grad(lambda: ((x @ weights.value - 1.0) ** 2).mean(), [weights])()
        weights.assign_sub(0.01 * gradient)
        return loss

    samples: dict[tuple[int, str], list[Sample]] = {}
    begun, looked = time.monotonic(), 0.0
    for done in range(0, steps, _AT_ONCE):
        for _ in range(min(_AT_ONCE, steps - done)):
            coordinator.schedule(step, args=(dataset,))
        coordinator.join(300)
        if time.monotonic() - looked > _SAMPLE_S:
            looked = time.monotonic()
            for each in {**marked(f"{_MARK}={os.getpid()}"), os.getpid(): "coordinator"}.items():
                samples.setdefault(each, []).append(sample(each[0], done / 1000))
    print(f"{steps} steps in {time.monotonic() - begun:.0f} s")
    grown = {}
    for (pid, name), found in samples.items():
        print(f"{name} ({pid}): {found[len(found) // 3]} to {found[-1]}")
        grown[name] = max(slope(found), grown.get(name, 0.0))
    for name in ("gcs_server", "coordinator"):
        print(f"RESULT long_{name}_mib_per_1000_steps {grown[name]:.3f}")
    print(f"RESULT long_most_mib_per_1000_steps {max(grown.values()):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--loss-s", type=float, default=60.0)
    parser.add_argument("--save-s", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--only", choices=("elastic", "servers"))
    args = parser.parse_args()
    if args.only != "servers":
        with tempfile.TemporaryDirectory() as folder:
            elastic(Path(folder), args)
    if args.only != "elastic":
        servers(args.steps)


if __name__ == "__main__":
    if "REPLICAX_LIFE" in os.environ:  # It is a worker, which the launcher has started.
        work(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        main()
