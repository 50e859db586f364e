"""`Model.fit`, `evaluate` and `predict` under a strategy: the global view, partitioned by XLA.

A model made in a strategy's scope remembers the strategy. Its step functions are Keras's own (`train_step`,
`test_step`, `predict_step`), and each is a program (`program/lifting.py`) over global arrays: the variables placed as
the strategy says, each batch split along its rows. The result is that of one device: batch normalisation sees the
global batch, and random numbers do not depend on the number of devices. Everything around the steps (epochs,
callbacks, logs) is Keras's.

Keras's loops take the values of all variables out of them, and hand them from step to step. Programs want them in the
variables. So the functions that the loops call put back what Keras has taken, and return a state without any values,
which Keras leaves out when it gives variables their values back. Thus between steps a variable has its newest value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

import replicax.runtime.activity as activity
from replicax.cluster.signing import pickled, unpickled
from replicax.contracts.group import Group, current_group
from replicax.contracts.strategy import StrategyBase, owner_of
from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import ArgumentError
from replicax.keras.all_workers import has_workers
from replicax.keras.feeding import Feed, is_wrong_where_padded
from replicax.keras.loop_state import Progress
from replicax.keras.steps import KerasStep, KerasSteps, State
from replicax.program.function import ProgramCache
from replicax.program.global_view import GlobalView
from replicax.program.hints.advice import advise_of_uncompressed
from replicax.program.lifting import Program
from replicax.program.storing import store_values
from replicax.runtime.calls import Calls
from replicax.runtime.transfer import host_copy, put
from replicax.typing import PyTree
from replicax.variables import check_owner

if TYPE_CHECKING:
    import keras

    from replicax.keras.kept_steps import KeptSteps

#: The function that Keras's loops call: (state, iterator of batches) -> (outputs, state).
LoopStep = Callable[[State, Iterator[PyTree]], tuple[PyTree, State]]


_OUTPUTS = "the outputs of a step"


class ModelMemory(Protocol):
    """The memory that a model of a strategy has of its loops."""

    progress: Progress | None  # of the running `fit`, where workers may come and go
    kept: KeptSteps | None  # those of the running `fit`, where `ReplicaDigest` keeps them

    def count_step(self, batch: PyTree) -> None:
        """Counts a step that has been made with a batch; None for a prediction, whose batch has no targets."""


class RunnableStep(NamedTuple):
    """A step of a model, ready to run."""

    step: KerasStep
    feed: Feed  # places its batches
    run: Callable[[PyTree], PyTree]  # makes the step with a batch


class StepFunctions:
    """Makes the functions that Keras's loops call for each step of one model."""

    def __init__(self, model: keras.Model, strategy: StrategyBase, memory: ModelMemory):
        self._model, self._strategy, self._memory = model, strategy, memory
        self._steps = KerasSteps(model)

    def train(self) -> LoopStep:
        """Returns the function that makes `steps_per_execution` training steps."""
        options = getattr(self._strategy, "communication_options", None)  # Strategies without a mesh have none.
        if options is not None and options.compression is not None:
            advise_of_uncompressed(self._strategy, options.compression)
        return self._made(self._steps.train, trains=True)

    def training_program(self, batch: PyTree) -> tuple[Program, list[jax.Array]]:
        """Returns the traced program of a training step with a batch, and the arrays of the batch."""
        _, feed, run = self._compiled(self._steps.train())
        if not isinstance(run, _CompiledStep):
            raise ArgumentError(
                f"The steps of model {self._model.name!r} are not compiled, since it runs eagerly: call "
                "model.compile(..., run_eagerly=False, jit_compile='auto')."
            )
        return run.program(feed.placed(batch))

    def test(self) -> LoopStep:
        """Returns the function that makes `steps_per_execution` evaluation steps."""
        return self._made(self._steps.test)

    def predict(self) -> LoopStep:
        """Returns the function that makes `steps_per_execution` prediction steps."""
        return self._made(self._steps.predict, predicts=True)

    def _made(self, make: Callable[[], KerasStep], trains: bool = False, predicts: bool = False) -> LoopStep:
        one_step = _LoopStep(lambda: self._compiled(make()), self._memory, trains, predicts)
        # Keras knows how to repeat a step `steps_per_execution` times and to join what predictions return.
        return _repeated(one_step, self._model.steps_per_execution, joins_outputs=predicts)

    def _compiled(self, step: KerasStep) -> RunnableStep:
        model, strategy = self._model, self._strategy
        for variable in step.variables:
            check_owner(owner_of(variable), strategy, name_of(variable))
        strategy.check_layouts(step.groups[0])
        is_compiled = not model.run_eagerly and model.jit_compile
        if not is_compiled and strategy.blocks is not None:
            raise ArgumentError(
                f"numbers='bitwise' compiles each step, and model {model.name!r} runs operation by operation, with "
                "other bits: call model.compile(..., run_eagerly=False, jit_compile='auto')."
            )
        if not is_compiled:
            # Nothing that is not traced can be cut.
            feed = Feed.at(strategy.placement.home) if strategy.cuts_steps else Feed.over(strategy)
            return RunnableStep(step, feed, _EagerStep(step, strategy))
        # Values of variables tell a program its device, to which it takes what it is given.
        feed = Feed.over(strategy, to_program=bool(step.variables) and not strategy.cuts_steps)
        # Elsewhere there is one device, or an update of its own, and marks would only take time.
        sums_gradients = not strategy.cuts_steps and strategy.num_replicas_in_sync > 1 and step.optimizer is not None
        view = GlobalView(strategy, _shardings(step, strategy), sums_gradients)
        return RunnableStep(step, feed, _CompiledStep(step, feed, view))


