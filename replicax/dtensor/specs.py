"""Entries of layouts: which dimensions of a mesh shard one dimension of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import PartitionSpec

from replicax.checks import checked_int
from replicax.dtensor.mesh import Mesh
from replicax.errors import LayoutError

#: This dimension of the tensor is not sharded.
UNSHARDED = "unsharded"
#: This dimension keeps the sharding that it has; only `relayout` understands it.
MATCH = "match"

Spec = str | tuple[str, ...]


def dims_of(spec: Spec) -> tuple[str, ...]:
    """Returns the mesh dimensions that an entry of a layout names."""
    if isinstance(spec, tuple):
        return spec
    return () if spec in (UNSHARDED, MATCH) else (spec,)


def text_of(spec: Spec) -> str:
    """Returns an entry of a layout as text: `"x"`, `"x+y"`, `"unsharded"`, `"match"`."""
    return "+".join(spec) if isinstance(spec, tuple) else spec


def specs_of(partition: PartitionSpec, rank: int) -> list[Spec]:
    """Returns a `PartitionSpec` as the entries of a layout for tensors of rank `rank`."""
    entries = tuple(partition)
    if len(entries) > rank:
        raise LayoutError(f"{partition} shards {len(entries)} dimensions, but the tensor has {rank}.")
    return [_spec_of(entry) for entry in entries] + [UNSHARDED] * (rank - len(entries))


def partition_spec(specs: tuple[Spec, ...]) -> PartitionSpec:
    """Returns the entries of a layout as a `PartitionSpec`."""
    entries = [PartitionSpec.UNCONSTRAINED if spec == MATCH else None if spec == UNSHARDED else spec for spec in specs]
    while entries and entries[-1] is None:  # As JAX writes the shardings of results, so that equal ones compare equal.
        entries.pop()
    return PartitionSpec(*entries)


def checked_specs(sharding_specs: object, mesh: Mesh) -> tuple[Spec, ...]:
    """Returns the entries of a layout for a mesh as a tuple."""
    if isinstance(sharding_specs, str) or not isinstance(sharding_specs, Sequence):
        raise LayoutError(
            f"A layout is a list with an entry for each dimension, such as ['batch', 'unsharded'], got "
            f"{sharding_specs!r:.100}."
        )
    specs = tuple(_spec_of(tuple(spec)) if isinstance(spec, (tuple, list)) else spec for spec in sharding_specs)
    for spec in specs:
        names = dims_of(spec) if isinstance(spec, (str, tuple)) else (spec,)
        unknown = [name for name in names if name not in mesh.dim_names]
        if unknown:
            raise LayoutError(
                f"{unknown[0]!r} is not a dimension of {mesh!r}. An entry of a layout is one of "
                f"{list(mesh.dim_names)}, {UNSHARDED!r} or {MATCH!r}."
            )
    used = [name for spec in specs for name in dims_of(spec)]
    repeated = sorted({name for name in used if used.count(name) > 1})
    if repeated:
        raise LayoutError(
            f"A mesh dimension can shard only one dimension of a tensor, but {repeated[0]!r} comes more than once in "
            f"{list(specs)}."
        )
    return specs


def checked_rank(rank: int) -> int:
    """Returns the rank of a tensor."""
    return checked_int("rank", rank, error=LayoutError)


def _spec_of(entry: str | tuple[str, ...] | None) -> Spec:
    """Returns an entry of a `PartitionSpec` as one of a layout."""
    if entry is None or entry == ():
        return UNSHARDED
    if entry is PartitionSpec.UNCONSTRAINED:
        return MATCH
    if isinstance(entry, tuple):
        return entry[0] if len(entry) == 1 else entry
    return entry
