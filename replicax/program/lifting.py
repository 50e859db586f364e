"""Lifting: from Python that reads and assigns variables to a compiled pure function.

A function is traced once (`program/tracing.py`; nothing is computed), which shows what variables it reads and assigns,
and creates those that layers make on their first call. What was traced is kept, and is now a function

    (values of the assigned variables, values of the others, arguments) -> (new values, results)

which is compiled with the first group's buffers donated, so that state is updated in place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import replicax.context as context
import replicax.health as health
from replicax.compat.jax_tracing import is_kept_by_jax, is_tracing
from replicax.errors import LayoutError, ProgramError
from replicax.host import host_of
from replicax.program.advice import advise_of_zeros
from replicax.program.buffers import own
from replicax.program.captured import captured_error
from replicax.program.flax_modules import PassedModules
from replicax.program.frames import ProgramFrame
from replicax.program.global_view import GlobalView
from replicax.program.handover import explain_devices, explain_loss, run_and_keep, shown_names, staged, store_values
from replicax.program.host_calls import HostCalls
from replicax.program.jaxprs import constants_of
from replicax.program.pytrees import HeldArrays, Structure, flatten_outputs
from replicax.program.results import Counts, mark, marked_with
from replicax.program.tracing import Pass, trace_function
from replicax.runtime import turns
from replicax.runtime.garbage import collected_later
from replicax.runtime.transfer import put
from replicax.variable_access import array_of, layout_of, name_of
from replicax.variables import lives_elsewhere


@dataclasses.dataclass
class _Returned:
    """What is known of the result of a traced function.

    Attributes:
        structure: How it is rebuilt from arrays.
        counted: Which of the arrays are results of a `run`: pairs of position and replicas.
        passed: Which of them are arguments: pairs of the two positions.
        asked: See `Program`.
    """

    structure: Structure
    counted: list[tuple[int, int]]
    passed: list[tuple[int, int]]
    asked: dict[int, int | None]


class Program:
    """One compiled signature of a function.

    Args:
        get_fn: Returns the function; a program that a strategy keeps must not keep the function alive.
        structure: How the function's `(args, kwargs)` are rebuilt from arrays.
        arrays: The arrays of the first call, for their shapes and dtypes.
        donate: Which of `arrays` the caller gives away.
        replicas: Number of replicas if the arguments tell; a partial batch runs on fewer than the strategy has.
        view: The strategy and the shardings of a function over global arrays; None for one that calls `strategy.run`.

    Attributes:
        asked: Arguments of which it matters how many replicas returned them, and the number that the program is for.
        held: The arrays in arguments that are no arrays, which are constants of the program.
    """

    def __init__(
        self,
        get_fn: Callable[[], Callable[..., Any]],
        structure: Structure,
        arrays: Sequence[Any],
        donate: Sequence[bool],
        replicas: int | None,
        view: GlobalView | None = None,
    ):
        self._get_fn, self._structure, self._donate, self._view = get_fn, structure, list(donate), view
        self._any_donated = any(self._donate)
        self._argument_counts = [marked_with(array) for array in arrays]
        with health.phase(health.COMPILE), collected_later():
            *first, last = self._trace(arrays, replicas)
        self._take(last)
        self.held = HeldArrays(structure, constants_of(self._traced.program) if structure.static else ())
        #: The programs of the first calls, in which the function builds variables.
        self._first = [self._of_first_call(each) for each in first]

    def _of_first_call(self, traced: Pass) -> Program:
        program = copy.copy(self)
        program._first = []
        program._take(traced)
        return program

    def _take(self, traced: Pass) -> None:
        """Becomes the program of one pass of tracing."""
        frame = traced.frame
        assert traced.function is not None
        self._accesses, self._traced, self._returned = frame.accesses, traced.function, frame.returned
        self.asked = self._returned.asked
        self._host_calls = HostCalls(self._name(), self._traced.program)
        self.strategy: Any = frame.strategy
        self.replicas = frame.replicas or (frame.strategy.num_replicas_in_sync if frame.strategy is not None else None)
        self._bind(self._traced.read, self._traced.written)
        self._compiled = self._jit()
        self._calls = health.Calls(self._name(), host_of(frame.strategy).placement.spans_processes)

    def _trace(self, arrays: Sequence[Any], replicas: int | None) -> list[Pass]:
        def new_frame(outside: Any, arrays: Sequence[Any]) -> ProgramFrame:
            frame = ProgramFrame(outside)
            frame.replicas = replicas
            frame.strategy = context.current().strategy if self._view is None else self._view.strategy
            frame.counts = Counts(arrays, self._argument_counts)
            return frame

        passes = trace_function(self._name(), self._call, arrays, new_frame)
        frame = passes[-1].frame
        if frame.passed_by:
            advise_of_zeros(frame.strategy, self._name(), frame.passed_by.values())
        return passes

    def _bind(self, read: list[Any], written: list[Any]) -> None:
        assigned = {id(variable) for variable in written}
        # On a sub-mesh the inputs are views of buffers that other replicas keep: those are not ours to give away.
        in_place = not self._is_partial()
        self._updated = [variable for variable in read if in_place and id(variable) in assigned]
        updated = {id(variable) for variable in self._updated}
        # JAX gives the first result of a shape the first donated buffer of that shape. In this order each variable
        # gets its own back; in any other XLA would have to copy.
        self._written = [*self._updated, *(variable for variable in written if id(variable) not in updated)]
        self._constant = [variable for variable in read if id(variable) not in updated]
        self._elsewhere = [variable for variable in read if lives_elsewhere(variable)]
        self._here = [variable for variable in self._updated if not lives_elsewhere(variable)]
        self._mesh = _mesh_of_layouts(read)
        # Empty without a mesh: the default strategy leaves variables where they are.
        shardings = [(variable, self._sharding(variable)) for variable in read]
        self._placements = [pair for pair in shardings if pair[1] is not None]

    def _is_partial(self) -> bool:
        return self.strategy is not None and self.replicas != self.strategy.num_replicas_in_sync

    def _sharding(self, variable: Any) -> Any:
        layout = layout_of(variable)
        if layout is not None:
            return layout
        if self._view is not None:
            return self._view.sharding_of(variable)
        if self.strategy is not None and self.strategy.mesh is not None:
            return self.strategy.placement.program_sharding(variable, self.replicas)
        return None if self._mesh is None else self._sharding_beside_layouts(array_of(variable))

    def _sharding_beside_layouts(self, value: jax.Array) -> Any:
        """Returns where a variable without a layout lives in a program that has variables over a mesh.

        One that lives nowhere in particular (a step counter) is copied to all of it; one that is there already stays as
        it is. Left alone, XLA would choose, and the program (and others) would be compiled once more.
        """
        if not value.committed:
            return NamedSharding(self._mesh, PartitionSpec())
        return value.sharding if value.sharding.device_set == set(self._mesh.devices.flat) else None

    def _jit(self) -> Any:
        def pure(updated: list[Any], constant: list[Any], donated: list[Any], kept: list[Any]) -> Any:
            values = dict(zip(map(id, self._updated), updated, strict=True))
            values |= zip(map(id, self._constant), constant, strict=True)
            new_values, leaves = self._traced(values, self._merged(donated, kept))
            return [new_values[id(variable)] for variable in self._written], leaves

        pure.__name__ = pure.__qualname__ = self._name()
        if self.strategy is not None and self.strategy.cuts_steps:
            variables = [*self._updated, *self._constant]
            return self.strategy.compile_cut(pure, variables, self._written, self.replicas)
        # Where some devices belong to other processes, each of these must be able to read the results.
        is_read_everywhere = self._is_partial() or self._view is not None
        results = self.strategy.placement.result_sharding(self.replicas) if is_read_everywhere else None
        out_shardings = ([self._sharding(variable) for variable in self._written], results)
        # A function of the host may fail when the program has begun: the old values are kept until it has ended.
        donate = () if self._is_partial() else (2,) if self._host_calls else (0, 2)
        return jax.jit(pure, donate_argnums=donate, out_shardings=out_shardings)

    def _name(self) -> str:
        return getattr(self._get_fn(), "__name__", "program")

    def _call(self, frame: ProgramFrame, arrays: Sequence[Any]) -> list[Any]:
        args, kwargs = self._structure.rebuild(arrays)
        modules = PassedModules((args, kwargs))
        with context.entered(frame=frame, **self._ambient()):
            result = self._get_fn()(*args, **kwargs)
        modules.check_returned(result)
        leaves, structure = flatten_outputs(result)
        counted, passed = frame.counts.of_results(leaves)
        frame.returned = _Returned(structure, counted, passed, frame.counts.asked)
        return leaves

    def _ambient(self) -> dict[str, Any]:
        return {} if self._view is None else {"strategy": self._view.strategy}

    def _merged(self, donated: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        given, others = iter(donated), iter(kept)
        return [next(given) if flag else next(others) for flag in self._donate]

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """Runs the program on arguments of its signature, updates the variables and returns the result."""
        if self._first:
            result = self._first[0](arrays)
            del self._first[0]
            return result
        self._check_caller(arrays)
        with self._calls.one() as call:
            fetched = self._fetched()
            if self._host_calls:
                with turns.of_thread(), self._host_calls.watched(): return self._run(arrays, fetched, call)  # noqa: E701  # fmt: skip
            with turns.of_thread(), turns.DISPATCH: return self._run(arrays, fetched, call)  # noqa: E701  # fmt: skip

    def _check_caller(self, arrays: Sequence[Any]) -> None:
        if self._written and (is_tracing() or any(isinstance(array, jax.core.Tracer) for array in arrays)):
            raise ProgramError(
                "A function that assigns variables was called inside a function that JAX traces (jax.jit, jax.grad, "
                "...). Decorate the outer function with @rx.function instead."
            )
        if self._constant and is_tracing() and is_kept_by_jax():
            raise ProgramError(
                f"{self._name()!r} reads variables ({shown_names(self._constant)}) and was called inside a function "
                "that JAX compiles (jax.jit, or the body of jax.lax.scan, cond, ...), which would keep the values that "
                "they have now for ever. Decorate the outer function with @rx.function instead of jax.jit, or pass the "
                "values in as arguments."
            )

    def _fetched(self) -> dict[int, Any]:
        """Returns the values of the variables that live elsewhere, by `id`; the program may overwrite its own."""
        if not self._elsewhere:
            return {}
        updated = set(map(id, self._updated))
        arrays = {id(each): array_of(each) for each in self._elsewhere}
        return {key: jnp.copy(array) if key in updated else array for key, array in arrays.items()}

    def _run(self, arrays: Sequence[Any], fetched: dict[int, Any], call: health.Call | None) -> Any:
        with turns.DISPATCH: inputs = self._inputs(arrays, fetched)  # noqa: E701  # fmt: skip
        try:
            if call is not None:
                call.prepare((lambda: self._compiled.lower(*inputs)) if self._takes_part() else None)
            new_values, leaves = self._called(inputs)
        except BaseException as error:
            explain_loss(error, self._updated, inputs[0])
            explain_devices(error, self._name())
            told = captured_error(error)
            if told is not None:
                raise told from None
            raise
        if call is not None:
            call.sent(next(iter([*new_values[:1], *leaves[:1]]), None))
        if self._is_partial():
            return self._store_partial(leaves, new_values, arrays)
        if self._returned.counted or self._returned.passed:
            self._mark(leaves, arrays)
        return self.result.rebuild(leaves)

    def _called(self, inputs: Any) -> tuple[list[Any], list[Any]]:
        """Runs the program and stores the new values, unless they have to be sent to other devices first."""
        if not self._takes_part():
            return self._placeholders(inputs)
        if self._is_partial():
            with turns.DISPATCH: return self._compiled(*inputs)  # noqa: E701  # fmt: skip
        with turns.DISPATCH: program, inputs, results_of = staged(self._compiled, inputs)  # noqa: E701  # fmt: skip

        def keep(returned: Any) -> tuple[list[Any], list[Any]]:
            new_values, leaves = results_of(returned)
            if self._host_calls:
                self._host_calls.wait((new_values, leaves))
            store_values(self._written, new_values)
            return new_values, leaves

        return run_and_keep(_in_turn(program) if self._host_calls else program, inputs, keep)

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Returns whether results of `run` among the arguments count as they did when the program was traced."""
        return all(marked_with(arrays[i]) == replicas for i, replicas in self.asked.items())

    def _mark(self, leaves: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Notes on the results which of them are those of a `run`, in the program or before it."""
        for i, replicas in self._returned.counted:
            mark(leaves[i], replicas)
        for i, argument in self._returned.passed:
            mark(leaves[i], marked_with(arrays[argument]))

    @property
    def written(self) -> list[Any]:
        """The variables that the program assigns."""
        return list(self._written)

    @property
    def result(self) -> Structure:
        """How the function's result is rebuilt from the program's."""
        return self._returned.structure

    def parts(self) -> tuple[Any, list[Any], list[Any]]:
        """Returns the compiled function and the variables that it takes: those that it updates, and the others.

        The function is `(updated, others, donated arguments, other arguments) -> (new values, result's arrays)`.

        Raises:
            ProgramError: The first call does something else than the others: it gives variables their first values.
        """
        for program in self._first:
            program._accesses.lose()
        if self._first:
            names = shown_names([*self._first[0]._accesses.first_values.values()])
            raise ProgramError(
                f"{self._name()!r} gives variables that are made in its first call their first values ({names}), by "
                "the `build` of a layer or an optimizer, say. Build them before, in the strategy's scope: "
                "optimizer.build(model.trainable_variables), layer.build(shape)."
            )
        return self._compiled, list(self._updated), list(self._constant)

    def lower(self, arrays: Sequence[Any]) -> jax.stages.Lowered:
        """Returns the program as JAX lowers it."""
        return self._compiled.lower(*self._inputs(arrays, self._fetched()))

    def _inputs(
        self, arrays: Sequence[Any], fetched: dict[int, Any]
    ) -> tuple[list[Any], list[Any], list[Any], Sequence[Any]]:
        if self._is_partial():
            arrays = [self.strategy.placement.shrunk(array, self.replicas) for array in arrays]
        donated: list[Any] = []
        kept = arrays
        if self._any_donated:
            donated = [array for array, flag in zip(arrays, self._donate, strict=True) if flag]
            kept = [array for array, flag in zip(arrays, self._donate, strict=True) if not flag]
        if self._is_partial():
            constant = self._loaded([(variable, self._sharding(variable)) for variable in self._constant])
        else:
            self._place()
            own(self._here)
            constant = _values(self._constant, fetched)
        return _values(self._updated, fetched), constant, donated, kept

    def _loaded(self, placements: Sequence[tuple[Any, Any]]) -> list[jax.Array]:
        """Returns the values of variables at their shardings, those of a strategy all at once."""
        if self.strategy is None or self.strategy.mesh is None:
            return [put(array_of(variable), sharding) for variable, sharding in placements]
        strategys = [variable for variable, _ in placements if layout_of(variable) is None]
        homes = None if self._view is None else list(map(self._view.sharding_of, strategys))
        values = iter(self.strategy.placement.load(strategys, self.replicas, homes))
        return [
            next(values) if layout_of(variable) is None else put(array_of(variable), sharding)
            for variable, sharding in placements
        ]

    def _takes_part(self) -> bool:
        """Returns whether a device of this process is among those that the program runs on."""
        return not self._is_partial() or self.strategy.placement.takes_part(self.replicas)

    def _placeholders(self, inputs: Any) -> tuple[list[Any], list[Any]]:
        """Returns what the program returns elsewhere, with other numbers; its real results are sent here."""
        return jax.tree_util.tree_map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(self._compiled, *inputs))

    def _store_partial(self, leaves: list[Any], new_values: list[Any], arrays: Sequence[Any]) -> Any:
        if self._host_calls:
            self._host_calls.wait((new_values, leaves))
        with turns.DISPATCH: return self._stored_partial(leaves, new_values, arrays)  # noqa: E701  # fmt: skip

    def _stored_partial(self, leaves: list[Any], new_values: list[Any], arrays: Sequence[Any]) -> Any:
        placement = self.strategy.placement
        stored = placement.stored(self._written, new_values)
        leaves = list(placement.spread(leaves))
        self._mark(leaves, arrays)
        result = placement.rejoined(self.result.rebuild(leaves), self.replicas)
        store_values(self._written, stored)
        return result

    def _place(self) -> None:
        """Moves variables onto the mesh that are not there yet: they are new, or were assigned outside of a program."""
        new = []
        for placement in self._placements:
            value, sharding = array_of(placement[0]), placement[1]
            if (value.sharding is not sharding and value.sharding != sharding) or not value.committed:
                new.append(placement)
        if new:
            # Also where a function is being traced: a variable outlives the trace.
            with jax.ensure_compile_time_eval():
                values = self._loaded(new)
            store_values([variable for variable, _ in new], values)


def _in_turn(program: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the call of a program that is waited for afterwards, without its turn."""

    def call(*inputs: Any) -> Any:
        with turns.DISPATCH: return program(*inputs)  # noqa: E701  # fmt: skip

    return call


def _mesh_of_layouts(variables: Sequence[Any]) -> Any:
    """Returns the mesh of the variables that have a layout, None if there are none.

    Raises:
        LayoutError: They live over different devices: no one program can use them.
    """
    first = None
    for variable in variables:
        layout = layout_of(variable)
        if layout is None:
            continue
        if first is None:
            first = variable, layout.mesh
        elif layout.mesh.devices.flatten().tolist() != first[1].devices.flatten().tolist():
            raise LayoutError(
                f"A function uses variables of different devices: {name_of(first[0])!r} lives over {first[1]!r}, "
                f"{name_of(variable)!r} over {layout.mesh!r}. One program runs on one set of devices."
            )
    return None if first is None else first[1]


def _values(variables: Sequence[Any], fetched: dict[int, Any]) -> list[Any]:
    if not fetched:
        return [array_of(variable) for variable in variables]
    known = map(fetched.get, map(id, variables))
    return [array_of(variable) if value is None else value for variable, value in zip(variables, known, strict=True)]
