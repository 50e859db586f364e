"""Running a function on every replica: `jax.shard_map` over the replica axis, with JAX's replication types on.

Inside, JAX knows of each value whether it may differ between replicas. That decides what comes out: values that are
proven equal are mirrored, the others are stacked, one row a replica.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import NamedSharding, PartitionSpec

import replicax.context as context
from replicax.compat.jax import is_random_key
from replicax.compat.jax_tracing import current_trace, traced_apart
from replicax.compat.replacing import Replaced
from replicax.contracts.strategy import PER_ROW, StrategyBase
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    has_split_rows,
    is_per_replica_variable,
    name_of,
    shape_of,
)
from replicax.errors import ContextError, ReplicaDivergenceError, ReplicaShapeError
from replicax.program.accesses import Accesses
from replicax.program.flax.modules import PassedModules, UsedModules, around_modules
from replicax.program.flax.variables import changes_taken_back, flax_state, kept_changes
from replicax.program.flax_changes import ModuleChange, apply_changes
from replicax.program.frames import ReplicaFrame
from replicax.program.hints.advice import (
    advise_of_captured,
    advise_of_local_mean,
    advise_of_total,
    advise_of_whole_state,
    advise_of_zeros,
)
from replicax.program.hints.gradient_scale import Search, find_local_mean
from replicax.program.hints.metric_totals import find_not_summable
from replicax.program.hints.unequal_types import axes_explained, types_explained
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.program.ir.moving import inlined
from replicax.program.ir.scopes import scope_of
from replicax.program.kept_layouts import CutLayouts, layout_in, layouts_of_results
from replicax.program.keras.state import repeat_while_variables_are_created
from replicax.program.pytrees import Structure, flatten_inputs, flatten_outputs, per_replica_arrays
from replicax.program.random.jax_random import drawing
from replicax.program.random.row_draws import RowDraws, with_rows_together
from replicax.program.replicas.after_meeting import Late
from replicax.program.replicas.control_flow import control_flow_of_replicas
from replicax.program.replicas.eager_frame import DIFFERS_NOW, EagerReplicaFrame, differs_now
from replicax.program.replicas.mapped_axes import collectives_of_replicas
from replicax.program.replicas.outer_program import agree, enclosing_program, noted
from replicax.program.replicas.per_replica_arguments import without_per_replica
from replicax.program.replicas.plain_gradients import gradients_of_replicas
from replicax.program.replicas.replica_program import (
    ReplicaProgram,
    cut_at_gradients,
    trace_as_one_device,
    trace_replica,
)
from replicax.program.replicas.sharded_variables import ReplicaShard, ReplicaSplit, sharded_in, spec_of_shard, split_of
from replicax.program.row_updates import BY_HAND
from replicax.program.storing import store_values
from replicax.program.tracing import explained_op_by_op
from replicax.runtime.mesh import REPLICA_AXIS, longest_divisible
from replicax.runtime.transfer import put
from replicax.typing import PyTree, PyTreeFunction
from replicax.values import PerReplica

_SHARED, _STACKED = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
#: How arguments or results lie over the replicas: first those of the function, then those of variables.
_Specs: TypeAlias = tuple[list[PartitionSpec], list[PartitionSpec]]
_LARGE = 2**20  # elements of a state; from here on a copy on each device is told
_AXES = {REPLICA_AXIS}  # A mesh may have more axes; those are XLA's to partition over.

_JAX_IN_REPLICAS = Replaced(lambda: [*control_flow_of_replicas(), *collectives_of_replicas(), *gradients_of_replicas()])


@dataclasses.dataclass
class ReplicaCall:
    """One call of a function on all replicas."""

    strategy: StrategyBase
    fn: PyTreeFunction  # as one replica sees it
    # `(args, kwargs)`: each replica gets its component of a per-replica value, and all else as it is.
    args: tuple[tuple[PyTree, ...], dict[str, PyTree]]
    in_replica_context: bool = True  # False for `update`, whose function is a cross-replica one

    def __post_init__(self) -> None:
        self._arrays, self._structure = flatten_inputs(self.args)
        self._stacked, count = per_replica_arrays(self.args)
        program = enclosing_program()
        if count is not None and count > self.strategy.num_replicas_in_sync:
            raise ReplicaShapeError(
                f"A per-replica argument has {count} components, but {self.strategy!r} has "
                f"{self.strategy.num_replicas_in_sync} replicas. It was made under another strategy."
            )
        if program is not None:
            self.replicas = agree(program, self.strategy, count)
        else:
            self.replicas = count or self.strategy.num_replicas_in_sync
        self._specs = [_STACKED if stacked else _SHARED for stacked in self._stacked]
        self._layouts = self._known_layouts(layout_in if program is None else program.layouts.of)
        self._result: Structure | None = None
        self._changes: list[ModuleChange] = []

    def _known_layouts(self, layout_of: Callable[[jax.Array], NamedSharding | None]) -> list[NamedSharding | None]:
        """Returns how arguments stay sharded over the devices of all replicas, where the strategy cuts values."""
        placement = self.strategy.placement
        if not placement.shards_variables:
            return [None] * len(self._arrays)
        mesh = placement.mesh_for(placement.replicas)
        found = [
            None if stacked or is_random_key(array) else layout_of(array)
            for array, stacked in zip(self._arrays, self._stacked, strict=True)
        ]
        return [
            layout if layout is not None and layout.mesh == mesh and not layout.is_fully_replicated else None
            for layout in found
        ]

    def _result_layouts(self, types: Sequence[Any], varying: Sequence[bool]) -> list[NamedSharding | None]:
        """Returns how results, of which the shapes and dtypes are given, are cut: those that replace cut arguments."""
        result = self._result
        assert result is not None
        equal = [
            None if differs or jnp.issubdtype(each.dtype, jax.dtypes.prng_key) else each.shape
            for each, differs in zip(types, varying, strict=True)
        ]
        given = list(zip(map(np.shape, self._arrays), self._layouts, strict=True))
        return layouts_of_results(given, equal, lambda: (self._structure.paths(), result.paths()))

    def _shard_map(self, body: PyTreeFunction, in_specs: PyTree, out_specs: PyTree) -> PyTreeFunction:
        mesh = self.strategy.placement.mesh_for(self.replicas)
        return jax.shard_map(body, mesh=mesh, axis_names=_AXES, in_specs=in_specs, out_specs=out_specs)

    def traced(self) -> PyTree:
        """Runs inside the program that is being traced; its variables are the program's."""
        program, frame = enclosing_program(), context.current().frame
        assert program is not None and frame is not None
        site = self._traced_once(program.accesses)
        program.saw_new = program.saw_new or site.saw_new
        if not program.saw_new:
            self._look_at(site)
        values = [self._rows(variable, frame.read(variable)) for variable in site.inputs]
        layouts = self._result_layouts(site.program.out_avals[: len(site.varying)], site.varying)
        mapped = self._cut(site) if self.strategy.cuts_steps else self._mapped(site, layouts)
        outputs, new_values = mapped(self._arrays, values)
        if self.replicas == self.strategy.num_replicas_in_sync:
            outputs = list(map(_constrained, outputs, layouts))
        # Other results that are equal stay whole: XLA would cut them as it likes.
        whole = self.strategy.placement.sharding(stacked=False) if self.strategy.placement.shards_variables else None
        for output, layout, differs in zip(outputs, layouts, site.varying, strict=True):
            program.layouts.note(output, None if differs else layout or whole)
        for variable, value in zip(site.outputs, new_values, strict=True):
            if has_split_rows(variable):
                value = value[: shape_of(variable)[0]]
            elif self._leaves_rows_out(variable):
                value = jnp.concatenate([value, frame.read(variable)[self.replicas :]])
            frame.write(variable, value)
        apply_changes(self._changes, frame.note_changed)
        return self._wrapped(outputs, site.varying)

    def _rows(self, variable: VariableLike, value: jax.Array) -> jax.Array:
        """Returns the rows that the replicas of this call have of a stacked variable; others as they are."""
        if has_split_rows(variable):
            missing = -value.shape[0] % self.replicas  # filled up, so that each replica has as many
            return jnp.pad(value, [(0, missing), *[(0, 0)] * (value.ndim - 1)]) if missing else value
        return value[: self.replicas] if self._leaves_rows_out(variable) else value

    def _leaves_rows_out(self, variable: VariableLike) -> bool:
        return is_per_replica_variable(variable) and self.replicas < self.strategy.num_replicas_in_sync

    def eager(self) -> PyTree:
        """Runs operation by operation, for debugging; variables are read and assigned directly."""
        if self.strategy.blocks is not None:
            raise ContextError(
                "numbers='bitwise' compiles each step, and rx.config.run_eagerly runs it operation by operation, with "
                "other bits. Leave out one of the two."
            )
        written: list[VariableLike] = []
        varying: list[bool] = []

        passes: list[Accesses] = []
        outside = current_trace()
        draws = self._row_draws()

        def body(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            frame = EagerReplicaFrame(outside, self.strategy, self.replicas)
            for thrown_away in passes:
                thrown_away.lose()
            passes.append(frame.accesses)
            if draws is not None:
                draws.begin()
            # Within `jax.jit` there would be types for values, and types do not tell what is equal in a loss.
            with traced_apart(), drawing(draws), jax.disable_jit():
                leaves = self._call(frame, arrays)
            written[:] = frame.written.values()
            varying[:] = [differs_now(leaf) for leaf in leaves]
            for variable, value in zip(written, frame.new_values(), strict=True):
                is_mirrored = not is_per_replica_variable(variable) and not has_split_rows(variable)
                if self.replicas > 1 and is_mirrored and differs_now(value):
                    raise ReplicaDivergenceError(name_of(variable), DIFFERS_NOW)
            # Whether a result is equal everywhere is known only now, too late for the out_specs: stack them all.
            return [leaf[None] for leaf in leaves], [value[None] for value in frame.new_values()]

        mapped = self._shard_map(body, (self._specs,), _STACKED)
        placed = [
            self.strategy.placement.place(jnp.asarray(array), stacked=stacked, replicas=self.replicas)
            for array, stacked in zip(self._arrays, self._stacked, strict=True)
        ]
        with explained_op_by_op():
            outputs, new_values = repeat_while_variables_are_created(lambda: mapped(placed))
            while draws is not None and not draws.are_right(has_built=False):
                outputs, new_values = repeat_while_variables_are_created(lambda: mapped(placed))
        for i, (variable, value) in enumerate(zip(written, new_values, strict=True)):
            if has_split_rows(variable):
                new_values[i] = value.reshape(-1, *value.shape[2:])[: shape_of(variable)[0]]
            elif not is_per_replica_variable(variable):
                new_values[i] = value[0]
            elif self._leaves_rows_out(variable):
                new_values[i] = np.concatenate([value, array_of(variable)[self.replicas :]])
        stored = self.strategy.placement.stored(written, new_values)
        outputs = [out if differs else out[0] for out, differs in zip(outputs, varying, strict=True)]
        layouts = self._result_layouts(outputs, varying)
        outputs = [out if layout is None else put(out, layout) for out, layout in zip(outputs, layouts, strict=True)]
        rejoined = functools.partial(self.strategy.placement.rejoined, replicas=self.replicas)
        result = around_modules(rejoined, self._wrapped(outputs, varying))
        store_values(written, stored)
        apply_changes(self._changes)
        return result

    def _traced_once(self, accesses: Accesses) -> ReplicaProgram:
        return trace_replica(
            _name(self.fn),
            self._call,
            self._arrays,
            lambda body: self._shard_map(body, (self._specs,), _STACKED),
            self.replicas,
            accesses,
            self._row_draws(),
        )

    def _row_draws(self) -> RowDraws | None:
        """Returns what decides about random numbers; None: each replica draws its own."""
        if self.replicas == 1 or self.strategy.random_numbers != PER_ROW:
            return None
        return RowDraws(_name(self.fn), self.replicas, self._row_numbers(), self._as_one_device)

    def _as_one_device(self, draws: RowDraws) -> None:
        """Traces the function once more, for one device that has all rows."""
        alone = copy.copy(self)
        alone.replicas = 1
        alone._arrays = [
            with_rows_together(array) if stacked else array
            for array, stacked in zip(self._arrays, self._stacked, strict=True)
        ]
        shard_map = lambda body: alone._shard_map(body, (alone._specs,), _STACKED)  # noqa: E731
        with context.traced():
            trace_as_one_device(alone._call, alone._arrays, shard_map, draws)

    def _look_at(self, site: ReplicaProgram) -> None:
        """Advises of what the traced function computes but probably does not intend."""
        if self.replicas == 1 or not self.in_replica_context:
            return
        batches = self._batch_rows()
        is_distributed = any(rows is not None for rows in batches)
        rows = batches if is_distributed else [next(iter(np.shape(array)), None) for array in self._arrays]
        top, search = scope_of(site.program, site.placeholders), Search(rows, self.replicas)
        for total in find_not_summable(top) if site.accumulators else ():
            advise_of_total(self.strategy, site.name, site.accumulators[total.number], total)
        whole = self._whole_elements(site)
        if whole >= _LARGE:
            advise_of_whole_state(self.strategy, site.name, whole)
        found = find_local_mean(top, search, self.replicas)
        if found is not None:
            advise_of_local_mean(self.strategy, site.name, found, self.replicas, is_distributed)

    def _whole_elements(self, site: ReplicaProgram) -> int:
        """Returns how many elements of a state every device holds whole, where the strategy cuts and none is cut."""
        if not self.strategy.placement.shards_variables or any(self._layouts):
            return 0
        results = zip(site.program.out_avals, site.varying, strict=False)
        shapes = {aval.shape for aval, differs in results if not differs}
        cut = {shape for shape in shapes if longest_divisible(shape, self.replicas) is not None}
        given = zip(self._arrays, self._stacked, strict=True)
        return sum(np.size(array) for array, stacked in given if not stacked and np.shape(array) in cut)

    def _batch_rows(self) -> list[int | None]:
        """Returns how many rows each argument has on one replica, None for what is no batch."""
        return [
            np.shape(array)[1] if stacked and np.ndim(array) > 1 else None
            for array, stacked in zip(self._arrays, self._stacked, strict=True)
        ]

    def _row_numbers(self) -> frozenset[int]:
        return frozenset(size for size in self._batch_rows() if size is not None)

    def _mapped(self, site: ReplicaProgram, layouts: CutLayouts) -> PyTreeFunction:
        """Returns the function over global arrays: (arguments, variables read) -> (results, variables written)."""
        if site.late is not None and (any(site.late.is_late) or any(self._splits(self._layouts))):
            return functools.partial(self._in_two_parts, site, site.late, self._splits(layouts))
        return self._shard_map(self._body(site), *self._specs_of(site))

    def _splits(self, layouts: CutLayouts) -> list[ReplicaSplit | None]:
        """Returns how values are sharded over the replicas of this call: of a partial batch each has all of them."""
        takes_all = self.replicas == self.strategy.num_replicas_in_sync
        return [split_of(layout) if takes_all else None for layout in layouts]

    def _in_two_parts(
        self,
        site: ReplicaProgram,
        parts: Late,
        kept: Sequence[ReplicaSplit | None],
        arrays: Sequence[jax.Array],
        values: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Runs the map, and after it what needs no replica any more; so fewer variables pass through the map."""
        in_specs, (output_specs, stored_specs) = self._specs_of(site)
        specs, first_stored = [*output_specs, *stored_specs], len(output_specs)
        is_stacked = [*site.varying, *map(is_per_replica_variable, site.outputs)]
        constants = dict(enumerate(site.constants(values)))
        early = [i for i, late in enumerate(parts.is_late) if not late]
        needed = site.variables_among(parts.needed)
        sharded = sharded_in(self.strategy, site.inputs, site.outputs, needed, self.replicas)
        if (program := enclosing_program()) is not None:
            program.note_replicas([site.inputs[number] for number in needed], sharded.in_update)
        splits = self._splits(self._layouts)
        shapes = dict(sharded.shapes)
        shapes |= {np.shape(a): split for a, split in zip(arrays, splits, strict=True) if split is not None}
        kept = [*kept, *[None] * len(site.outputs)]
        array_specs = list(map(spec_of_shard, splits, in_specs[0]))
        given_specs = [spec_of_shard(sharded.variables[number], in_specs[1][number]) for number in needed]
        sent_specs = [spec_of_shard(split, _SHARED) for split in parts.sent_splits(shapes)]

        def body(arrays: Sequence[jax.Array], given: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            local: list[Any] = [None] * len(values)  # what is not needed stays None
            for number, value in zip(needed, given, strict=True):
                split = sharded.variables[number]
                if split is not None:
                    local[number] = ReplicaShard(value, split)
                else:
                    local[number] = _component(value) if is_per_replica_variable(site.inputs[number]) else value
            inside = site.constants(local)
            constants_of_early = {i: inside[i] for i in parts.needed}
            own = [a if split is None else ReplicaShard(a, split) for a, split in zip(arrays, splits, strict=True)]
            results, sent = parts.early(constants_of_early, own, shapes, self.strategy.sum_together, kept)
            results[:first_stored] = site.typed(results[:first_stored])
            return [results[i][None] if is_stacked[i] else results[i] for i in early], sent

        out_specs = ([spec_of_shard(kept[i], specs[i]) for i in early], sent_specs)
        mapped = self._shard_map(body, (array_specs, given_specs), out_specs)
        found, sent = mapped(arrays, [values[number] for number in needed])
        of_replicas, afterwards = iter(found), iter(parts.late(constants, list(map(jnp.asarray, arrays)), sent))
        results = [next(afterwards) if late else next(of_replicas) for late in parts.is_late]
        return results[:first_stored], results[first_stored:]

    def _cut(self, site: ReplicaProgram) -> PyTreeFunction:
        """Returns the function whose replicas end with the gradients: the update comes after them."""
        in_specs, (output_specs, stored_specs) = self._specs_of(site)
        specs = [*in_specs[0], *in_specs[1]]

        def cut(arrays: Sequence[jax.Array], values: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            args = [*arrays, *values]
            split = cut_at_gradients(self._program_of_one(site, arrays, values), len(arrays), site)
            used = split.worker_inputs  # The replicas get no more of the variables than they need for that.

            def body(
                given: Sequence[jax.Array],
            ) -> tuple[list[jax.Array | None], list[jax.Array | None], list[jax.Array]]:
                known = dict(zip(used, given, strict=True))
                results, sent = split.worker([known.get(i) for i in range(len(args))])
                return results[: len(site.varying)], results[len(site.varying) :], sent

            mapped = self._shard_map(body, ([specs[i] for i in used],), (output_specs, stored_specs, _SHARED))
            outputs, stored, sent = mapped([args[i] for i in used])
            updated = iter(split.server(args, [marked_as_gradient(value) for value in sent]))
            return outputs, [next(updated) if value is None else value for value in stored]

        return cut

    def _program_of_one(
        self, site: ReplicaProgram, arrays: Sequence[jax.Array], values: Sequence[jax.Array]
    ) -> jex_core.ClosedJaxpr:
        """Returns what each replica does as a flat program."""
        found: list[jex_core.ClosedJaxpr] = []

        def look(arrays: Sequence[jax.Array], values: Sequence[jax.Array]) -> list[jax.Array]:
            args, step = [*arrays, *values], self._body(site)
            traced = jax.make_jaxpr(lambda *args: step(args[: len(arrays)], args[len(arrays) :]))(*args)
            found.append(inlined(traced))
            return []

        jax.eval_shape(self._shard_map(look, self._specs_of(site)[0], _SHARED), arrays, values)
        return found[0]

    def _body(self, site: ReplicaProgram) -> PyTreeFunction:
        """Returns what each replica does, as `jax.shard_map` wants it."""

        def body(arrays: Sequence[jax.Array], values: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            local = [
                _component(v) if is_per_replica_variable(var) else v for var, v in zip(site.inputs, values, strict=True)
            ]
            leaves, new_values = site(arrays, local)
            outputs = [leaf[None] if differs else leaf for leaf, differs in zip(leaves, site.varying, strict=True)]
            stored = [
                value[None] if is_per_replica_variable(variable) else value
                for variable, value in zip(site.outputs, new_values, strict=True)
            ]
            return outputs, stored

        return body

    def _specs_of(self, site: ReplicaProgram) -> tuple[_Specs, _Specs]:
        in_specs = (self._specs, [_spec(variable) for variable in site.inputs])
        out_specs = (
            [_STACKED if differs else _SHARED for differs in site.varying],
            [_spec(variable) for variable in site.outputs],
        )
        return in_specs, out_specs

    def _call(self, frame: ReplicaFrame, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Calls the function with this replica's part of the arguments; returns the arrays of its result."""
        local = [_component(a) if stacked else a for a, stacked in zip(arrays, self._stacked, strict=True)]
        args, kwargs = without_per_replica(self._structure.rebuild(local), lambda component: component)
        modules, used = PassedModules((args, kwargs)), UsedModules(self.fn, self._structure)
        rows = self._row_numbers()
        replica = self.strategy.replica_context(self.replicas, rows) if self.in_replica_context else None
        here = context.entered(strategy=self.strategy, replica=replica, frame=frame, manual_replicas=self.replicas)
        with changes_taken_back(frame), flax_state(), here:
            used.note_in(frame)
            with _JAX_IN_REPLICAS(), axes_explained(), types_explained():
                result = self.fn(*args, **kwargs)
                frame.update_rows_at_end(BY_HAND if self.replicas > 1 else None)
            modules.check_returned(result)
            self._changes = kept_changes(frame)
            frame.aggregate_deferred()
            if frame.passed_by:
                advise_of_zeros(self.strategy, _name(self.fn), frame.passed_by.values())
            # A per-replica value here was captured, not passed: its components are still stacked.
            mine = without_per_replica(result)
            if frame.accesses.captured:
                advise_of_captured(self.strategy, _name(self.fn))
            leaves, self._result = flatten_outputs(mine)
        return [jnp.asarray(leaf) for leaf in leaves]

    def _wrapped(self, outputs: Sequence[jax.Array], varying: Sequence[bool]) -> PyTree:
        bare = self.strategy.num_replicas_in_sync == 1
        wrapped = [
            out if not differs else out.reshape(out.shape[1:]) if bare else PerReplica(out)
            for out, differs in zip(outputs, varying, strict=True)
        ]
        if self.in_replica_context and not bare:
            for out, differs in zip(outputs, varying, strict=True):
                if not differs:
                    noted(out, self.replicas)
        assert self._result is not None
        return self._result.rebuild(wrapped)


def _spec(variable: VariableLike) -> PartitionSpec:
    return _STACKED if is_per_replica_variable(variable) or has_split_rows(variable) else _SHARED


def _constrained(value: jax.Array, layout: NamedSharding | None) -> jax.Array:
    return value if layout is None else jax.lax.with_sharding_constraint(value, layout)


def _component(stacked: jax.Array) -> jax.Array:
    return stacked.reshape(stacked.shape[1:])


def _name(fn: PyTreeFunction) -> str:
    return getattr(fn, "__qualname__", repr(fn))
