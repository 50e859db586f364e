"""`Model.fit`, `evaluate` and `predict` under a strategy: the global view, partitioned by XLA.

A model made in a strategy's scope remembers the strategy. Its step functions are Keras's own (`train_step`,
`test_step`, `predict_step`), compiled for global arrays: the state placed as the strategy says, each batch cut along
its rows. The result is that of one device: batch normalisation sees the global batch, and random numbers do not depend
on the number of devices. Everything around the steps (epochs, callbacks, logs) is Keras's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import replicax.health as health
from replicax.compat.keras import mark_variables_as_newest
from replicax.keras.compiled_step import CompiledStep
from replicax.keras.cutting import CutStep
from replicax.keras.feeding import Feed
from replicax.program.buffers import holders
from replicax.program.handover import explain_loss, is_deleted, run_and_keep, staged, store_values
from replicax.program.keras_state import owner_of
from replicax.runtime import turns
from replicax.runtime.transfer import put
from replicax.variable_access import name_of
from replicax.variables import check_owner


class StepFunctions:
    """Makes the functions that Keras's loops call for each step of one model.

    Args:
        model: The model.
        strategy: Its strategy.
        count_step: Called when a step has been made.
        keep_state: Called with the state of each kind of step, which a loop can restore after an error.
    """

    def __init__(
        self, model: Any, strategy: Any, count_step: Callable[[], None], keep_state: Callable[[PlacedState], None]
    ):
        self._model, self._strategy, self._count_step, self._keep_state = model, strategy, count_step, keep_state

    def train(self) -> Callable[[Any, Iterator[Any]], Any]:
        """Returns the function that makes `steps_per_execution` training steps."""
        model = self._model
        groups = [
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        ]
        return self._made(model.train_step, groups, joins_outputs=False, optimizer_group=2)

    def test(self) -> Callable[[Any, Iterator[Any]], Any]:
        """Returns the function that makes `steps_per_execution` evaluation steps."""
        model = self._model
        groups = [model.trainable_variables, model.non_trainable_variables, model.metrics_variables]
        return self._made(model.test_step, groups, joins_outputs=False)

    def predict(self) -> Callable[[Any, Iterator[Any]], Any]:
        """Returns the function that makes `steps_per_execution` prediction steps."""
        model = self._model

        def predict_step(state: Any, data: Any) -> Any:
            outputs, non_trainable = model.predict_step(state, data)
            return outputs, (state[0], non_trainable)

        groups = [model.trainable_variables, model.non_trainable_variables]
        return self._made(predict_step, groups, joins_outputs=True)

    def _made(
        self, step: Callable[..., Any], groups: list[Any], joins_outputs: bool, optimizer_group: int | None = None
    ) -> Callable[..., Any]:
        for variable in itertools.chain(*groups):
            check_owner(owner_of(variable), self._strategy, variable.path)
        self._strategy.check_layouts(groups[0])
        at_home, in_update = self._strategy.placement.variable_sharding, self._strategy.optimizer_sharding
        shardings = tuple(
            [(in_update if i == optimizer_group else at_home)(variable) for variable in group]
            for i, group in enumerate(groups)
        )
        placed = PlacedState(self._strategy, groups, shardings)
        feed, run = self._compiled(step, groups, shardings, trains=optimizer_group is not None)
        calls = health.Calls(getattr(step, "__name__", "step"), self._strategy.placement.spans_processes)

        def one_step(state: Any, iterator: Iterator[Any]) -> Any:
            before = placed.last
            try:
                with health.phase(health.FIRST_BATCH if calls.is_new else health.INPUT):
                    data = next(iterator)
                with calls.one() as call:
                    outputs, state = _called(run, placed(state), feed.placed(data), call, placed.keep)
                self._count_step()
            except BaseException as error:
                placed.restore(state, is_new=placed.last is not before)
                mark_variables_as_newest(self._model)
                explain_loss(error, placed.variables, [variable._value for variable in placed.variables])
                raise
            return outputs, state

        self._keep_state(placed)
        # Keras knows how to repeat a step `steps_per_execution` times and to join what predictions return.
        return _repeated(one_step, self._model.steps_per_execution, joins_outputs)

    def _compiled(
        self, step: Callable[..., Any], groups: list[Any], shardings: Any, trains: bool
    ) -> tuple[Feed, Callable[..., Any]]:
        """Returns the step as it is run, and what places the batches for it."""
        model, strategy = self._model, self._strategy
        is_compiled = not model.run_eagerly and model.jit_compile
        if strategy.cuts_steps and not is_compiled:
            return Feed.at(strategy.placement.home), step  # Nothing that is not traced can be cut.
        feed = Feed.over(strategy)
        run = feed.constrained(step)
        if strategy.cuts_steps:
            return feed, CutStep(run, groups, strategy, model.optimizer if trains else None)
        if is_compiled:
            # Where some devices belong to other processes, each of these must be able to read the results.
            outputs = strategy.placement.result_sharding(strategy.num_replicas_in_sync)
            run = CompiledStep(run, (outputs, shardings))
        return feed, run


def _called(
    run: Callable[..., Any], state: Any, data: Any, call: health.Call | None, keep: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Runs the compiled step; one that all workers run together is compared with theirs before the first time."""
    if call is not None:
        lower = getattr(run, "lower", None)  # Without it the step runs eagerly.
        call.prepare(lower and (lambda: lower(state, data)), lambda: _signature(data))
    if isinstance(run, (CompiledStep, CutStep)):
        with turns.of_thread(): outputs, state = _run(run, state, data, keep)  # noqa: E701  # fmt: skip
    else:
        outputs, state = _run(run, state, data, keep)
    if call is not None:
        call.sent(next((group[0] for group in state if group), None))
    return outputs, state


