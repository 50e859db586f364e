from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.collectives import CommunicationOptions, NcclAllReduce
from replicax.collectives.compression import Compression, Memory
from replicax.collectives.gradient_sums import remembering
from replicax.contracts.reduce_op import ReduceOp
from replicax.runtime import REPLICA_AXIS, replica_mesh

Reducer = Callable[[Sequence[Any], Sequence[Memory]], tuple[list[jax.Array], list[Memory]]]


@pytest.fixture(scope="session")
def reducer() -> Callable[..., Reducer]:
    """Makes a function of stacked values and memory, row r for replica r, that sums them over replicas.

    Of the memory `q` is equal on all replicas.
    """

    def make(compression: Compression, count: int, op: ReduceOp = ReduceOp.SUM, bytes_per_pack: int = 0) -> Reducer:
        options = CommunicationOptions(bytes_per_pack=bytes_per_pack)

        def reduce(values: Sequence[Any], memory: Sequence[Memory]) -> tuple[list[jax.Array], list[Memory]]:
            rows = [value[0] for value in values]
            kept = [{name: each if name == "q" else each[0] for name, each in one.items()} for one in memory]
            sums, new = remembering(NcclAllReduce(), options, compression, op, rows, kept)
            return sums, [{name: each if name == "q" else each[None] for name, each in one.items()} for one in new]

        def mapped(values: Sequence[Any], memory: Sequence[Memory]) -> tuple[list[jax.Array], list[Memory]]:
            own, all_alike = PartitionSpec(REPLICA_AXIS), PartitionSpec()
            specs = [{name: all_alike if name == "q" else own for name in one} for one in memory]
            mesh = replica_mesh(jax.devices()[:count])
            sharded = jax.shard_map(
                reduce, mesh=mesh, in_specs=([own] * len(values), specs), out_specs=(all_alike, specs)
            )
            return sharded(values, memory)

        return jax.jit(mapped)

    return make


@pytest.fixture
def zero_memory() -> Callable[..., Memory]:
    """Makes the first memory of a gradient, stacked as replicas have it."""

    def make(compression: Compression, count: int, shape: tuple[int, ...], dtype: str = "float32") -> Memory:
        kinds = compression.memory_of(shape, np.dtype(dtype), 0)
        return {
            name: np.broadcast_to(kind.initial(), (count, *kind.shape)) if kind.per_replica else kind.initial()
            for name, kind in kinds.items()
        }

    return make
