"""The strategies that every contract test runs under, each made anew for its test."""

from __future__ import annotations

from collections.abc import Callable

import replicax as rx


def _mirrored(devices: int, **arguments: object) -> Callable[[], rx.Strategy]:
    return lambda: rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)], **arguments)


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
    "mirrored_8_packed": _mirrored(8, communication_options=rx.CommunicationOptions(bytes_per_pack=1024)),
}