def _run(run: Callable[..., Any], state: Any, data: Any, keep: Callable[[Any], Any]) -> tuple[Any, Any]:
    program, inputs, results_of = staged(run, (state, data))
    result: tuple[Any, Any] = run_and_keep(program, inputs, lambda returned: keep(results_of(returned)))
    return result


def _signature(data: Any) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(data))


class PlacedState:
    """Puts a model's state where the strategy wants it, when it is not what the last step returned.

    Keras hands it over at the beginning of a loop, and callbacks may have replaced some of it in between (a learning
    rate, restored weights). The next step overwrites the buffers, so one that somebody else holds is copied first:
    Keras lets weights and their moving averages share theirs.
    """

    def __init__(self, strategy: Any, groups: list[Any], shardings: Any):
        self._strategy = strategy
        self.variables, self._shardings = list(itertools.chain(*groups)), list(itertools.chain(*shardings))
        self._lengths = [len(group) for group in groups]
        #: What the last step returned.
        self.last: Any = None

    def __call__(self, state: Any) -> Any:
        if state is self.last:
            return state
        values = [value for group in state for value in group]
        # Known holders are Keras's list, `values`, and the variable if Keras has not taken it from there.
        shared = [holders(values[i]) > 2 + (variable._value is values[i]) for i, variable in enumerate(self.variables)]
        values = [jnp.copy(value) if is_shared else value for value, is_shared in zip(values, shared, strict=True)]
        names = [name_of(variable) for variable in self.variables]
        agreed = self._strategy.placement.agreed(values, names)
        placed = iter([put(value, sharding) for value, sharding in zip(agreed, self._shardings, strict=True)])
        return tuple(list(itertools.islice(placed, length)) for length in self._lengths)

    def keep(self, results: tuple[Any, Any]) -> tuple[Any, Any]:
        """Notes the state among a step's results `(outputs, state)`, which the next step begins with."""
        self.last = results[1]
        return results

    def restore(self, state: Any = None, is_new: bool = False) -> None:
        """Puts the newest state that there is into the variables, after an error.

        Keras takes it from them before the first step of a loop and gives it back after the last, so that it would be
        lost; and what the variables hold may have been given to a step.

        Args:
            state: What the step that has failed began with; None if it was none that failed.
            is_new: Whether the step had been made.
        """
        newest = self.last if is_new or state is None else state
        if newest is None:
            return
        found = [
            (variable, value)
            for variable, value in zip(self.variables, itertools.chain(*newest), strict=True)
            if not is_deleted(value) and (is_new or variable._value is None or is_deleted(variable._value))
        ]
        store_values([variable for variable, _ in found], [value for _, value in found])


def _repeated(one_step: Callable[..., Any], times: int, joins_outputs: bool) -> Callable[..., Any]:
    if times == 1:
        return one_step

    def several_steps(state: Any, iterator: Iterator[Any]) -> Any:
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
