"""Do all devices still have the same variables? Each digests its own copies, and the digests are compared.

A mirrored variable has a copy on each device, and nothing in a program compares them: what a flipped bit or a chip that
computes wrong changes in one stays there, and training goes on. So each device digests what it holds itself, in one
program, and every process gets the digests of all. Devices that hold the same part of a variable must have the same
digest.

The digest is the sum of all 32-bit words, each times an odd number of its place, modulo 2**32. So a single flipped bit
always changes it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from replicax.contracts.variable_access import array_of, is_variable, lives_elsewhere, name_of
from replicax.errors import ArgumentError, ReplicaDriftError
from replicax.runtime.calls import together
from replicax.runtime.devices import device_name
from replicax.runtime.transfer import beside_device, host_copy
from replicax.typing import PyTree


class PendingDigests(NamedTuple):
    """Digests that the devices compute."""

    names: tuple[str, ...]
    holders: tuple[tuple[tuple[int, ...], ...], ...]  # of each variable, the devices that hold the same part
    devices: tuple[jax.Device, ...]
    values: jax.Array  # (devices, variables)

    @property
    def by_name(self) -> dict[str, list[int]]:
        """The digests that the devices have of each variable; waits for them."""
        return dict(zip(self.names, host_copy(self.values).T.tolist(), strict=True))

    def check(self, step: int | None = None) -> None:
        """Waits for the digests, and raises a `ReplicaDriftError` if they differ."""
        values = host_copy(self.values)
        found: dict[str, list[int]] = {}
        is_sure = True
        for column, (name, groups) in enumerate(zip(self.names, self.holders, strict=True)):
            for group in groups:
                odd, by_majority = _odd([int(values[device, column]) for device in group])
                if odd:
                    found.setdefault(name, []).extend(group[i] for i in odd)
                    is_sure = is_sure and by_majority
        if found:
            drifted = sorted({device for each in found.values() for device in each})
            shown = [f"{i} ({device_name(self.devices[i])}, process {self.devices[i].process_index})" for i in drifted]
            raise ReplicaDriftError(list(found), drifted, shown, is_sure, step)


class _Named(NamedTuple):
    """The value of a variable."""

    name: str
    array: jax.Array
    sharding: NamedSharding


class ReplicaDigests:
    """Digests the copies of variables, and keeps the compiled programs."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Callable[..., jax.Array]] = {}

    def begun(self, variables: PyTree) -> list[PendingDigests]:
        """Lets the devices compute digests; one result for each mesh on which variables have copies."""
        return self.of(_arrays(variables))

    def of(self, arrays: Iterable[tuple[str, jax.Array]]) -> list[PendingDigests]:
        """Does the same for arrays with names."""
        by_mesh: dict[jax.sharding.Mesh, list[_Named]] = {}
        for name, array in arrays:
            sharding = array.sharding
            if isinstance(sharding, NamedSharding) and _holders(sharding, array.shape):
                mesh = cast(jax.sharding.Mesh, sharding.mesh)
                by_mesh.setdefault(mesh, []).append(_Named(name, array, sharding))
        return [self._on_mesh(mesh, named) for mesh, named in by_mesh.items()]

    def _on_mesh(self, mesh: jax.sharding.Mesh, named: Sequence[_Named]) -> PendingDigests:
        arrays = [_on_device(each.array) for each in named]
        kinds = tuple((each.array.shape, each.array.dtype, each.sharding) for each in named)
        key = mesh, kinds
        if key not in self._programs:
            self._programs[key] = _program(mesh, [each.sharding.spec for each in named])
        if mesh.is_multi_process:
            with together("the digests of all replicas", str([(shape, str(dtype)) for shape, dtype, _ in kinds])):
                values = self._programs[key](*arrays)
        else:
            values = self._programs[key](*arrays)
        holders = tuple(_holders(each.sharding, each.array.shape) for each in named)
        return PendingDigests(tuple(each.name for each in named), holders, tuple(mesh.devices.flat), values)


def _arrays(variables: PyTree) -> Iterator[tuple[str, jax.Array]]:
    """Yields the names and values of variables and arrays; a variable elsewhere, or unbuilt, has none."""
    is_lazy = isinstance(variables, Iterable) and not is_variable(variables) and not hasattr(variables, "__array__")
    if is_lazy and jax.tree_util.all_leaves([variables]) and not isinstance(variables, str):
        variables = list(variables)  # a generator, say
    leaves, _ = jax.tree_util.tree_flatten_with_path(variables, is_leaf=is_variable)
    for path, leaf in leaves if variables is not None else [((), None)]:
        if is_variable(leaf):
            array = None if lives_elsewhere(leaf) else array_of(leaf)
            if array is not None:
                yield name_of(leaf), array
        elif isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            yield jax.tree_util.keystr(path) or "the array", leaf
        else:
            where = f"`variables`{jax.tree_util.keystr(path)}"
            raise ArgumentError(
                f"{where} is no variable, and no array on the strategy's devices, so it has no copies to compare: got "
                f"{leaf!r:.100}. Give variables, such as model.variables, or a pytree that strategy.replicate has made."
            )


@functools.lru_cache(maxsize=4096)
def _holders(sharding: NamedSharding, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices that hold the same part of an array, by numbers in the mesh, where they are several."""
    parts = sharding.devices_indices_map(shape)
    found: dict[str, list[int]] = collections.defaultdict(list)
    for number, device in enumerate(sharding.mesh.devices.flat):
        found[str(parts[device])].append(number)
    return tuple(tuple(group) for group in found.values() if len(group) > 1)


def _on_device(array: jax.Array) -> jax.Array:
    """Returns an array with each copy on its device: a program cannot digest memory of the host."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    beside = beside_device(array.sharding)
    return array if beside is None else jax.device_put(array, beside)


def _program(mesh: jax.sharding.Mesh, specs: Sequence[PartitionSpec]) -> Callable[..., jax.Array]:
    """Returns the compiled function from arrays to their digests (devices, arrays), which every process can read."""
    # Replication is not checked: that copies are equal is what is in doubt.
    mapped = jax.shard_map(
        lambda *parts: jnp.stack([digest(part) for part in parts])[None],
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=PartitionSpec(mesh.axis_names),
        check_vma=False,
    )
    return jax.jit(mapped, out_shardings=NamedSharding(mesh, PartitionSpec()))


def digest(array: jax.Array) -> jax.Array:
    """Returns the digest of an array, an uint32."""
    words = _words(array)
    places = jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(2) + jnp.uint32(1)
    return jnp.sum(words * places, dtype=jnp.uint32)


def _words(array: jax.Array) -> jax.Array:
    """Returns the bits of an array as a vector of uint32."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag])
    elif array.dtype == jnp.bool_ or (jnp.issubdtype(array.dtype, jnp.integer) and jnp.iinfo(array.dtype).bits < 8):
        array = array.astype(jnp.int8)
    width = min(array.dtype.itemsize, 4)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32).reshape(-1)


def _odd(values: Sequence[int]) -> tuple[list[int], bool]:
    """Returns which of some digests differ from the others, and whether more than half of them agree."""
    (most, count), *others = collections.Counter(values).most_common()
    if not others:
        return [], True
    if 2 * count > len(values):
        return [i for i, value in enumerate(values) if value != most], True
    return list(range(len(values))), False
