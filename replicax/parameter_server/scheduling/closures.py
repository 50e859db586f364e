"""Scheduled functions, and the programs that are made of them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError, ContextError
from replicax.parameter_server.actors.messages import Done, SetUp, StepCall
from replicax.parameter_server.compiling.exported_programs import export_programs
from replicax.parameter_server.compiling.growing_tables import growing_tables
from replicax.parameter_server.compiling.recording import PytreeSpec, Recorder
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.scheduling.host import ServedStrategy
from replicax.parameter_server.scheduling.remote_values import RemoteValue, check_arguments
from replicax.parameter_server.scheduling.unused import UnusedObjects
from replicax.parameter_server.scheduling.worker_actors import WorkerActors
from replicax.parameter_server.scheduling.worker_objects import WorkerObjects
from replicax.parameter_server.variables.remote import home_of
from replicax.program.function import Function, WeakProgramCaches, signature
from replicax.program.hints.advice import advise_of_changed_object
from replicax.program.pytrees import Structure, flatten_inputs
from replicax.program.replicas.outer_program import enclosing_program
from replicax.typing import PyTree, PyTreeFunction


@dataclasses.dataclass(eq=False)
class Closure:
    """A function that has been scheduled."""

    id: int  # Servers apply each only once.
    fn: PyTreeFunction
    arrays: list[np.ndarray]  # those among the arguments
    structure: Structure  # how `(args, kwargs)` are rebuilt from them
    value: RemoteValue = dataclasses.field(default_factory=RemoteValue)
    program: LoadedStep | None = None  # for the batches that the worker has

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.fn, "__name__", repr(self.fn))

    def step(self, at_least: tuple[int, ...], exact: bool, set_up: int) -> StepCall:
        """Returns the message that lets a worker run it; if `exact`, variables are pulled for each step."""
        program = self.program
        assert program is not None
        set_up = max(program.set_up, set_up)
        return StepCall(self.id, program.id, tuple(self.arrays), at_least, exact, not exact, set_up)

    def set_result(self, done: Done) -> None:
        """Makes what a worker has answered the result."""
        assert self.program is not None
        self.value._set_result(self.program.traced.result.rebuild(done.results))


@dataclasses.dataclass(frozen=True)
class LoadedStep:
    """A program that workers and servers have, or will have before they run it."""

    id: int
    traced: TracedStep
    set_up: int  # how many set-ups a worker must have done before
    variables: tuple[VariableLike, ...]  # that it reads or assigns


class StepPrograms:
    """The programs of all scheduled functions."""

    def __init__(
        self,
        strategy: ServedStrategy,
        workers: WorkerActors,
        objects: WorkerObjects,
        unused: UnusedObjects,
        copy_to_all_servers: Callable[[Sequence[VariableLike]], None],
    ):
        self._copy_to_all_servers = copy_to_all_servers  # waits until no step is under way
        self._strategy, self._workers, self._objects, self._unused = strategy, workers, objects, unused
        self._caches = WeakProgramCaches[dict[Hashable, LoadedStep]]()
        self._ids, self._closure_ids = itertools.count(), itertools.count()
        self._described: dict[tuple[str, int], PytreeSpec] = {}
        self._lock = threading.RLock()

    def closure(
        self, fn: PyTreeFunction, args: Sequence[PyTree] | None, kwargs: Mapping[str, PyTree] | None
    ) -> Closure:
        """Returns a call of a function as something to schedule; workers and servers have its program."""
        if not callable(fn):
            raise ArgumentError(f"`fn` is a function, best an rx.function, got {type(fn).__name__}: {fn!r:.100}.")
        if enclosing_program() is not None:
            raise ContextError("schedule() was called in a function that is being traced. Call it outside.")
        if not isinstance(args, (list, tuple, type(None))):
            raise ArgumentError(f"`args` is a list or tuple of arguments, got {type(args).__name__}. One: args=(x,).")
        check_arguments((args, kwargs))
        fn = fn.python_function if isinstance(fn, Function) else fn
        arrays, structure = flatten_inputs((tuple(args or ()), dict(kwargs or {})))
        closure = Closure(next(self._closure_ids), fn, [np.asarray(array) for array in arrays], structure)
        self._prepare(closure, {})
        return closure

    def retrace(self, closure: Closure, iterator: int, worker: int) -> None:
        """Gives a closure the program for the batch that a worker has in an iterator."""
        self._prepare(closure, {iterator: self._objects.describe("batch", iterator, worker)})

    def _prepare(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> None:
        """Gives a closure its program, made for these `batches` of iterators, and servers the values assigned here."""
        closure.program = self._program(closure, batches)
        self._strategy.send_changes(closure.program.variables)

    def _program(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> LoadedStep:
        while True:
            try:
                with self._lock:
                    return self._cached(closure, batches)
            except _NeedsCopyError as error:
                # Without the lock: what is under way may need a program before it can end.
                self._copy_to_all_servers(error.variables)

    def _cached(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> LoadedStep:
        key = signature(closure.arrays, closure.structure)
        # A usual batch needs no program of its own.
        batches = {id: d for id, d in batches.items() if self._described.get(("batch", id)) != d}
        cache = self._caches.get(closure.fn, None, lambda get_fn: {})
        kinds = tuple(sorted((id, described.specs) for id, described in batches.items()))
        made = cache.get((key, kinds))
        change = made.traced.changed(closure.fn, closure.structure) if made is not None else None
        if made is not None and change is None:
            return made
        traced, used = self._traced(closure, batches)
        if made is not None and change is not None:
            if change.perhaps and made.traced.is_made_again(traced, change):
                return made
            advise_of_changed_object(self._strategy, closure.name, change.where)
        made = cache[key, kinds] = self._make(traced, used)
        return made

    def _traced(self, closure: Closure, batches: Mapping[int, PytreeSpec]) -> tuple[TracedStep, dict[int, PytreeSpec]]:
        """Returns a closure's traced step, and what the iterators that it uses yield."""
        used: dict[int, PytreeSpec] = {}

        def describe(kind: str, id: int) -> PytreeSpec:
            if kind == "batch" and id in batches:
                used[id] = batches[id]
                return batches[id]
            if (kind, id) not in self._described:
                self._described[kind, id] = self._objects.describe(kind, id)
            if kind == "batch":
                used[id] = self._described[kind, id]
            return self._described[kind, id]

        return TracedStep(closure.fn, closure.structure, closure.arrays, self._strategy, Recorder(describe)), used

    def _make(self, traced: TracedStep, used: Mapping[int, PytreeSpec]) -> LoadedStep:
        if to_copy := self._strategy.placer.to_copy(traced):
            raise _NeedsCopyError(to_copy)
        self._strategy.placer.place_for(traced)
        growing = self._place_growing([*traced.variables, *traced.written])
        specs = {id: tuple((s.shape, s.dtype) for s in described.specs) for id, described in used.items()}
        platforms = sorted(self._workers.platforms)
        programs = export_programs(next(self._ids), traced, specs, platforms, self._strategy.lazy_rows)
        self._strategy.servers.load(programs.servers)
        id = programs.worker.number
        told = self._workers.add_set_up(SetUp("program", (programs.worker,), provides=("program", id)))
        variables = {home_of(v).number: v for v in [*traced.variables, *traced.written, *growing]}
        step = LoadedStep(id, traced, told, tuple(variables.values()))
        self._unused.watch(step, ("program", id), tuple(programs.servers))
        return step

    def _place_growing(self, used: Sequence[VariableLike]) -> list[VariableLike]:
        """Places the growing tables among a step's variables; returns all variables that belong to them."""
        tables = growing_tables(used, self._strategy.variables())
        for table in tables:
            if not home_of(table.index).servers:
                self._strategy.placer.place_together(table.variables)
                self._strategy.servers.load(table.shards())
        return [variable for table in tables for variable in table.variables]


class _NeedsCopyError(Exception):
    """Variables have to be copied to all servers before a step can be made; never reaches the user."""

    def __init__(self, variables: Sequence[VariableLike]):
        super().__init__(variables)
        self.variables = variables
