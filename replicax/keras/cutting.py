"""Keras's training step, cut at its gradients: for strategies that update variables elsewhere than they compute."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from replicax.errors import ProgramError
from replicax.program.jaxprs import marked_as_gradient


@contextlib.contextmanager
def gradients_marked(optimizer: Any) -> Iterator[None]:
    """Marks what a training step that is traced in the `with` block gives to its optimizer as gradients.

    Args:
        optimizer: The optimizer; None if there is none.
    """
    if optimizer is None:
        yield
        return
    apply = optimizer.stateless_apply

    def stateless_apply(optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        marked = [None if gradient is None else marked_as_gradient(gradient) for gradient in grads]
        return apply(optimizer_variables, marked, trainable_variables)

    own = vars(optimizer)  # What stands there goes before the method of the class, and Keras does not track it.
    own["stateless_apply"] = stateless_apply
    try:
        yield
    finally:
        del own["stateless_apply"]


class CutStep:
    """A step `(state, data) -> (outputs, state)` in two halves: see `Strategy.compile_cut`.

    Args:
        step: The step.
        groups: The variables of the state.
        strategy: Compiles the halves.
        optimizer: The optimizer that the step calls; None if it calls none.
    """

    def __init__(self, step: Callable[..., Any], groups: Sequence[Sequence[Any]], strategy: Any, optimizer: Any):
        self._step, self._strategy, self._optimizer = step, strategy, optimizer
        self._variables = list(itertools.chain(*groups))
        self._lengths = [len(group) for group in groups]
        self._halves: dict[Any, Any] = {}

    def __call__(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Makes a step; the buffers of `state` are used for the new one."""
        update, inputs, results_of = self.staged(state, data)
        return results_of(update(*inputs))

    def staged(self, state: Any, data: Any) -> tuple[Callable[..., Any], Sequence[Any], Callable[[Any], Any]]:
        """Runs the first half; returns the second, its arguments, and what makes the results of what it returns."""
        leaves, treedef = jax.tree_util.tree_flatten(data)
        kind = treedef, *((leaf.shape, leaf.dtype) for leaf in leaves)
        arguments: tuple[Any, ...] = (list(itertools.chain(*state)), [], [], data)
        if kind in self._halves:
            update, inputs, results_of = self._halves[kind].staged(*arguments)
        else:
            update, inputs, results_of = self._first(kind, arguments)

        def outputs_and_state(returned: Any) -> tuple[Any, Any]:
            values, outputs = results_of(returned)
            return outputs, self._grouped(values)

        return update, inputs, outputs_and_state

    def _first(self, kind: Any, arguments: Sequence[Any]) -> tuple[Any, Any, Any]:
        halves = self._compiled(self._optimizer)
        try:
            staged = halves.staged(*arguments)
        except ProgramError:
            # A gradient follows from an update just before. Uncut, what has been updated is sent instead of gradients.
            halves = self._compiled(None)
            staged = halves.staged(*arguments)
        self._halves[kind] = halves
        return staged

    def _compiled(self, optimizer: Any) -> Any:
        def step(state: list[Any], _others: list[Any], _donated: list[Any], data: Any) -> tuple[list[Any], Any]:
            with gradients_marked(optimizer):
                outputs, new = self._step(self._grouped(state), data)
            return list(itertools.chain(*new)), outputs

        step.__name__ = step.__qualname__ = getattr(self._step, "__name__", "step")
        replicas = self._strategy.num_replicas_in_sync
        return self._strategy.compile_cut(step, self._variables, self._variables, replicas)

    def _grouped(self, values: Sequence[Any]) -> tuple[list[Any], ...]:
        remaining = iter(values)
        return tuple(list(itertools.islice(remaining, length)) for length in self._lengths)
