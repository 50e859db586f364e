"""Scheduled functions, and the programs that are made of them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from replicax.errors import ArgumentError, ContextError
from replicax.parameter_server.actors.messages import SetUp, StepCall
from replicax.parameter_server.compiling.exported_programs import export_programs
from replicax.parameter_server.compiling.traced_step import PytreeSpec, Recorder, TracedStep
from replicax.parameter_server.scheduling.remote_values import RemoteValue, check_arguments
from replicax.parameter_server.variables.remote import home_of
from replicax.program.function import Function, ProgramCache, WeakProgramCaches, signature
from replicax.program.pytrees import Structure, flatten_inputs
from replicax.program.replica import enclosing_program


class Unused(NamedTuple):
    """What nobody refers to any more.

    Attributes:
        provided: What workers may drop: the number of a dataset, iterator or resource, or `("program", number)`.
        servers: The servers that may drop the program, too.
    """

    provided: Any
    servers: tuple[int, ...] = ()


@dataclasses.dataclass(eq=False)
class Closure:
    """A function that has been scheduled.

    Attributes:
        number: Its number.
        fn: The function.
        arrays: The arrays among its arguments.
        structure: How its `(args, kwargs)` are rebuilt from them.
        value: Where its result goes.
        program: What it has been compiled to, for the batches that the worker has.
        lost_workers: How many workers were lost while they had it.
    """

    number: int
    fn: Callable[..., Any]
    arrays: list[np.ndarray]
    structure: Structure
    value: RemoteValue = dataclasses.field(default_factory=RemoteValue)
    program: LoadedStep | None = None
    lost_workers: int = 0

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.fn, "__name__", repr(self.fn))


@dataclasses.dataclass(frozen=True)
class LoadedStep:
    """A program that workers and servers have, or will have before they are asked to run it.

    Attributes:
        number: Its number.
        traced: The step that it is made of.
        set_up: How many things workers must have been told before.
    """

    number: int
    traced: TracedStep
    set_up: int

    def step(self, closure: Closure, at_least: tuple[int, ...], exact: bool, set_up: int) -> StepCall:
        """Returns the message that lets a worker run a closure."""
        set_up = max(self.set_up, set_up)
        return StepCall(closure.number, self.number, tuple(closure.arrays), at_least, exact, not exact, set_up)


class StepPrograms:
    """The programs of all scheduled functions.

    Args:
        strategy: The strategy.
        workers: The workers.
        describe: Asks a worker for the structure of the next batch of an iterator, or of a resource.
        unused: Takes a note of what workers and servers may drop; the garbage collector calls it at any moment.
    """

    def __init__(
        self,
        strategy: Any,
        workers: Any,
        describe: Callable[[str, int], PytreeSpec],
        unused: Callable[[Unused], None],
    ):
        self._strategy, self._workers, self._describe, self._unused = strategy, workers, describe, unused
        self._caches = WeakProgramCaches[ProgramCache]()
        self._numbers, self._closures = itertools.count(), itertools.count()
        self._described: dict[tuple[str, int], PytreeSpec] = {}
        self._lock = threading.RLock()

    def closure(self, fn: Any, args: Any, kwargs: Any) -> Closure:
        """Returns a call of a function as something to schedule, with its program.

        Raises:
            ArgumentError: The function cannot be called, or an argument cannot be sent.
            ContextError: The call is made in a function that is being traced.
        """
        if not callable(fn):
            raise ArgumentError(f"`fn` is a function, best an rx.function, got {type(fn).__name__}: {fn!r:.100}.")
        if enclosing_program() is not None:
            raise ContextError("schedule() was called in a function that is being traced. Call it outside.")
        if not isinstance(args, (list, tuple, type(None))):
            raise ArgumentError(f"`args` is a list or tuple of arguments, got {type(args).__name__}. One: args=(x,).")
        check_arguments((args, kwargs))
        fn = fn.python_function if isinstance(fn, Function) else fn
        arrays, structure = flatten_inputs((tuple(args or ()), dict(kwargs or {})))
        closure = Closure(next(self._closures), fn, [np.asarray(array) for array in arrays], structure)
        closure.program = self.program(closure, {})
        return closure

    def program(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> LoadedStep:
        """Returns the program for a closure, made if there is none.

        Args:
            closure: The closure.
            batches: What iterators yield next where the step will run, as far as it is known to be special.
        """
        while True:
            try:
                with self._lock:
                    return self._found(closure, batches)
            except _ToCopyError as error:
                # Without the lock: what is under way may need a program before it can end.
                self._strategy.copy_to_all_servers(error.variables)

    def _found(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> LoadedStep:
        key = signature(closure.arrays, closure.structure)
        # A usual batch needs no program of its own.
        batches = {number: d for number, d in batches.items() if self._described.get(("batch", number)) != d}
        cache: Any = self._caches.get(closure.fn, None, lambda get_fn: {})  # type: ignore[arg-type,return-value]
        kinds = tuple(sorted((number, described.specs) for number, described in batches.items()))
        if (key, kinds) not in cache:
            cache[key, kinds] = self._make(closure, batches)
        return cache[key, kinds]

    def _make(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> LoadedStep:
        used: dict[int, PytreeSpec] = {}

        def describe(kind: str, number: int) -> PytreeSpec:
            if kind == "batch" and number in batches:
                used[number] = batches[number]
                return batches[number]
            if (kind, number) not in self._described:
                self._described[kind, number] = self._describe(kind, number)
            if kind == "batch":
                used[number] = self._described[kind, number]
            return self._described[kind, number]

        traced = TracedStep(closure.fn, closure.structure, closure.arrays, self._strategy, Recorder(describe))
        if to_copy := self._strategy.placer.to_copy(traced):
            raise _ToCopyError(to_copy)
        self._strategy.placer.place_for(traced)
        specs = {number: tuple((s.shape, s.dtype) for s in described.specs) for number, described in used.items()}
        platforms = sorted(self._workers.platforms)
        programs = export_programs(next(self._numbers), traced, specs, platforms, self._strategy.lazy_rows)
        self._strategy.servers.load(programs.servers)
        number = programs.worker.number
        told = self._workers.tell(SetUp("program", (programs.worker,), provides=("program", number)))
        step = LoadedStep(number, traced, told)
        unused = Unused(("program", number), tuple(programs.servers))
        weakref.finalize(step, self._unused, unused).atexit = False
        return step

    def variables(self, program: LoadedStep) -> list[Any]:
        """Returns the variables that a program has to do with."""
        return list({home_of(v).number: v for v in [*program.traced.variables, *program.traced.written]}.values())


class _ToCopyError(Exception):
    """Variables have to be copied to all servers before a step can be made; never reaches the user."""

    def __init__(self, variables: list[Any]):
        super().__init__(variables)
        self.variables = variables