class _LoopStep:
    """Makes one step as Keras's loops have it."""

    def __init__(self, make: Callable[[], RunnableStep], memory: ModelMemory, trains: bool, predicts: bool):
        self._make, self._memory, self._trains, self._predicts = make, memory, trains, predicts
        self._runnable, self._world = make(), current_group().number
        self._waiting = activity.phase(activity.FIRST_BATCH)
        self._is_new = True

    def __call__(self, state: State, iterator: Iterator[PyTree]) -> tuple[PyTree, State]:
        """Makes a step; returns its outputs, and a state without values: the variables have them."""
        if any(state):  # A loop begins: since the last one a layer may have been frozen.
            if not self._runnable.step.is_current():
                self._runnable = self._make()
            # Keras's lists are emptied: a program overwrites only what nothing but the variable holds.
            _give_back(self._runnable.step.groups, state)
        nothing: State = ([],) * len(self._runnable.step.groups)
        progress = self._memory.progress if self._trains else None
        if progress is not None and progress.passes(iterator):
            return progress.logs, nothing
        with self._waiting:
            data = next(iterator)
        if self._is_new:
            self._is_new, self._waiting = False, activity.phase(activity.INPUT)
        outputs = current_group().attempt(lambda: self._run(data))
        self._memory.count_step(None if self._predicts else data)
        if progress is not None:
            progress.count()
        return outputs, nothing

    def _run(self, data: PyTree) -> PyTree:
        """Makes the step with the workers that there are now: each time the rows are split among these."""
        group = current_group()
        if self._world != group.number:
            self._runnable, self._world = self._make(), group.number
        run, batch = self._runnable.run, self._runnable.feed.placed(group.renewed(data))
        if self._trains and self._memory.kept is not None and isinstance(run, _CompiledStep):
            self._memory.kept.add(*run.program(batch))
        return run(batch)


def _give_back(groups: Sequence[Sequence[VariableLike]], state: State) -> None:
    """Gives variables the values that Keras has taken out of them, and empties its lists."""
    for group, values in zip(groups, state, strict=True):
        if values:
            store_values(group, values)
            values.clear()


class _CompiledStep:
    """A step as a program over global arrays, compiled for each kind of batch."""

    def __init__(self, step: KerasStep, feed: Feed, view: GlobalView):
        self._step, self._feed, self._view = step, feed, view
        # Marks say where a step is cut, or what is summed over the replicas.
        marked = view.strategy.cuts_steps or view.sums_gradients
        call = step if marked else step.unmarked
        self._programs = self._cache(lambda data: call(feed.constrained(data)))
        # For batches of any number of rows, of which each device then computes all.
        self._of_whole_batches = self._cache(call)
        self._is_right = weakref.WeakKeyDictionary[Program, bool]()

    def _cache(self, step: Callable[[PyTree], PyTree]) -> ProgramCache:
        def named(data: PyTree) -> PyTree:
            return step(data)

        named.__name__ = named.__qualname__ = self._step.__name__
        return ProgramCache(lambda: named, view=self._view)

    def _programs_for(self, data: PyTree) -> ProgramCache:
        rows = self._feed.padded_rows(data)
        if not rows:
            return self._programs
        program, _ = self._programs.program((data,), {})
        if program not in self._is_right:
            self._is_right[program] = not any(is_wrong_where_padded(each, rows) for each in program.equations())
        return self._programs if self._is_right[program] else self._of_whole_batches

    def program(self, data: PyTree) -> tuple[Program, list[jax.Array]]:
        """Returns the traced program for a batch, and the arrays of the batch."""
        return self._programs_for(data).program((data,), {})

    def __call__(self, data: PyTree) -> PyTree:
        return self._programs_for(data)((data,), {})


