"""Running a step whose bits do not depend on how many devices, and processes, work on it.

XLA's results depend on the program that it compiles: with the shapes in it, and with the number of devices that it is
partitioned over, products are fused otherwise and sums get another order. So what computes here are programs for *one*
device, of shapes that depend on the batch and the number of blocks only: one for the whole values of a stage, which
each device runs, and one for a block, which the devices run for their blocks, one after the other. Between devices
travel sums alone. They are made in a binary tree over the blocks: those of one device by additions of two arrays,
those of several by recursive doubling, where each device adds its sum and that of its partner. Such an addition has one
result, whoever compiles it. All that is small travels in one array: each meeting of the devices takes a while.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from replicax.collectives.packing import Packing
from replicax.compat.jax import is_random_key
from replicax.compat.jax_cache import without_compilation_cache
from replicax.compat.jax_executables import on_each
from replicax.program.blocks.evaluation import flat, value_of
from replicax.program.blocks.plan import Plan, Stage
from replicax.program.blocks.rules import COMBINERS
from replicax.program.ir.jaxprs import aval_of, is_literal
from replicax.runtime.numbers import BLOCK_AXIS
from replicax.runtime.precision import adding_dtype
from replicax.runtime.transfer import put
from replicax.typing import PyTree, PyTreeFunction

_MOST_PACKED = 1 << 18  # elements of a part: to copy a larger one takes longer than a meeting of its own
#: The options with which XLA's programs repeat themselves, by platform.
_OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0}}


class BlockedStep:
    """A pure function of variables and arguments, worked off in blocks; planned and compiled at the first call."""

    def __init__(
        self,
        step: PyTreeFunction,  # (updated variables, other variables, donated, other arguments) -> (new values, results)
        blocks: int,
        mesh: Mesh,
        out_shardings: tuple[Sequence[Sharding | None], Sequence[Sharding | None]],
    ):
        self._step, self._blocks, self._mesh, self._out_shardings = step, blocks, mesh, out_shardings
        self._compiled: dict[tuple[object, ...], _Compiled] = {}

    def __call__(self, *args: PyTree) -> PyTree:
        leaves, treedef = jax.tree_util.tree_flatten(args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._step(*args)
        kinds = tuple(
            (np.shape(each), getattr(each, "dtype", type(each)), getattr(each, "weak_type", False)) for each in leaves
        )
        compiled = self._compiled.get(kinds)
        if compiled is None:
            variables = len(jax.tree_util.tree_leaves(args[:2]))
            compiled = _Compiled(self._step, treedef, leaves, variables, self._blocks, self._mesh)
            self._compiled[kinds] = compiled
        return compiled(leaves, self._out_shardings)

    def lower(self, *args: PyTree) -> jax.stages.Lowered:
        """Returns the step as JAX lowers it, as one program."""
        return jax.jit(self._step).lower(*args)

    def trace(self, *args: PyTree) -> jax.stages.Traced:
        """Returns the step as JAX traces it, as one program."""
        return jax.jit(self._step).trace(*args)


class _Compiled:
    """The step's stages for arguments of one kind."""

    def __init__(
        self,
        step: PyTreeFunction,
        treedef: jax.tree_util.PyTreeDef,
        leaves: Sequence[Any],
        variables: int,
        blocks: int,
        mesh: Mesh,
    ):
        # Of the last results, what each device has: mostly these are what the next step is given.
        self._known: dict[int, tuple[weakref.ref[jax.Array], list[jax.Array]]] = {}
        found: list[jax.tree_util.PyTreeDef] = []

        def of_leaves(*leaves: jax.Array) -> list[jax.Array]:
            results, structure = jax.tree_util.tree_flatten(step(*jax.tree_util.tree_unflatten(treedef, leaves)))
            found[:] = [structure]
            return [jnp.asarray(each) for each in results]

        program = flat(of_leaves, [_kind(leaf) for leaf in leaves])
        self._structure = found[0]
        rows = _rows([np.shape(leaf) for leaf in leaves[variables:]])
        number = math.gcd(blocks, rows[0]) if rows else 1
        arguments = program.jaxpr.invars[variables:]
        batch = {
            var: place for var in arguments if rows and (place := _place(var.aval.shape)) is not None
            and var.aval.shape[place] == rows[0] and not jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key)
        }  # fmt: skip
        self.plan = Plan(program, batch, number)
        devices = list(mesh.devices.flat)
        self._mesh = Mesh(np.array(devices, dtype=object), (BLOCK_AXIS,))
        self._own = [device for device in devices if device.process_index == jax.process_index()]
        # So many share the blocks. Of more devices, several do the same.
        self._groups = 2 ** (min(len(devices), number).bit_length() - 1)
        per_device = number // self._groups
        places = [devices.index(device) % self._groups for device in self._own]
        self._numbers = [
            [jax.device_put(np.int32(place * per_device + i), device) for i in range(per_device)]
            for place, device in zip(places, self._own, strict=True)
        ]
        self._whole = NamedSharding(self._mesh, PartitionSpec())
        self._split = NamedSharding(self._mesh, PartitionSpec(BLOCK_AXIS))
        self._consts = self._on_devices([_placeable(const) for const in program.consts])
        options = _OPTIONS.get(devices[0].platform, {})
        compiler = functools.partial(_OnEach, self._own, options)
        name = getattr(step, "__name__", "step")
        self._stages = [
            _Programs(self.plan, stage, self._mesh, self._groups, compiler, f"{name}_{i}" if i else name)
            for i, stage in enumerate(self.plan.stages)
        ]

    def __call__(
        self, leaves: Sequence[Any], out_shardings: tuple[Sequence[Sharding | None], Sequence[Sharding | None]]
    ) -> PyTree:
        jaxpr, count = self.plan.program.jaxpr, len(self._own)
        given = self._on_devices(leaves)
        wholes: list[dict[jex_core.Var, jax.Array]] = [
            dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *own], strict=True))
            for consts, own in zip(self._consts, given, strict=True)
        ]
        # Of each device the values of each of its blocks.
        blocks: list[list[dict[jex_core.Var, jax.Array]]] = [[{} for _ in each] for each in self._numbers]
        for programs in self._stages:
            stage = programs.stage
            if stage.whole_outputs:
                for j, values in enumerate(wholes):
                    results = programs.whole(j, [values[var] for var in stage.whole_inputs])
                    values.update(zip(stage.whole_outputs, results, strict=True))
            if stage.sums or stage.block_outputs:
                trees = [_Tree(functools.partial(programs.add, j)) for j in range(count)]
                for i in range(len(self._numbers[0])):
                    for j in range(count):
                        known, own = wholes[j], blocks[j][i]
                        results, parts = programs.block(
                            j,
                            self._numbers[j][i],
                            [known[var] for var in stage.block_wholes],
                            [own[var] for var in stage.block_inputs],
                        )
                        own.update(zip(stage.block_outputs, results, strict=True))
                        if parts:
                            trees[j].add(parts)
                if stage.sums:
                    sums = self._met(programs, [tree.total() for tree in trees])
                    for values, own_sums in zip(wholes, sums, strict=True):
                        values.update(zip([each.result for each in stage.sums], own_sums, strict=True))
            if stage.joined:
                own_blocks = [
                    programs.join(j, [[block[each.blocks] for block in own] for each in stage.joined])
                    for j, own in enumerate(blocks)
                ]
                gathered = self._gathered(programs, own_blocks)
                for values, joined in zip(wholes, gathered, strict=True):
                    values.update(zip([each.result for each in stage.joined], joined, strict=True))
        return self._results(wholes, out_shardings)

    def _met(self, programs: _Programs, parts: list[list[jax.Array]]) -> list[list[jax.Array]]:
        """Returns the sums over the blocks of all devices, on each device."""
        if self._mesh.size > 1:
            parts = self._apart(programs.exchange(self._assembled(parts)))
        return [programs.finish(j, each) for j, each in enumerate(parts)]

    def _gathered(self, programs: _Programs, parts: list[list[jax.Array]]) -> list[list[jax.Array]]:
        """Returns the blocks of all devices, on each device."""
        if self._mesh.size == 1:
            return [programs.rejoin(0, parts[0])]
        return self._apart(programs.gather(self._assembled(parts)))

    def _assembled(self, parts: list[list[jax.Array]]) -> list[jax.Array]:
        """Returns global arrays of what each device has, one after the other."""
        return [
            jax.make_array_from_single_device_arrays(
                (each[0].shape[0] * self._mesh.size, *each[0].shape[1:]), self._split, list(each)
            )
            for each in zip(*parts, strict=True)
        ]

    def _on_devices(self, values: Sequence[Any]) -> list[list[jax.Array]]:
        """Returns for each device of this process its copy of whole values."""
        return self._apart([_on(value, self._whole) for value in values])

    def _keep(self, whole: jax.Array, each: list[jax.Array]) -> None:
        known, key = self._known, id(whole)
        known[key] = weakref.ref(whole, lambda _: known.pop(key, None)), each

    def _apart(self, values: Sequence[jax.Array]) -> list[list[jax.Array]]:
        if len(self._own) == 1:
            return [[_single(value) for value in values]]
        found: list[list[jax.Array]] = [[] for _ in self._own]
        for value in values:
            kept = self._known.get(id(value))
            if kept is None:
                shards = {shard.device: shard.data for shard in value.addressable_shards}
                each = [shards[device] for device in self._own]
            else:
                _, each = kept
            for own, part in zip(found, each, strict=True):
                own.append(part)
        return found

    def _results(
        self,
        wholes: list[dict[jex_core.Var, jax.Array]],
        out_shardings: tuple[Sequence[Sharding | None], Sequence[Sharding | None]],
    ) -> PyTree:
        flat_shardings = [*out_shardings[0], *out_shardings[1]]
        results = []
        for atom, sharding in zip(self.plan.results, flat_shardings, strict=True):
            if is_literal(atom):
                each = [jax.device_put(value_of(atom, {}), device) for device in self._own]
            else:
                each = [values[cast(jex_core.Var, atom)] for values in wholes]
            results.append(self._global(each, sharding))
        return jax.tree_util.tree_unflatten(self._structure, results)

    def _global(self, each: list[jax.Array], sharding: Sharding | None) -> jax.Array:
        if is_random_key(each[0]):
            impl = jax.random.key_impl(each[0])
            data = self._global([jax.random.key_data(key) for key in each], sharding)
            keys: jax.Array = jax.random.wrap_key_data(data, impl=impl)
            return keys
        home: Sharding = self._whole
        if sharding is not None and sharding.is_equivalent_to(self._whole, each[0].ndim):
            home = sharding
        whole: jax.Array = jax.make_array_from_single_device_arrays(each[0].shape, home, each)
        if len(each) > 1:
            self._keep(whole, each)
        return whole if sharding is None or sharding is home else put(whole, sharding)


