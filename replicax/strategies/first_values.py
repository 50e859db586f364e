"""Making first values where they shall live: each device a part, so that none ever holds the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import cast

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.compat.jax_tracing import outside_traces, tracing_all
from replicax.program.first_values import FirstValue, Stage, StageFunction
from replicax.program.ir.jaxprs import Atom, aval_of
from replicax.runtime.transfer import put
from replicax.strategies.replica_devices import placed_copy


class FirstValues:
    """Makes first values, and keeps the compiled programs: layers of one kind share them, whatever their seeds."""

    def __init__(self) -> None:
        self._functions: dict[Hashable, list[StageFunction] | None] = {}

    def made(
        self,
        value: FirstValue,
        sharding: NamedSharding,
        agreed: Callable[[Sequence[jax.typing.ArrayLike]], Sequence[jax.typing.ArrayLike]],
    ) -> tuple[jax.Array, list[jax.typing.ArrayLike]] | None:
        """Returns a first value, made in parts, and then what the variables become that computing it changes."""
        # The numbers are those that the initializer returns without a strategy, bit for bit. None where a part would
        # not have the numbers of the whole, or something larger than a part is computed on the way.
        functions = self._compiled(value, sharding)
        if functions is None:
            return None
        with outside_traces(), tracing_all():
            given = [_given(const, value, sharding) for const in agreed(value.constants)]
            made, *others = value.results(given, functions)
        # An array that was given is somebody else's. A variable's value is its own: programs overwrite it.
        return placed_copy(made, sharding) if value.is_constant else cast(jax.Array, made), others

    def _compiled(self, value: FirstValue, sharding: NamedSharding) -> list[StageFunction] | None:
        key = value.key, sharding
        if key not in self._functions:
            shapes = [aval_of(result).shape for stage in value.stages for result in stage.results]
            part = math.prod(sharding.shard_shape(value.shape))
            fits = value.is_by_element and all(shape == value.shape or math.prod(shape) <= part for shape in shapes)
            self._functions[key] = [_in_parts(stage, value, sharding) for stage in value.stages] if fits else None
        return self._functions[key]


def _in_parts(stage: Stage, value: FirstValue, sharding: NamedSharding) -> StageFunction:
    """Returns a stage compiled for all devices; the results take the memory of what is not used any more."""
    on_devices = sharding.with_memory_kind("device")
    mirrored = NamedSharding(sharding.mesh, PartitionSpec())
    shardings = [on_devices if aval_of(result).shape == value.shape else mirrored for result in stage.results]
    room, overwritten = [_kind(result) for result in stage.results], []
    if value.result in stage.results and on_devices != sharding:  # The value lives in the host's memory.
        shardings[stage.results.index(value.result)], room = sharding, []
    for i, atom in enumerate(stage.operands):
        if atom in stage.dropped and not value.is_captured(atom) and _kind(atom) in room:
            room.remove(_kind(atom))
            overwritten.append(i)
    function: StageFunction = jax.jit(stage, out_shardings=shardings, donate_argnums=overwritten)
    return function


def _kind(atom: Atom) -> tuple[Hashable, ...]:
    return aval_of(atom).shape, aval_of(atom).dtype


def _given(const: jax.typing.ArrayLike, value: FirstValue, sharding: NamedSharding) -> jax.typing.ArrayLike:
    """Returns a constant as a stage takes it: in parts if it has the value's shape, otherwise whole."""
    if np.shape(const) == value.shape:
        return put(const, sharding.with_memory_kind("device"))
    return put(const, NamedSharding(sharding.mesh, PartitionSpec())) if isinstance(const, jax.Array) else const
