"""Keras's functional steps as functions of a batch that read and assign the model's variables.

Keras's `train_step` is `(state, data) -> (logs, state)`, where the state are the values of all variables. As functions
that read variables and assign them the steps are programs like any other: `Model.fit` runs them over global arrays, and
a parameter server cuts them in two and schedules them.

A model may define `train_step(self, data)` in TensorFlow's style instead, which reads and assigns its variables, and
takes gradients by `rx.value_and_grad`. It is traced in a frame that has the values, and that knows the new ones.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax

import replicax.context as context
from replicax.contracts.variable_access import AssignableLike, array_of
from replicax.errors import ArgumentError, ProgramError
from replicax.program.frames import OverrideFrame
from replicax.program.gradients.autodiff import stored_by
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.program.keras.state import keras_scope
from replicax.program.storing import store_values
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

State = tuple[list[jax.Array], ...]
#: The variables that a step has: trainable ones, others, an optimizer's, metrics'.
Groups = Sequence[Sequence[AssignableLike]]
FunctionalStep = Callable[[State, PyTree], tuple[PyTree, State]]


class KerasStep:
    """One of a model's steps, as a function of a batch."""

    def __init__(
        self,
        step: FunctionalStep,
        find_groups: Callable[[], Groups],
        optimizer: keras.optimizers.Optimizer | None = None,
    ):
        # The groups are the state's variables as the model has them now; without an optimizer the step calls none.
        self._step, self._find_groups, self.optimizer = step, find_groups, optimizer
        self.groups = [list(group) for group in find_groups()]
        self.__name__ = self.__qualname__ = getattr(step, "__name__", "step")

    def is_current(self) -> bool:
        """Returns whether the model still has the same variables in the same groups: a layer may have been frozen."""
        return [list(map(id, group)) for group in self._find_groups()] == [list(map(id, each)) for each in self.groups]

    @property
    def variables(self) -> list[AssignableLike]:
        return list(itertools.chain(*self.groups))

    def __call__(self, data: PyTree) -> PyTree:
        """Makes a step inside a program, with what the optimizer gets marked as gradients; returns the outputs."""
        with gradients_marked(self.optimizer):
            return self.unmarked(data)

    def unmarked(self, data: PyTree) -> PyTree:
        """Makes a step inside a program."""
        outputs, changed = self._made(tuple([variable.value for variable in group] for group in self.groups), data)
        for variable, value in changed:
            variable.assign(value)
        return outputs

    def eager(self, data: PyTree) -> PyTree:
        """Makes a step operation by operation, outside of any program; returns the outputs."""
        outputs, changed = self.computed(data)
        store_values([variable for variable, _ in changed], [value for _, value in changed])
        return outputs

    def computed(self, data: PyTree) -> tuple[PyTree, list[tuple[AssignableLike, jax.Array]]]:
        """Makes a step operation by operation, but stores nothing; returns what `_made` returns."""
        return self._made(tuple([array_of(variable) for variable in group] for group in self.groups), data)

    def _made(self, state: State, data: PyTree) -> tuple[PyTree, list[tuple[AssignableLike, jax.Array]]]:
        """Makes a step; returns its outputs, and the variables that it changes with their new values."""
        if not self.is_current():
            raise ProgramError(
                f"The trainable variables of the model have changed while its {self.__name__!r} runs: a layer was "
                "frozen or unfrozen, or got variables. Change them between two calls of fit, and call model.compile "
                "again. The variables have the values of the step before."
            )
        before = list(itertools.chain(*state))
        outputs, new_state = self._step(state, data)
        after = itertools.chain(*new_state)
        return outputs, [
            (variable, new) for variable, old, new in zip(self.variables, before, after, strict=True) if new is not old
        ]