class _EagerStep:
    """A step that runs operation by operation, for debugging."""

    def __init__(self, step: KerasStep, strategy: StrategyBase):
        self._step, self._strategy = step, strategy
        self._sharding_of = _shardings(step, strategy)
        self._calls = Calls(step.__name__, strategy.placement.spans_processes)

    def __call__(self, data: PyTree) -> PyTree:
        with self._calls.one() as call:
            group = self._strategy.placement.group
            if not group.may_change:
                self._place()
            if call is not None:
                kinds = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(data))
                call.prepare(None, lambda: kinds)
            if self._strategy.counts_steps:
                return self._counted(data)
            if not group.may_change:
                return self._step.eager(data)
            return _eager_again(group, self._step, data, self._place)

    def _counted(self, data: PyTree) -> PyTree:
        trains = self._step.optimizer is not None
        for variable in self._step.variables:
            self._strategy.adopt(variable)
        rows = [leaf.shape[0] for leaf in jax.tree_util.tree_leaves(data) if np.ndim(leaf)]
        # Keras reads variables as a reader would.
        with self._strategy.counted(trains, float(max(rows, default=1))), self._strategy.own_values():
            return self._step.eager(data)

    def _place(self) -> None:
        """Puts the variables where the strategy wants them: new ones, and those that Python has assigned."""
        placement, variables = self._strategy.placement, self._step.variables
        placement.follow(variables)
        homes = list(map(self._sharding_of, variables))
        store_values(variables, placement.load(variables, placement.replicas, homes))


def _eager_again(group: Group, step: KerasStep, data: PyTree, place: Callable[[], None]) -> PyTree:
    """Makes a step that counts on all workers, or on none, where they come and go; returns the whole outputs."""

    def run() -> tuple[PyTree, list[jax.Array]]:
        place()
        homes = {id(variable): array_of(variable).sharding for variable in step.variables}
        outputs, changed = step.computed(data)
        # Operations leave results where they like, and a value elsewhere would count as one to be agreed on.
        new = {id(variable): put(value, homes[id(variable)]) for variable, value in changed}
        values = [new.get(id(variable), array_of(variable)) for variable in step.variables]
        whole = jax.tree.map(_whole, outputs)
        jax.block_until_ready(values)
        return whole, values

    def outcome(result: tuple[PyTree, list[jax.Array]]) -> list[np.ndarray]:
        outputs, values = result
        told = pickled(_OUTPUTS, jax.tree.map(np.asarray, outputs))
        return [np.frombuffer(told, np.uint8), *map(host_copy, values)]

    def adopted(arrays: list[np.ndarray]) -> tuple[PyTree, list[jax.Array]]:
        place()
        homes = [array_of(variable).sharding for variable in step.variables]
        values = [put(value, home) for value, home in zip(arrays[1:], homes, strict=True)]
        return jax.tree.map(jax.numpy.asarray, unpickled(_OUTPUTS, arrays[0].tobytes())), values

    outputs, values = group.executed(run, outcome, adopted)
    store_values(step.variables, values)
    return outputs


def _whole(leaf: PyTree) -> PyTree:
    """Returns all rows of an output as an array of this process."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    if isinstance(leaf.sharding, NamedSharding) and not leaf.is_fully_replicated:
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        leaf = put(leaf, everywhere)
    return jax.numpy.asarray(host_copy(leaf))


def _shardings(step: KerasStep, strategy: StrategyBase) -> Callable[[VariableLike], Sharding | None]:
    """Returns what tells where each variable of a step lives while steps are made."""
    of_optimizer = set(map(id, step.optimizer.variables)) if step.optimizer is not None else set[int]()
    # A callback of the chief may save the model, and no other worker is there then to send its shard.
    is_whole = has_workers(strategy)

    def sharding_of(variable: VariableLike) -> Sharding | None:
        if id(variable) in of_optimizer and not is_whole:
            return strategy.optimizer_sharding(variable)
        return strategy.placement.variable_sharding(variable)

    return sharding_of


def _repeated(one_step: LoopStep, times: int, joins_outputs: bool) -> LoopStep:
    if times == 1:
        return one_step

    def several_steps(state: State, iterator: Iterator[PyTree]) -> tuple[PyTree, State]:
        outputs, state = one_step(state, iterator)
        collected = [outputs]
        for _ in range(times - 1):
            try:
                outputs, state = one_step(state, iterator)
            except StopIteration:
                break
            collected.append(outputs)
        if joins_outputs:
            outputs = jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), *collected)
        return outputs, state

    return several_steps
