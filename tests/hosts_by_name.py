"""The strategies that a computation is to be the same under: names, and functions that make them."""

from __future__ import annotations

import replicax as rx

#: On one, two, three and eight devices, and with variables that are cut.
HOSTS = {
    "one": lambda: rx.MirroredStrategy(["cpu:0"]),
    "two": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]),
    "three": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]),
    "eight": lambda: rx.MirroredStrategy(),
    "sharded": lambda: rx.FullyShardedStrategy(min_size=8),
}
#: And on a mesh of two axes, whose second one cuts kernels.
HOSTS_AND_LAYOUT = {
    **HOSTS,
    "layout": lambda: rx.LayoutStrategy(mesh_shape={"data": 4, "model": 2}, layout={"kernel": (None, "model")}),
}
