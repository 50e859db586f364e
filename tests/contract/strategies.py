"""The strategies that every contract test runs under, each made anew for its test."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

import replicax as rx


def _mirrored(devices: int, **arguments: object) -> Callable[[], rx.Strategy]:
    return lambda: rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)], **arguments)


def _central(devices: int, parameter_device: str = "cpu:0", first: int = 0) -> Callable[[], rx.Strategy]:
    compute = [f"cpu:{i}" for i in range(first, first + devices)]
    return lambda: rx.CentralStorageStrategy(compute, parameter_device)


def _mesh(data: int, model: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[: data * model]).reshape(data, model), ("data", "model"))


def _island(devices: int) -> Callable[[], rx.Strategy]:
    return lambda: rx.LocalSGDStrategy(2, devices=[f"cpu:{i}" for i in range(devices)])


ALL: dict[str, Callable[[], rx.Strategy]] = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy("cpu:3"),
    "mirrored_1": _mirrored(1),
    "mirrored_2": _mirrored(2),
    "mirrored_3": _mirrored(3),
    "mirrored_8": _mirrored(8),
    "mirrored_3_hierarchical": _mirrored(3, cross_device_ops=rx.HierarchicalCopyAllReduce()),
    "mirrored_3_one_device": _mirrored(3, cross_device_ops=rx.ReductionToOneDevice()),
    "mirrored_8_ring": _mirrored(8, cross_device_ops=rx.RingAllReduce()),
    "fully_sharded_3": lambda: rx.FullyShardedStrategy([f"cpu:{i}" for i in range(3)], min_size=8),
    "fully_sharded_8": lambda: rx.FullyShardedStrategy(min_size=8),
    "layout_4x2": lambda: rx.LayoutStrategy(_mesh(4, 2), {"kernel": (None, "model"), "bias": ("model",)}),
    "central_1": _central(1),
    "central_2": _central(2),
    "central_3_elsewhere": _central(3, first=1),
    "central_8": _central(8, "cpu:5"),
    "island_1": _island(1),
    "island_3": _island(3),
    "bitwise_2": _mirrored(2, numbers="bitwise"),
    "mirrored_8_packed": _mirrored(8, communication_options=rx.CommunicationOptions(bytes_per_pack=1024)),
}
