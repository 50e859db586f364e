"""What a job costs before and after its steps: `replicax run` beside the same job written by hand, and torchrun.

    python benchmarks/job_start.py [--rounds 7] [--torch PYTHON]

The job is the smallest one: two processes on this machine, one step that squares a row in each and sums them. By hand
it is two processes of Python that call `jax.distributed.initialize`, started at once and awaited; with torch it is
`torchrun` and one step of a `DistributedDataParallel` model over Gloo, run by the interpreter that `--torch` names. All
of them run in turn, so that what else the machine does strikes all alike; the compiled programs are in JAX's cache.

The counts are functions of replicax that run in a worker: files from the import of replicax to the first result, and
files and exchanges of one save of two variables by two workers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_BY_REPLICAX = """
import jax
import jax.numpy as jnp
import numpy as np
import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()

@rx.function
def step(row):
    return strategy.reduce("SUM", strategy.run(lambda row: jnp.sum(row * row), args=(row,)))

row = next(iter(strategy.distribute_dataset([np.arange(2.0, dtype="float32")])))
assert float(step(row)) == 1.0, float(step(row))
"""
_BY_HAND = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
mesh = jax.make_mesh((2,), ("replica",))
rows = NamedSharding(mesh, PartitionSpec("replica"))
row = jax.make_array_from_process_local_data(rows, np.array([float(sys.argv[2])], "float32"), (2,))

@jax.jit
def step(row):
    return jnp.sum(row * row)

assert float(step(row)) == 1.0
"""
_BY_TORCH = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss = model(torch.full((1, 2), float(dist.get_rank()))).square().sum()
loss.backward()
optimizer.step()
dist.destroy_process_group()
print("done", flush=True)
"""
_COUNTS = """
import json, os, sys, tempfile, threading
import jax

_calls = []
def seen(frame, event, _):
    path = frame.f_code.co_filename
    if event == "call" and os.sep + "replicax" + os.sep in path and frame.f_code.co_name != "<module>":
        _calls.append(path)
import replicax as rx
rx.MultiWorkerMirroredStrategy
threading.setprofile(seen), sys.setprofile(seen)
strategy = rx.MultiWorkerMirroredStrategy()
sys.setprofile(None), threading.setprofile(None)
start = len(set(_calls))

import jax.numpy as jnp
from replicax.cluster.exchange import Exchange
with strategy.scope():
    a, b = rx.Variable(jnp.zeros(4)), rx.Variable(jnp.ones(3))
manager = rx.CheckpointManager(sys.argv[1], async_=False, objects={"a": a, "b": b})
manager.save(1)
stages = set()
tell = Exchange.tell
def told(self, stage, value=b""):
    stages.add(stage.removesuffix("/all"))
    tell(self, stage, value)
Exchange.tell = told
_calls.clear()
threading.setprofile(seen), sys.setprofile(seen)
manager.save(2)
sys.setprofile(None), threading.setprofile(None)
if strategy.is_chief:
    print("COUNTS", json.dumps([start, len(set(_calls)), len(stages)]), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for script, text in (("ours", _BY_REPLICAX), ("hand", _BY_HAND), ("ddp", _BY_TORCH), ("counts", _COUNTS)):
            (folder / f"{script}.py").write_text(text, encoding="utf-8")
        jobs: dict[str, Callable[[], None]] = {
            "help": lambda: run_help(folder),
            "ours": lambda: ours(folder, "ours"),
            "hand": lambda: by_hand(folder),
        }
        if options.torch:
            jobs["torch"] = lambda: by_torch(folder, options.torch)
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        processor: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(options.rounds + 1):
            for job, run in jobs.items():
                begun = time.perf_counter()
                used = processor_s()
                run()
                if number:  # The first fills the caches.
                    seconds[job].append(time.perf_counter() - begun)
                    processor[job].append(processor_s() - used)
        medians = {job: statistics.median(times) for job, times in seconds.items()}
        for job, times in seconds.items():
            each, cpu = ", ".join(f"{time:.2f}" for time in times), statistics.median(processor[job])
            print(f"{job:6} {medians[job]:.3f} s ({each}), {cpu:.2f} s of a processor")
        start, save, exchanges = counts(folder)
    print(f"RESULT run_help_s {medians['help']:.3f}")
    print(f"RESULT run_help_processor_s {statistics.median(processor['help']):.3f}")
    print(f"RESULT start_vs_handwritten_jax {ratio(seconds, 'hand'):.3f}")
    if options.torch:
        print(f"RESULT start_vs_torchrun {ratio(seconds, 'torch'):.3f}")
    print(f"RESULT save_exchanges {exchanges}")
    print(f"RESULT start_files {start}")
    print(f"RESULT save_files {save}")


def processor_s() -> float:
    """Returns the seconds of a processor that ended children have used, by which a busy machine can be told."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ratio(seconds: dict[str, list[float]], other: str) -> float:
    """Returns the median of the ratios of runs that followed each other."""
    return statistics.median(a / b for a, b in zip(seconds["ours"], seconds[other], strict=True))


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of all jobs: each has JAX's cache of compiled programs, of its own."""
    told = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder / "cache"), "KERAS_BACKEND": "jax"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache" / "hand")}
    small = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **told, **cache, **small}


def run_help(folder: Path) -> None:
    command = [sys.executable, "-m", "replicax", "run", "--help"]
    subprocess.run(command, env=environment(folder), check=True, stdout=subprocess.DEVNULL)


def ours(folder: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "replicax", "run", "--workers", "2", "--log-dir", str(folder / "logs")]
    command += [str(folder / f"{script}.py"), *arguments]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_hand(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    commands = [[sys.executable, str(folder / "hand.py"), address, str(index)] for index in range(2)]
    started = [subprocess.Popen(command, env=environment(folder), stdout=subprocess.DEVNULL) for command in commands]
    assert [each.wait() for each in started] == [0, 0]


def by_torch(folder: Path, python: str) -> None:
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "ddp.py")]
    done = subprocess.run(command, env=environment(folder), check=False, capture_output=True, text=True)
    assert done.stdout.count("done") == 2, done.stderr  # Now and then a process of torch aborts when it has done all.


def counts(folder: Path) -> tuple[int, int, int]:
    """Returns the files of a start and of a save, and the exchanges of the save."""
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    output = ours(folder, "counts", str(checkpoints))
    line = next(line for line in output.splitlines() if "COUNTS" in line)
    start, save, exchanges = json.loads(line.partition("COUNTS")[2])
    return start, save, exchanges


if __name__ == "__main__":
    main()
