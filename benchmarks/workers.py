"""What training on several processes costs: replicax against hand-written JAX and torch DDP, and all-reduce bandwidth.

    python benchmarks/workers.py [--workers 2] [--rounds 9] [--steps 20]

The step is a 784-700-500-10 network with Adam and a global batch of 128, over Gloo. replicax and hand-written JAX run
in turn in the same processes; torch's DistributedDataParallel has processes of its own (where torch is installed),
started in turn with the others. Figures are medians. The side channel's cost is that of the monitor that watches for
stalls: the same step with it and without.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS, SIZES = 128, (784, 700, 500, 10)
MIB = 2**20


def measure(step: Any, wait: Any, steps: int) -> float:
    """Returns the seconds of a step."""
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begin) / steps


# What a JAX worker does.


class Replicax:
    """The custom loop: variables, `rx.value_and_grad`, optax."""

    def __init__(self, strategy: Any, hand: Any):
        import jax
        import optax

        import replicax as rx

        with strategy.scope():
            params = [
                {name: rx.Variable(v, name=name) for name, v in layer.items()} for layer in hand.init_params(SIZES)
            ]
            leaves, treedef = jax.tree.flatten(params)
            values = [leaf.value for leaf in leaves]
            slots = [rx.Variable(value) for value in jax.tree.leaves(hand.adam().init(values))]
        shape = jax.tree.structure(hand.adam().init(values))
        (self.batch,) = strategy.distribute_dataset([hand.make_batch(ROWS)], rx.InputOptions(prefetch=0))

        def train_step(batch: Any) -> Any:
            def loss_fn() -> Any:
                return hand.loss_sum(jax.tree.unflatten(treedef, [leaf.value for leaf in leaves]), *batch) / ROWS

            loss, gradients = rx.value_and_grad(loss_fn, leaves)()
            state = jax.tree.unflatten(shape, [slot.value for slot in slots])
            updates, state = hand.adam().update(gradients, state)
            for leaf, new in zip(leaves, optax.apply_updates([leaf.value for leaf in leaves], updates), strict=True):
                leaf.assign(new)
            for slot, new in zip(slots, jax.tree.leaves(state), strict=True):
                slot.assign(new)
            return loss

        self.step = rx.function(
            lambda batch: strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)
        )
        self.loss: Any = None

    def __call__(self) -> None:
        self.loss = self.step(self.batch)

    def wait(self) -> None:
        self.loss.block_until_ready()


def handwritten_step(hand: Any, mesh: Any) -> Any:
    """Returns the hand-written step over processes: each puts its own rows of the batch on its devices."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def put(array: Any, *spec: str) -> Any:
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda i: array[i])

    def replicated(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: put(jax.numpy.asarray(leaf)), tree)

    params = hand.init_params(SIZES)
    step = hand.HandWritten.__new__(hand.HandWritten)
    step.state = replicated((params, hand.adam().init(params)))
    step.batch = [put(array, "replica") for array in hand.make_batch(ROWS)]
    step.compiled = jax.jit(hand.make_shard_map_step(mesh, ROWS), donate_argnums=(0, 1))
    return step


