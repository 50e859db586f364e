"""The program of each of two processes that measure an all-reduce. It prints one line of JSON, with the times."""

from __future__ import annotations

import json
import time

SIZES = (4 * 2**10, 2**20, 16 * 2**20)
_REPEATS = 5
MARK = "ALL-REDUCE "


def main() -> None:
    """Adds arrays over all processes, and checks and times it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from replicax.strategies import MultiWorkerMirroredStrategy

    strategy = MultiWorkerMirroredStrategy(start_timeout=60, stall_timeout=None)
    mesh = Mesh(np.array(jax.devices()), ("worker",))
    along = NamedSharding(mesh, PartitionSpec("worker"))
    add = jax.jit(jax.shard_map(
        lambda x: jax.lax.psum(x, "worker"), mesh=mesh, in_specs=PartitionSpec("worker"), out_specs=PartitionSpec()
    ))  # fmt: skip
    seconds = {}
    for size in SIZES:
        mine = np.full((1, size // 4), strategy.worker_index + 1, np.float32)
        numbers = jax.make_array_from_process_local_data(along, mine)
        total = jax.block_until_ready(add(numbers))
        wanted = sum(range(1, strategy.num_workers + 1))
        assert bool(jnp.all(total.addressable_data(0) == wanted)), "the sum is wrong"
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            jax.block_until_ready(add(numbers))
            times.append(time.perf_counter() - start)
        seconds[size] = sorted(times)[_REPEATS // 2]
    print(MARK + json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