class KerasSteps:
    """Makes the steps of one model."""

    def __init__(self, model: keras.Model):
        self._model = model

    def train(self) -> KerasStep:
        """Returns the training step, which returns logs."""
        model = self._model
        return KerasStep(_functional(model.train_step, self.train_groups), self.train_groups, model.optimizer)

    def test(self) -> KerasStep:
        """Returns the evaluation step, which returns logs."""
        return KerasStep(_functional(self._model.test_step, self.test_groups), self.test_groups)

    def predict(self) -> KerasStep:
        model = self._model
        if takes_data(model.predict_step):
            return KerasStep(functional(model.predict_step, self.layers_variables), self.layers_variables)

        def predict_step(state: State, data: PyTree) -> tuple[PyTree, State]:
            outputs, non_trainable = model.predict_step(state, data)
            return outputs, (state[0], non_trainable)

        return KerasStep(predict_step, self.layers_variables)

    def train_groups(self) -> Groups:
        """Returns the variables of a training step."""
        return [*self.layers_variables(), self._model.optimizer.variables, self._model.metrics_variables]

    def test_groups(self) -> Groups:
        """Returns the variables of an evaluation step."""
        return [*self.layers_variables(), self._model.metrics_variables]

    def layers_variables(self) -> Groups:
        """Returns the variables of a prediction step: trainable ones and others."""
        return [self._model.trainable_variables, self._model.non_trainable_variables]


def _functional(step: Callable[..., PyTree], groups: Callable[[], Groups]) -> FunctionalStep:
    """Returns a model's step as Keras has it, whatever it takes."""
    return functional(step, groups) if takes_data(step) else step


def takes_data(step: Callable[..., PyTree]) -> bool:
    """Returns whether a model's step takes the data alone, and not the values of the variables before it."""
    signature = inspect.signature(step)
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 1
    name = getattr(step, "__qualname__", repr(step))
    raise ArgumentError(
        f"{name}{signature} is no step of a model. Define it as on TensorFlow, {step.__name__}(self, data), with "
        "rx.value_and_grad for gradients; or as Keras has it on JAX, with the values of the variables before the data: "
        f"{step.__name__}(self, state, data)."
    )


def functional(step: Callable[[PyTree], PyTree], find_groups: Callable[[], Groups]) -> FunctionalStep:
    """Returns a step that takes the data alone as Keras's functional one: `(state, data) -> (outputs, state)`."""

    @functools.wraps(step)
    def with_state(state: State, data: PyTree) -> tuple[PyTree, State]:
        groups, outer = find_groups(), context.current().frame
        variables = list(itertools.chain(*groups))
        frame = OverrideFrame(outer, variables, itertools.chain(*state))
        frame.is_of_loss = False
        with context.entered(frame=frame), keras_scope():
            outputs = step(data)
            frame.update_rows_at_end()
            new = [[frame.read(variable) for variable in group] for group in groups]
        known = set(map(id, variables))
        for variable, value in zip(frame.written.values(), frame.new_values(), strict=True):
            if id(variable) not in known:
                stored_by(variable, value, outer)
        return outputs, tuple(new)

    del with_state.__wrapped__  # It has another signature.
    return with_state


def accept_state(model: keras.Model) -> None:
    """Lets Keras's own loops call the steps of a model without a strategy that take the data alone."""
    steps = KerasSteps(model)
    for name, groups in (
        ("train_step", steps.train_groups),
        ("test_step", steps.test_groups),
        ("predict_step", steps.layers_variables),
    ):
        step = getattr(model, name)
        if takes_data(step):
            # An entry here goes before the method of the class, and Keras does not track it.
            vars(model)[name] = _either_way(step, functional(step, groups), name == "predict_step")


def _either_way(step: Callable[..., PyTree], with_state: FunctionalStep, predicts: bool) -> Callable[..., PyTree]:
    """Returns a step that takes the data alone, or the state before it."""

    def called(*args: PyTree) -> PyTree:
        if len(args) == 1:
            return step(*args)
        outputs, state = with_state(*args)
        return outputs, (state[1] if predicts else state)

    return called


@contextlib.contextmanager
def gradients_marked(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Marks what a training step that is traced in the `with` block gives to its optimizer as gradients."""
    if optimizer is None:
        yield
        return
    apply = optimizer.stateless_apply

    def stateless_apply(
        optimizer_variables: list[jax.Array], grads: Sequence[jax.Array | None], trainable_variables: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        marked = [None if gradient is None else marked_as_gradient(gradient) for gradient in grads]
        results: tuple[list[jax.Array], list[jax.Array]] = apply(optimizer_variables, marked, trainable_variables)
        return results

    own = vars(optimizer)  # An entry here goes before the method of the class, and Keras does not track it.
    try:
        own["stateless_apply"] = stateless_apply
        yield
    finally:
        own.pop("stateless_apply", None)