def bandwidths(mesh: Any, rounds: int) -> dict[str, float]:
    """Returns the milliseconds of an all-reduce by the bytes that each worker gives."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    split, found = PartitionSpec("replica"), {}
    total = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "replica"), mesh=mesh, in_specs=split, out_specs=PartitionSpec())
    )
    for size in (4 * 1024, 64 * 1024, MIB, 4 * MIB, 16 * MIB, 64 * MIB):
        shape = (mesh.size, size // 4)
        zeros = np.zeros(shape, np.float32)
        value = jax.make_array_from_callback(shape, NamedSharding(mesh, split), lambda i, zeros=zeros: zeros[i])
        total(value).block_until_ready()
        times = [measure(lambda v=value: total(v).block_until_ready(), lambda: None, 3) for _ in range(rounds)]
        found[str(size)] = 1000 * statistics.median(times)
    return found


def jax_worker(rounds: int, steps: int) -> dict[str, Any]:
    import handwritten as hand

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    variants = {"replicax": Replicax(strategy, hand), "hand-written JAX": handwritten_step(hand, strategy.mesh)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, variant in variants.items():
            seconds = measure(variant, variant.wait, steps)
            if turn:
                times[name].append(seconds)
    return {"times": times, "all-reduce": bandwidths(strategy.mesh, 3)}


# What a torch worker does.


def torch_worker(rounds: int, steps: int) -> dict[str, Any]:
    import itertools

    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise(SIZES):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-7)
    x, y = torch.rand(ROWS // world, SIZES[0]), torch.randint(0, 10, (ROWS // world,))
    loss_fn = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()

    times = [measure(step, lambda: None, steps) for _ in range(rounds + 1)][1:]
    torch.distributed.destroy_process_group()
    return {"times": {"torch DDP": times}, "rank": rank}


WORKERS = {"jax": jax_worker, "torch": torch_worker}


# Starting the workers.


def free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


def run(kind: str, workers: int, rounds: int, steps: int, **environment: str) -> dict[str, Any]:
    """Runs the workers of one kind and returns what the first of them has measured."""
    ports = free_ports(workers)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(workers):
            told = {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
                "RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]),
                "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "1", **environment,
            }  # fmt: skip
            command = [sys.executable, __file__, "--as", kind, "--rounds", str(rounds), "--steps", str(steps)]
            command += ["--result", str(Path(folder, str(rank)))]
            log = subprocess.DEVNULL if rank else None
            processes.append(subprocess.Popen(command, env={**os.environ, **told}, stderr=log, stdout=log))
        try:
            codes = [process.wait(600) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise SystemExit(f"the {kind} workers ended with {codes}")
        return json.loads(Path(folder, "0").read_text())


def medians(results: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the milliseconds of each variant: the median over all rounds."""
    times: dict[str, list[float]] = {}
    for result in results:
        for name, seconds in result["times"].items():
            times.setdefault(name, []).extend(seconds)
    return {name: 1000 * statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3, help="how often the processes are started anew")
    parser.add_argument("--as", dest="kind", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        args.result.write_text(json.dumps(WORKERS[args.kind](args.rounds, args.steps)))
        return

    watched, unwatched, torchs = [], [], []
    for _ in range(args.turns):
        watched.append(run("jax", args.workers, args.rounds, args.steps))
        unwatched.append(run("jax", args.workers, args.rounds, args.steps, REPLICAX_STALL_TIMEOUT="0"))
        if importlib.util.find_spec("torch") is not None:
            torchs.append(run("torch", args.workers, args.rounds, args.steps))
    report(medians(watched), medians(unwatched), medians(torchs), watched[0]["all-reduce"], args.workers)


def report(
    watched: dict[str, float],
    unwatched: dict[str, float],
    torchs: dict[str, float],
    bytes_: dict[str, float],
    workers: int,
) -> None:
    from timing import print_table

    both = {name: (watched[name] + unwatched[name]) / 2 for name in watched} | torchs
    mine, by_hand = both["replicax"], both["hand-written JAX"]
    rows = [(name, f"{ms:.2f}", f"{ms / by_hand:.3f}") for name, ms in both.items()]
    print_table(f"a step on {workers} processes", ("variant", "ms", "of hand-written JAX"), rows)
    sizes = [(f"{int(size) / 1024:.0f} KiB", f"{ms:.2f}", f"{int(size) / ms / 1e6:.2f}") for size, ms in bytes_.items()]
    print_table("all-reduce over Gloo", ("bytes of each worker", "ms", "GB/s"), sizes)
    print(f"RESULT workers_step_ms {mine:.2f}")
    print(f"RESULT workers_vs_handwritten {mine / by_hand:.3f}")
    if torchs:
        print(f"RESULT workers_vs_ddp {mine / torchs['torch DDP']:.3f}")
    relative = (watched["replicax"] / watched["hand-written JAX"]) / (
        unwatched["replicax"] / unwatched["hand-written JAX"]
    )
    print(f"RESULT side_channel_cost {relative - 1:.3f}")


if __name__ == "__main__":
    main()
