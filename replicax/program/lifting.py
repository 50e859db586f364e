"""Lifting: from Python that reads and assigns variables to a compiled pure function.

A function is traced once (`program/tracing.py`; nothing is computed), which shows what variables it reads and assigns,
and creates those that layers make on their first call. The traced program is kept, and is now a function

    (values of the assigned variables, values of the others, arguments) -> (new values, results)

which is compiled with the first group's buffers donated, so that state is updated in place
(`program/compiled_pass.py`).

For example, the step of a loop that adds to a variable `w`:

    program = Program(lambda: step, structure, [batch], [False], None)   # traces: reads w, assigns w
    program([batch])         # runs `([w's array], [], [], [batch]) -> ([new array], [loss])`, and stores the new array
    program.written          # [w]
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence

import jax
from jax.extend import core as jex_core

import replicax.context as context
import replicax.runtime.activity as activity
from replicax.compat.jax_errors import lacks_memory
from replicax.compat.jax_tracing import Trace, is_tracing
from replicax.contracts import upper_rooms
from replicax.contracts.strategy import CompiledStep, StrategyBase, or_null
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ProgramError
from replicax.program.bound_variables import BoundVariables
from replicax.program.capture_changes import Change, Watched, arrays_outside
from replicax.program.compiled_pass import Arrays, CompiledPass, Returned
from replicax.program.flax.modules import PassedModules, UsedModules
from replicax.program.flax.variables import changes_taken_back, flax_state, kept_changes
from replicax.program.frames import ProgramFrame
from replicax.program.global_view import GlobalView
from replicax.program.hints.advice import advise_of_lost_state, advise_of_zeros
from replicax.program.host_arguments import HostArguments
from replicax.program.ir.jaxprs import constants_of, equations_in
from replicax.program.kept_layouts import KnownLayouts, layout_in
from replicax.program.pytrees import Structure, flatten_outputs
from replicax.program.results import Counts, marked_with
from replicax.program.storing import shown_names
from replicax.program.tracing import Pass, trace_function
from replicax.runtime import clock
from replicax.runtime.garbage import collected_later
from replicax.typing import Leaf, PyTree, PyTreeFunction


class Program:
    """One compiled signature of a function."""

    def __init__(
        self,
        get_fn: Callable[[], PyTreeFunction],  # A program that a strategy keeps must not keep the function alive.
        structure: Structure,
        arrays: Sequence[jax.Array | jax.ShapeDtypeStruct],
        donate: Sequence[bool],
        replicas: int | None,  # if the arguments tell; a partial batch runs on fewer than the strategy has
        view: GlobalView | None = None,  # of a function over global arrays; None for one that calls `strategy.run`
        get_users: Callable[[], PyTreeFunction] | None = None,
        earlier: Sequence[tuple[Program, Change]] = (),
    ):
        self._get_fn, self._structure, self._view = get_fn, structure, view
        self._planner = context.current().planner
        self._get_users = get_users or get_fn  # The user's function, where `get_fn` returns one that calls it.
        name = self._name()
        objects = [leaf for _, leaf in structure.static]
        self._modules = UsedModules(self._get_users(), structure)
        if clock.running is not None:
            clock.makes(name, _code_of(self._get_users()), map(_kind, arrays))
        before = set() if is_tracing() else arrays_outside(self._get_users(), objects)
        with activity.phase(activity.COMPILE), collected_later():
            passes = self._trace(name, arrays, replicas)
            # If the function turns out to be one of the earlier programs still, that one is taken.
            same = next(((each, change) for each, change in earlier if each._is_made_by(passes)), None)
            own = functools.partial(HostArguments.of, self._get_users(), structure, arrays)
            *first, last = (
                [same[0]._last]
                if same is not None
                else [CompiledPass(name, traced, donate, view, own) for traced in passes]
            )
        self._last: CompiledPass = last
        #: The programs of the first calls, in which the function builds variables.
        self._first = first
        self._building = threading.RLock()  # Threads run each of them once, and what comes after it later.
        self.replaced = same and same[0]  # which of `earlier` it is; None if it is another program
        self.asked = last.returned.asked
        shards = or_null(last.strategy).placement.shards_variables
        # How the arguments are sharded over devices, where the strategy does that: the program is right for it.
        self.layouts = list(map(layout_in, arrays)) if shards and view is None else None
        assert last.traced.function is not None
        self._watched = Watched(self._get_users(), objects, constants_of(last.traced.function.program), view is None)
        for where in before & self._watched.traced:
            advise_of_lost_state(last.strategy, name, where)
        if same is not None:
            clock.made(name)  # No first call will tell.
            self._watched.goes_on(same[0]._watched, same[1])
        for each, change in earlier if same is None else ():
            each._watched.depends_on(change)

    def _is_made_by(self, passes: Sequence[Pass]) -> bool:
        """Returns whether a new trace of the function has made this program again."""
        from replicax.program.same_programs import are_same, are_same_structures

        old, new = self._last, passes[-1]
        assert old.traced.function is not None and new.function is not None
        if len(passes) > 1 or self._first or not are_same(old.traced.function, new.function):
            return False
        was, is_now = old.returned, new.frame.returned
        return (
            are_same_structures(was.structure, is_now.structure)
            and not (was.changes or is_now.changes)
            and dataclasses.replace(was, structure=is_now.structure) == is_now
        )

    def _name(self) -> str:
        return getattr(self._get_fn(), "__name__", "program")

    def _trace(self, name: str, arrays: Sequence[jax.Array | jax.ShapeDtypeStruct], replicas: int | None) -> list[Pass]:
        argument_counts, layouts = [marked_with(array) for array in arrays], list(map(layout_in, arrays))

        def new_frame(outside: Trace, arrays: Arrays) -> ProgramFrame:
            frame = ProgramFrame(outside)
            frame.replicas = replicas
            frame.strategy = context.current().strategy if self._view is None else self._view.strategy
            frame.counts = Counts(arrays, argument_counts)
            frame.layouts = KnownLayouts(arrays, layouts)
            return frame

        passes = trace_function(name, self._call, arrays, new_frame)
        frame = passes[-1].frame
        if frame.passed_by:
            advise_of_zeros(frame.strategy, name, frame.passed_by.values())
        return passes

    def _call(self, frame: ProgramFrame, arrays: Arrays) -> list[jax.Array]:
        """Calls the function while it is traced; returns the arrays of its result."""
        args, kwargs = self._structure.rebuild(arrays)
        modules = PassedModules((args, kwargs))
        strategy = context.current().strategy if self._view is None else self._view.strategy
        with changes_taken_back(frame), flax_state(), context.entered(frame=frame, strategy=strategy):
            self._modules.note_in(frame)
            result = self._get_fn()(*args, **kwargs)
            frame.update_rows_at_end()
            modules.check_returned(result)
            changes = kept_changes(frame)
            leaves, structure = flatten_outputs(result)
        counted, passed = frame.counts.of_results(leaves)
        layouts = frame.layouts.of_results(leaves) if or_null(frame.strategy).placement.shards_variables else {}
        frame.returned = Returned(structure, counted, passed, frame.counts.asked, changes, layouts)
        return leaves

    def __call__(self, arrays: Arrays) -> PyTree:
        """Runs the program on arguments of its signature, updates the variables and returns the result."""
        if self._planner is not None:
            return self._told(self._planner, arrays)
        try:
            return self._run(arrays) if self._first else self._last(arrays)
        except RuntimeError as error:
            told = upper_rooms.load(upper_rooms.OUT_OF_MEMORY)(self, arrays, error) if _lacks_memory(error) else None
            if told is None:
                raise
            raise told from None

    def _run(self, arrays: Arrays) -> PyTree:
        """Runs the first of the programs that no call has run yet."""
        with self._building:
            if self._first:
                result = self._first[0](arrays)
                del self._first[0]
                return result
        return self._last(arrays)

    def _told(self, planner: Callable[[Program, Arrays], None], arrays: Arrays) -> PyTree:
        """Runs it, and then tells the planner, once all variables exist."""
        result = self._run(arrays)
        planner(self, arrays)
        return result

    def fits(self, arrays: Arrays) -> bool:
        """Returns whether the arguments count, and are cut, as they did and were when the program was traced."""
        if self.layouts is not None and self.layouts != list(map(layout_in, arrays)):
            return False
        return not self.asked or all(marked_with(arrays[i]) == replicas for i, replicas in self.asked.items())

    def changed(self, structure: Structure) -> Change | None:
        """Returns what the function would find outside of its arrays that is not what it was; None if all is."""
        if self._modules.seen and self._modules.changed():
            return Change("a module of flax")
        return self._watched.changed(self._get_users, structure.static)

    def renew_conversions(self) -> None:
        """Has the next trace find the present values of the arrays that this program has captured."""
        self._watched.renew_conversions()

    @property
    def strategy(self) -> StrategyBase | None:
        """The strategy that the program runs under; None without one."""
        return self._last.strategy

    @property
    def written(self) -> list[VariableLike]:
        return list(self._last.variables.written)

    @property
    def result(self) -> Structure:
        """How the function's result is rebuilt from the program's."""
        return self._last.returned.structure

    def equations(self) -> Iterator[jex_core.JaxprEqn]:
        """Yields what the function computes, as it was traced: equations, and those in them at any depth."""
        assert self._last.traced.function is not None
        yield from equations_in(self._last.traced.function.program)

    def parts(self) -> tuple[CompiledStep, list[VariableLike], list[VariableLike]]:
        """Returns the compiled function and the variables that it takes: those that it updates, and the others."""
        for each in self._first:
            each.traced.frame.accesses.lose()
        if self._first:
            names = shown_names([*self._first[0].traced.frame.accesses.first_values.values()])
            raise ProgramError(
                f"{self._name()!r} gives variables that are made in its first call their first values ({names}), by "
                "the `build` of a layer or an optimizer, say. Build them before, in the strategy's scope: "
                "optimizer.build(model.trainable_variables), layer.build(shape)."
            )
        return self._last.compiled, list(self._last.variables.updated), list(self._last.variables.constant)

    def lower(self, arrays: Arrays) -> jax.stages.Lowered:
        return self._last.lower(arrays)

    def trace(self, arrays: Arrays) -> jax.stages.Traced:
        """Returns the program as JAX traces it, with the values of its variables before the arguments.

        Raises:
            ProgramError: The strategy cuts steps in parts, each of them a program.
        """
        return self._last.trace(arrays)

    @property
    def name(self) -> str:
        return self._name()

    @property
    def variables(self) -> BoundVariables:
        """The variables, and where they live in the program."""
        return self._last.variables

    @property
    def donated(self) -> list[bool]:
        """Which arrays among the arguments it overwrites."""
        return self._last.donate

    def arguments(self, arrays: Sequence[Leaf]) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Returns the arguments of the function, with `arrays` in the places of their arrays."""
        args, kwargs = self._structure.rebuild(arrays)
        return args, kwargs


def _code_of(fn: PyTreeFunction) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _kind(array: jax.Array | jax.ShapeDtypeStruct) -> str:
    return f"{array.dtype}{list(array.shape)}" if hasattr(array, "shape") else type(array).__name__


def _lacks_memory(error: RuntimeError) -> bool:
    return any(isinstance(each, RuntimeError) and lacks_memory(each) for each in (error, error.__cause__))
