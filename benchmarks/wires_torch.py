"""A host's process with torch's DistributedDataParallel at its best, for `wires.py`. It needs torch and NumPy alone."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import wires_models as models
from wires_told import serve


class DDP:
    """One model with its own process group's buckets: fused Adam, gradients as views of the buckets, a static graph."""

    def __init__(self, sizes: tuple[int, ...], bucket_cap_mb: float):
        rank, world = dist.get_rank(), dist.get_world_size()
        layers: list[Any] = []
        for (inputs, outputs), first in zip(itertools.pairwise(sizes), models.first_weights(sizes), strict=True):
            layer = torch.nn.Linear(inputs, outputs)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(first["w"].T)))
                layer.bias.zero_()
            layers += [layer, torch.nn.ReLU()]
        self.model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers[:-1]),
            gradient_as_bucket_view=True,
            static_graph=True,
            bucket_cap_mb=bucket_cap_mb,
        )
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=models.LEARNING_RATE, eps=models.EPSILON, fused=True
        )
        # The gradients' mean over hosts of a sum, divided by the share that a host would have, is the global mean's.
        self.share = models.ROWS / world
        self.batches = [
            (torch.from_numpy(models.rows_of(x, rank, world)), torch.from_numpy(models.rows_of(y, rank, world)).long())
            for x, y in models.batches(sizes)
        ]
        self.count = 0

    def run(self, steps: int) -> dict[str, Any]:
        losses = []
        start = time.perf_counter()
        for _ in range(steps):
            x, y = self.batches[self.count % len(self.batches)]
            self.count += 1
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(self.model(x), y, reduction="sum") / self.share
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        seconds = (time.perf_counter() - start) / steps
        totals = torch.stack(losses)
        dist.all_reduce(totals)
        return {"seconds": seconds, "losses": (totals / dist.get_world_size()).tolist()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    variants: dict[str, DDP] = {}

    def make(name: str, model: str, bucket_cap_mb: float = 25.0) -> dict[str, Any]:
        variants[name] = DDP(models.MODELS[model], bucket_cap_mb)
        return {}

    def drop(name: str) -> dict[str, Any]:
        del variants[name]
        return {}

    def run(name: str, steps: int) -> dict[str, Any]:
        dist.barrier()
        return variants[name].run(steps)

    def reduce(size: int, times: int) -> dict[str, Any]:
        value, seconds = torch.ones(size // 4), []
        for _ in range(times):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(value)
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds}

    serve({"make": make, "drop": drop, "run": run, "reduce": reduce})
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "wire0")
    main()