class _Programs:
    """The compiled programs of a stage."""

    def __init__(self, plan: Plan, stage: Stage, mesh: Mesh, groups: int, compiler: Callable[..., _OnEach], name: str):
        self.stage = stage
        self.whole = compiler(f"{name}_on_all_rows" if stage.blocks else name, functools.partial(plan.whole, stage))
        self._plan = plan
        self.block = compiler(name, self._block)
        self._results = [aval_of(each.result) for each in stage.sums]
        alike: dict[tuple[object, ...], list[int]] = {}
        for i, (each, result) in enumerate(zip(stage.sums, self._results, strict=True)):
            alone = i if math.prod(result.shape) > _MOST_PACKED else None
            alike.setdefault((each.combiner, adding_dtype(result.dtype), alone), []).append(i)
        self._packing = Packing(tuple(map(tuple, alike.values())), tuple(each.shape for each in self._results))
        self._combiners = [COMBINERS[stage.sums[pack[0]].combiner] for pack in self._packing.packs]
        self._dimensions = [each.dimension for each in stage.joined]
        self.add = compiler("add_blocks", self._add, donate=(0,))
        self.finish = compiler("sums_of_blocks", self._finish)
        self.join, self.rejoin = compiler("join_blocks", self._join), compiler("all_rows", self._rejoin)
        self._size, self._groups = mesh.size, groups
        split, whole = PartitionSpec(BLOCK_AXIS), PartitionSpec()
        mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False)
        self.exchange, self.gather = jax.jit(mapped(self._exchange)), jax.jit(mapped(self._gather))

    # The parts of sums are packed: each pack has a dimension in front over which devices share it.

    def _block(self, *args: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        outputs, parts = self._plan.block(self.stage, *args)
        return outputs, [pack[None] for pack in self._packing.pack(parts)]

    def _add(self, first: list[jax.Array], second: list[jax.Array]) -> list[jax.Array]:
        return [add(a, b) for add, a, b in zip(self._combiners, first, second, strict=True)]

    def _finish(self, packs: list[jax.Array]) -> list[jax.Array]:
        parts = self._packing.unpack([pack[0] for pack in packs])
        return [part.astype(each.dtype) for part, each in zip(parts, self._results, strict=True)]

    def _exchange(self, parts: list[jax.Array]) -> list[jax.Array]:
        step, place = 1, jax.lax.axis_index(BLOCK_AXIS)
        while step < self._groups:
            pairs = [(i, i ^ step) for i in range(self._groups)]
            is_second = (place & step) != 0
            theirs = [jax.lax.ppermute(part, BLOCK_AXIS, pairs) for part in parts]
            lower = [jnp.where(is_second, b, a) for a, b in zip(parts, theirs, strict=True)]
            upper = [jnp.where(is_second, a, b) for a, b in zip(parts, theirs, strict=True)]
            parts, step = jax.lax.optimization_barrier(self._add(lower, upper)), 2 * step
        for first in range(self._groups, self._size, self._groups):
            pairs = [(i, first + i) for i in range(min(self._groups, self._size - first))]
            is_told = (place >= first) & (place < first + self._groups)
            told = [jax.lax.ppermute(part, BLOCK_AXIS, pairs) for part in parts]
            parts = [jnp.where(is_told, b, a) for a, b in zip(parts, told, strict=True)]
        return parts

    # A value's blocks are put together with the cut dimension in front.

    def _join(self, values: list[list[jax.Array]]) -> list[jax.Array]:
        return [
            jnp.concatenate([jnp.moveaxis(block, dimension, 0) for block in blocks])
            for blocks, dimension in zip(values, self._dimensions, strict=True)
        ]

    def _rejoin(self, values: list[jax.Array]) -> list[jax.Array]:
        return [jnp.moveaxis(each, 0, dimension) for each, dimension in zip(values, self._dimensions, strict=True)]

    def _gather(self, values: list[jax.Array]) -> list[jax.Array]:
        gathered = [jax.lax.all_gather(each, BLOCK_AXIS, tiled=True) for each in values]
        return self._rejoin([each[: each.shape[0] * self._groups // self._size] for each in gathered])


class _OnEach:
    """A function as one program that each device of this process runs; compiled when the first device calls it."""

    def __init__(
        self,
        devices: Sequence[jax.Device],
        options: dict[str, Any],
        name: str,
        function: Callable[..., Any],
        donate: Sequence[int] = (),
    ):
        self._devices = devices
        self._jitted = jax.jit(_named(name, function), donate_argnums=donate, compiler_options=options)
        self._compiled: list[jax.stages.Compiled] = []

    def __call__(self, place: int, *args: Any) -> Any:
        """Calls the function on the device of a place among them, where the arguments are."""
        if not self._compiled:
            with without_compilation_cache():
                self._compiled = on_each(self._jitted.lower(*args).compile(), self._devices)
        return self._compiled[place](*args)


class _Tree:
    """The sums of one device's blocks, in a binary tree: at most one of each size waits for another one."""

    def __init__(self, add: Callable[[list[jax.Array], list[jax.Array]], list[jax.Array]]):
        self._add = add
        self._waiting: list[tuple[int, list[jax.Array]]] = []

    def add(self, parts: list[jax.Array]) -> None:
        size = 1
        while self._waiting and self._waiting[-1][0] == size:
            _, before = self._waiting.pop()
            parts, size = self._add(before, parts), 2 * size
        self._waiting.append((size, parts))

    def total(self) -> list[jax.Array]:
        [(_, parts)] = self._waiting
        return parts


def _rows(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Returns the number of rows that most arguments have; empty if none has rows."""
    found = [shape[place] for shape in shapes if (place := _place(shape)) is not None]
    return [max(dict.fromkeys(found), key=found.count)] if found else []


def _place(shape: tuple[int, ...]) -> int | None:
    """Returns the dimension of an argument's rows: the first, or behind that of the one replica the second."""
    if not shape:
        return None
    return 1 if shape[0] == 1 and len(shape) > 1 else 0


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(np.result_type(leaf)))


def _placeable(const: Any) -> Any:
    return const if isinstance(const, jax.Array) else jnp.asarray(const)


def _on(value: Any, sharding: NamedSharding) -> jax.Array:
    is_there = isinstance(value, jax.Array) and value.sharding.device_set == sharding.device_set
    return value if is_there and value.sharding.is_fully_replicated else put(value, sharding)


def _single(value: jax.Array) -> jax.Array:
    """Returns this process's copy of a whole value, as an array of its device alone, without a mesh."""
    is_alone = isinstance(value.sharding, SingleDeviceSharding)
    return value if is_alone else value.addressable_shards[0].data


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def named(*args: Any) -> Any:
        return function(*args)

    named.__name__ = named.__qualname__ = name
    return named
