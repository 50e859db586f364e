"""Making first values where they shall live: each device a part, so that none ever holds the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.compat.jax_tracing import outside_traces, tracing_all
from replicax.program.first_values import Computing, FirstValue
from replicax.runtime.transfer import placed_copy, put


class FirstValues:
    """Makes first values, and keeps the compiled programs: layers of one kind share them, whatever their seeds."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Computing | None] = {}

    def made(
        self,
        value: FirstValue,
        sharding: NamedSharding,
        agreed: Callable[[Sequence[jax.typing.ArrayLike]], Sequence[jax.typing.ArrayLike]],
    ) -> tuple[jax.Array, list[jax.typing.ArrayLike]] | None:
        """Returns a first value, made in parts, and then what the variables become that computing it changes."""
        # None where a part would not have the numbers of the whole, or something larger is computed on the way.
        program = self._compiled(value, sharding)
        if program is None:
            return None
        with outside_traces(), tracing_all():
            given = [_given(const, value, sharding) for const in agreed(value.constants)]
            made, *others = program(given, value.numbers)
        # An array that was given is somebody else's. A variable's value is its own: programs overwrite it.
        return placed_copy(made, sharding) if value.is_constant else cast(jax.Array, made), others

    def _compiled(self, value: FirstValue, sharding: NamedSharding) -> Computing | None:
        key = value.key, sharding
        if key not in self._programs:
            part = math.prod(sharding.shard_shape(value.shape))
            fits = all(shape == value.shape or math.prod(shape) <= part for shape in value.shapes)
            others = [NamedSharding(sharding.mesh, PartitionSpec())] * (value.num_results - 1)
            program = jax.jit(value.computing, out_shardings=[sharding, *others])
            self._programs[key] = program if fits and value.is_by_element else None
        return self._programs[key]


def _given(const: jax.typing.ArrayLike, value: FirstValue, sharding: NamedSharding) -> jax.typing.ArrayLike:
    """Returns a constant as a stage takes it: in parts if it has the value's shape, otherwise whole."""
    if np.shape(const) == value.shape:
        return put(const, sharding.with_memory_kind("device"))
    return put(const, NamedSharding(sharding.mesh, PartitionSpec())) if isinstance(const, jax.Array) else const
