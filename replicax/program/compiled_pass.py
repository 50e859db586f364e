"""One traced pass of a function as a compiled program, and its calls.

A call places the variables, gives the compiled function their values, and stores what it returns. A step on fewer
replicas than the strategy has runs in the processes that have these replicas; its results are sent to the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from replicax.compat.jax_tracing import is_kept_by_jax, trace_state_clean
from replicax.contracts.strategy import CompiledStep, StrategyBase, or_null, owner_of
from replicax.contracts.variable_access import array_of, is_trained, lives_elsewhere, shape_of
from replicax.errors import ProgramError
from replicax.program.bound_variables import BoundVariables
from replicax.program.captured_arrays import captured_error
from replicax.program.flax.modules import around_modules
from replicax.program.flax_changes import ModuleChange, apply_changes
from replicax.program.global_view import GlobalView
from replicax.program.host_arguments import HostArguments
from replicax.program.host_calls import HostCalls
from replicax.program.pytrees import Structure
from replicax.program.replicas.global_sums import RowSums
from replicax.program.replicas.sharded_variables import split_over_replicas
from replicax.program.results import mark, marked_with
from replicax.program.storing import explain_devices, explain_loss, run_and_keep, shown_names, store_values
from replicax.program.tracing import Pass
from replicax.runtime import REPLICA_AXIS, clock, turns
from replicax.runtime.calls import Call, Calls
from replicax.runtime.transfer import check_not_deleted, copy_of, host_copy, with_kind_of
from replicax.typing import PyTree, PyTreeFunction

Arrays: TypeAlias = Sequence[jax.Array]
#: Values of the updated variables, values of the others, donated arguments, other arguments.
Inputs: TypeAlias = tuple[list[jax.Array], list[jax.Array], list[jax.Array], Arrays]
#: New values of the variables, and the result's arrays.
Outputs: TypeAlias = tuple[list[jax.Array], list[jax.Array]]


@dataclasses.dataclass
class Returned:
    """The known facts about the result of a traced function."""

    structure: Structure
    counted: list[tuple[int, int]]  # the arrays that are results of a `run`: position, replicas
    passed: list[tuple[int, int]]  # the arrays that are arguments: position, position of the argument
    asked: dict[int, int | None]  # by argument, how many replicas returned it, where the pass depends on that
    changes: list[ModuleChange]
    layouts: dict[int, NamedSharding]  # by position, where arrays are between calls, sharded over the devices or whole


class CompiledPass:
    """A traced pass as a compiled program."""

    def __init__(
        self,
        name: str,
        traced: Pass,
        donate: Sequence[bool],
        view: GlobalView | None,
        host_arguments: Callable[[], HostArguments | None],
    ):
        assert traced.function is not None
        self._name, self._function, self.donate, self._view = name, traced.function, list(donate), view
        self._any_donated = any(donate)
        frame = traced.frame
        self.traced = traced
        self.returned: Returned = frame.returned
        self.strategy, self._host = frame.strategy, or_null(frame.strategy)
        all_replicas = self._host.num_replicas_in_sync
        self._replicas = (frame.replicas or all_replicas) if frame.strategy is not None else all_replicas
        self._is_partial = self._replicas != all_replicas
        placement = self._host.placement
        #: Whether a device of this process is among those that the program runs on.
        self._takes_part = not self._is_partial or placement.takes_part(self._replicas)
        self._host_calls = HostCalls.of(name, self._function.program)
        self._group = placement.group
        #: How results are sharded over the devices when the program ends; those of a partial batch are cut afterwards.
        self._layouts = {} if self._is_partial or view is not None else self.returned.layouts
        self.variables = BoundVariables(
            self._function.read, self._function.written, self._host, self._replicas, self._view, frame.in_update
        )
        self.compiled = self._jit()  # `Inputs` -> `Outputs`
        self._in_parts = getattr(self.compiled, "staged", None)
        self._calls = Calls(name, placement.spans_processes)
        # A program without replicas that assigns nothing may well look at something that this worker alone has.
        is_common = frame.replicas is not None or bool(self.variables.written)
        self._host_arguments = host_arguments() if placement.spans_processes and is_common else None
        self._is_noted = True  # whether a call is noted: in one process only the first, which compiles
        self._counted_by = self._counters()
        self._is_marked = bool(self.returned.counted or self.returned.passed)
        if self._group.may_change:
            placement.follow([*self.variables.written, *self.variables.constant])

    def _counters(self) -> list[tuple[StrategyBase, bool]]:
        """Returns the strategies that count this program as a step, and for each whether it trains their variables."""
        # They are those of the variables that it assigns, whether or not a scope is open where it is called.
        written = self.variables.written
        if self._host.counts_steps:
            for variable in written:
                self._host.adopt(variable)  # Keras makes those of metrics in its loops, where no scope is open.
            return [(self._host, any(map(is_trained, written)))] if written else []
        owners = [(owner, variable) for variable in written if (owner := owner_of(variable)) is not None]
        trains: dict[int, tuple[StrategyBase, bool]] = {}
        for owner, variable in owners:
            if owner.counts_steps:
                trains[id(owner)] = owner, trains.get(id(owner), (owner, False))[1] or is_trained(variable)
        return list(trains.values())

    def _jit(self) -> CompiledStep:
        variables = self.variables
        sums = None if self._view is None else self._row_sums(self._view)
        evaluated = sums.evaluate if sums is not None and sums.gradients else None

        def pure(
            updated: list[jax.Array], constant: list[jax.Array], donated: list[jax.Array], kept: list[jax.Array]
        ) -> Outputs:
            values = dict(zip(map(id, variables.updated), updated, strict=True))
            values |= zip(map(id, variables.constant), constant, strict=True)
            values |= {key: jax.device_put(values[key], sharding) for key, sharding in variables.offloaded.items()}
            new_values, leaves = self._function(values, self._merged(donated, kept), evaluated)
            return [new_values[id(variable)] for variable in variables.written], leaves

        pure.__name__ = pure.__qualname__ = self._name
        if self._host.cuts_steps:
            taken = [*variables.updated, *variables.constant]
            return self._host.compile_cut(pure, taken, variables.written, self._replicas)
        # Where some devices belong to other processes, each of these must be able to read the results.
        is_read_everywhere = self._is_partial or self._view is not None or self._group.may_change
        results = self._host.placement.result_sharding(self._replicas) if is_read_everywhere else None
        leaves = [self._layouts.get(i, results) for i in range(self.returned.structure.num_arrays)]
        out_shardings = ([variables.sharding(variable) for variable in variables.written], leaves)
        if (blocked := self._blocked_by()) is not None and blocked.blocks is not None:
            from replicax.program.blocks.step import BlockedStep

            mesh = blocked.placement.mesh_for(blocked.num_replicas_in_sync)
            return BlockedStep(pure, blocked.blocks, mesh, out_shardings)
        # A function of the host may fail when the program has begun: the old values are kept until it has ended.
        # Where workers may be lost, they are kept too, and so are the arguments: the program may run once more.
        keeps = self._is_partial or self._group.may_change
        donate = () if keeps else (2,) if self._host_calls else (0, 2)
        return jax.jit(pure, donate_argnums=donate, out_shardings=out_shardings)

    def _blocked_by(self) -> StrategyBase | None:
        """Returns the strategy that wants the program worked off in blocks: its own, or that of its variables."""
        variables = [*self.variables.written, *self.variables.constant]
        strategies = [self._host, *(owner for each in variables if (owner := owner_of(each)) is not None)]
        return next((each for each in strategies if each.blocks is not None), None)

    def _row_sums(self, view: GlobalView) -> RowSums | None:
        """Returns the program with its gradients summed over the replicas, where one device is one replica."""
        if self._host.cuts_steps or not view.sums_gradients:
            return None
        mesh = self._host.placement.mesh_for(self._replicas)
        if mesh.axis_names != (REPLICA_AXIS,) or mesh.size == 1:
            return None
        sharded = (
            (shape_of(each), split_over_replicas(view.sharding_of(each), each)) for each in self.variables.written
        )
        dimensions = {shape: split.dimension for shape, split in sharded if split is not None}
        return RowSums(self._function.program, mesh, dimensions)

    def __call__(self, arrays: Arrays) -> PyTree:
        """Runs the program, updates the variables and returns the result."""
        if not trace_state_clean():
            self._check_caller()
        if not self._counted_by:
            return self._call(arrays)
        with contextlib.ExitStack() as counted:
            for host, trains in self._counted_by:
                counted.enter_context(host.counted(trains, self._weight(arrays)))
            return self._call(arrays)

    def _weight(self, arrays: Arrays) -> float:
        """Returns how much work a call is: rows in a loop of Keras, whose loss is a mean over them."""
        rows = [array.shape[0] for array in arrays if array.ndim] if self._view is not None else []
        return float(max(rows, default=1))

    def _call(self, arrays: Arrays) -> PyTree:
        if self._group.may_change:
            return self._call_again(arrays)
        if not self._is_noted and clock.running is None:
            return self._call_in_turn(arrays, None)
        with self._calls.one() as call:
            result = self._call_in_turn(arrays, call)
        self._is_noted = call is not None
        return result

    def _call_in_turn(self, arrays: Arrays, call: Call | None) -> PyTree:
        fetched = self.variables.fetched()
        if self._host_calls is not None:
            with turns.of_thread(), self._host_calls.watched(): return self._run(arrays, fetched, call)  # noqa: E701  # fmt: skip
        with turns.of_thread(), turns.DISPATCH: return self._run(arrays, fetched, call)  # noqa: E701  # fmt: skip

    def lower(self, arrays: Arrays) -> jax.stages.Lowered:
        return self.compiled.lower(*self._inputs(arrays, self.variables.fetched()))

    def trace(self, arrays: Arrays) -> jax.stages.Traced:
        if self._host.cuts_steps:
            raise ProgramError(
                f"{self._name!r} is cut in parts by {self._host!r}: the gradients and the update are programs of their "
                "own, on other devices."
            )
        compiled: Any = self.compiled  # a function under jax.jit
        traced: jax.stages.Traced = compiled.trace(*self._inputs(arrays, self.variables.fetched()))
        return traced

    def _check_caller(self) -> None:
        """Checks that the program may run inside of a function that JAX traces."""
        if self.variables.written:
            raise ProgramError(
                "A function that assigns variables was called inside a function that JAX traces (jax.jit, jax.grad, "
                "...). Decorate the outer function with @rx.function instead."
            )
        if self.variables.constant and is_kept_by_jax():
            raise ProgramError(
                f"{self._name!r} reads variables ({shown_names(self.variables.constant)}) and was called inside a "
                "function that JAX compiles (jax.jit, or the body of jax.lax.scan, cond, ...), which would keep the "
                "values that they have now forever. Decorate the outer function with @rx.function instead of jax.jit, "
                "or pass the values in as arguments."
            )

    def _run(self, arrays: Arrays, fetched: Mapping[int, jax.Array], call: Call | None) -> PyTree:
        with turns.DISPATCH: inputs = self._inputs(arrays, fetched)  # noqa: E701  # fmt: skip
        try:
            if call is not None:
                lower = (lambda: self.compiled.lower(*inputs)) if self._takes_part else None
                if self._host_arguments is None:
                    call.prepare(lower)
                else:
                    call.prepare(lower, arguments=functools.partial(self._host_arguments.values, arrays))
            new_values, leaves = self._called(inputs)
        except BaseException as error:
            explain_loss(error, self.variables.updated, inputs[0])
            explain_devices(error, self._name)
            told = captured_error(error)
            if told is not None:
                raise told from None
            raise
        if call is not None:
            call.sent(new_values[0] if new_values else leaves[0] if leaves else None)
        if self._is_partial:
            return self._store_partial(leaves, new_values, arrays)
        if self.returned.changes:
            apply_changes(self.returned.changes)
        if self._is_marked:
            self._mark(leaves, arrays)
        return self.returned.structure.rebuild(leaves)

    def _call_again(self, arrays: Arrays) -> PyTree:
        """Runs the program where workers may be lost: it counts when it has ended, and until then changes nothing."""
        from replicax.program.elastic_outcome import heard_outcome, told_outcome

        written, constant = self.variables.written, self.variables.constant
        read: list[jax.Array] = []  # The workers may have agreed on them in this call.

        def run() -> Outputs:
            before = [array_of(variable) for variable in (*written, *constant)]
            try:
                outputs = self._ran(arrays)
            except BaseException:
                # Some workers may have agreed on first values in this call, and some not: all do it again.
                store_values([*written, *constant], before)
                raise
            read[:] = map(array_of, constant)
            return outputs

        def outcome(outputs: Outputs) -> list[np.ndarray]:
            return told_outcome([*outputs[0], *read], outputs[1])

        def adopted(told: list[np.ndarray]) -> Outputs:
            values, leaves = heard_outcome(told, [*written, *constant], self._host.placement)
            store_values(constant, values[len(written) :])
            return values[: len(written)], leaves

        new_values, leaves = self._group.executed(run, outcome, adopted, self._nbytes)
        store_values(self.variables.written, new_values)
        apply_changes(self.returned.changes)
        self._mark(leaves, arrays)
        return self.returned.structure.rebuild(leaves)

    def _ran(self, arrays: Arrays) -> Outputs:
        """Runs the program and returns its outcome when it has ended."""
        with self._calls.one() as call, turns.of_thread():
            with turns.DISPATCH: inputs = self._inputs(arrays, self.variables.fetched())  # noqa: E701  # fmt: skip
            with contextlib.nullcontext() if self._host_calls is None else self._host_calls.watched():
                if not self._takes_part:
                    outputs = self._placeholders(inputs)
                else:
                    with turns.DISPATCH: outputs = self.compiled(*inputs)  # noqa: E701  # fmt: skip
                    if call is not None:
                        call.sent(next(iter([*outputs[0][:1], *outputs[1][:1]]), None))
                    if self._host_calls is not None:
                        self._host_calls.wait(outputs)
                    self._group.wait(outputs)
                return self._everywhere(*outputs)

    def _everywhere(self, new_values: list[jax.Array], leaves: list[jax.Array]) -> Outputs:
        """Returns new values where variables live, and the results as arrays of this process alone."""
        if self._is_partial:
            placement = self._host.placement
            new_values = list(placement.stored(self.variables.written, new_values))
            leaves = list(placement.spread(leaves))
        # So results can be read in later worlds, and mixed with results of these.
        return new_values, [jnp.asarray(with_kind_of(leaf, host_copy(leaf))) for leaf in leaves]

    @functools.cached_property
    def _nbytes(self) -> int:
        return sum(array_of(variable).nbytes for variable in self.variables.written)

    def _inputs(self, arrays: Arrays, fetched: Mapping[int, jax.Array]) -> Inputs:
        check_not_deleted(arrays, f"An argument of {self._name!r}")
        if self._is_partial:
            arrays = [self._host.placement.shrunk(array, self._replicas) for array in arrays]
        donated: list[jax.Array] = []
        kept = arrays
        if self._any_donated:
            kept = [array for array, flag in zip(arrays, self.donate, strict=True) if not flag]
            variables = [*self.variables.written, *self.variables.constant]
            others = {*map(id, kept), *(id(array_of(each)) for each in variables if not lives_elsewhere(each))}
            for array, flag in zip(arrays, self.donate, strict=True):
                if flag:  # An array that a variable or another argument has too is not given away.
                    is_shared = isinstance(array, jax.Array) and id(array) in others
                    donated.append(copy_of(array) if is_shared else array)
                    others.add(id(array))
        updated, constant = self.variables.inputs(fetched)
        return updated, constant, donated, kept

    def _merged(self, donated: Arrays, kept: Arrays) -> list[jax.Array]:
        given, others = iter(donated), iter(kept)
        return [next(given) if flag else next(others) for flag in self.donate]

    def _called(self, inputs: Inputs) -> Outputs:
        """Runs the program and stores the new values, unless they have to be sent to other devices first."""
        if not self._takes_part:
            return self._placeholders(inputs)
        if self._is_partial:
            with turns.DISPATCH: outputs: Outputs = self.compiled(*inputs)  # noqa: E701  # fmt: skip
            return outputs
        if self._in_parts is None and self._host_calls is None:
            return run_and_keep(self.compiled, inputs, self._keep)
        program: PyTreeFunction = self.compiled
        given, results_of = inputs, _itself
        if self._in_parts is not None:
            # Only the last part overwrites its inputs; the others have run by then.
            with turns.DISPATCH: program, given, results_of = self._in_parts(*inputs)  # noqa: E701  # fmt: skip
        if self._host_calls is not None:
            program = _in_turn(program)
        return run_and_keep(program, given, lambda returned: self._keep(results_of(returned)))

    def _keep(self, outputs: Outputs) -> Outputs:
        if self._host_calls is not None:
            self._host_calls.wait(outputs)
        store_values(self.variables.written, outputs[0])
        return outputs

    def _placeholders(self, inputs: Inputs) -> Outputs:
        """Returns what the program returns elsewhere, with other numbers; its real results are sent here."""
        outputs: Outputs = jax.tree_util.tree_map(_placeholder, jax.eval_shape(self.compiled, *inputs))
        return outputs

    def _store_partial(self, leaves: list[jax.Array], new_values: list[jax.Array], arrays: Arrays) -> PyTree:
        if self._host_calls is not None:
            self._host_calls.wait((new_values, leaves))
        with turns.DISPATCH: return self._stored_partial(leaves, new_values, arrays)  # noqa: E701  # fmt: skip

    def _stored_partial(self, leaves: list[jax.Array], new_values: list[jax.Array], arrays: Arrays) -> PyTree:
        placement = self._host.placement
        stored = placement.stored(self.variables.written, new_values)
        cut = {i: layout for i, layout in self.returned.layouts.items() if not layout.is_fully_replicated}
        whole = iter(placement.spread([leaf for i, leaf in enumerate(leaves) if i not in cut]))
        parts = iter(placement.moved([leaves[i] for i in cut], list(cut.values())))
        leaves = [next(parts) if i in cut else next(whole) for i in range(len(leaves))]
        self._mark(leaves, arrays)
        result = around_modules(
            lambda tree: placement.rejoined(tree, self._replicas), self.returned.structure.rebuild(leaves)
        )
        store_values(self.variables.written, stored)
        apply_changes(self.returned.changes)
        return result

    def _mark(self, leaves: Arrays, arrays: Arrays) -> None:
        """Notes on the results which of them are those of a `run`, in the program or before it."""
        for i, replicas in self.returned.counted:
            mark(leaves[i], replicas)
        for i, argument in self.returned.passed:
            mark(leaves[i], marked_with(arrays[argument]))


def _placeholder(result: jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
    is_key = jnp.issubdtype(result.dtype, jax.dtypes.prng_key)
    return jnp.empty(result.shape, result.dtype) if is_key else np.zeros(result.shape, result.dtype)


def _itself(results: PyTree) -> PyTree:
    return results


def _in_turn(program: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Returns the call of a program that is waited for afterwards, without its turn."""

    def call(*inputs: PyTree) -> PyTree:
        with turns.DISPATCH: return program(*inputs)  # noqa: E701  # fmt: skip

    return call
