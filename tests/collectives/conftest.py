from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.collectives import (
    CommunicationOptions,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    RingAllReduce,
)
from replicax.collectives.automatic import AutomaticAllReduce
from replicax.contracts.reduce_op import ReduceOp
from replicax.runtime import REPLICA_AXIS, replica_mesh

ALL_OPS = [
    NcclAllReduce(),
    AutomaticAllReduce(gathers=True),
    HierarchicalCopyAllReduce(),
    ReductionToOneDevice(reduce_to_device=0),
    RingAllReduce(),
]


@pytest.fixture(params=ALL_OPS, ids=lambda ops: type(ops).__name__)
def ops(request: pytest.FixtureRequest) -> CrossDeviceOps:
    return request.param


class Replicas:
    """Runs functions and cross-device ops on the first `count` virtual devices."""

    def __init__(self, count: int):
        self.count = count
        self.mesh = replica_mesh(jax.devices()[:count])

    def map(self, fn: Callable[..., Any], *, equal: bool = True) -> Callable[..., Any]:
        """Returns `fn` as a `shard_map`; each replica gets row r of every argument, as shape `(1, ...)`."""
        out_specs = PartitionSpec() if equal else PartitionSpec(REPLICA_AXIS)
        return jax.shard_map(fn, mesh=self.mesh, in_specs=PartitionSpec(REPLICA_AXIS), out_specs=out_specs)

    def reducer(
        self, ops: CrossDeviceOps, op: ReduceOp | str = "sum", options: CommunicationOptions | None = None
    ) -> Callable[..., list[jax.Array]]:
        """Returns a function of stacked values, row r for replica r, that reduces the replicas' rows."""

        def reduce_rows(*stacked: jax.Array) -> list[jax.Array]:
            rows = [rows.reshape(rows.shape[1:]) for rows in stacked]
            return ops.all_reduce(op, rows, axis_name=REPLICA_AXIS, num_replicas=self.count, options=options)

        return self.map(reduce_rows)

    def hlo(self, ops: CrossDeviceOps, stacked: Sequence[Any], options: CommunicationOptions | None = None) -> str:
        return jax.jit(self.reducer(ops, options=options)).lower(*stacked).compile().as_text()


@pytest.fixture(scope="session")
def replicas() -> Callable[[int], Replicas]:
    return Replicas


@pytest.fixture(scope="session")
def same_everywhere() -> Callable[[jax.Array], np.ndarray]:
    """Returns the one value that all devices hold, after a check that they hold the same bits."""

    def value(array: jax.Array) -> np.ndarray:
        components = [np.asarray(shard.data) for shard in array.addressable_shards]
        assert {component.tobytes() for component in components} == {components[0].tobytes()}
        return components[0]

    return value


@pytest.fixture(scope="session")
def count_ops() -> Callable[[str, str], int]:
    """Counts an operation of compiled HLO, in its plain or its asynchronous spelling."""

    def count(hlo: str, name: str) -> int:
        return sum(f" {name}(" in line or f" {name}-start(" in line for line in hlo.splitlines())

    return count
