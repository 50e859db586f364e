"""The learning-rate range test: a short training with a learning rate that grows from step to step.

L. Smith, 2015, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import replicax.context as context
from replicax.checks import checked_int, is_real
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError, BatchError
from replicax.keras.models import strategy_of
from replicax.program.function import Function, function
from replicax.tools.tuning.learning_rates import LearningRates
from replicax.tools.tuning.restoring import Restored, check_model, check_synchronous, restored
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_log = logging.getLogger(__name__)
_NAME = "find_learning_rate"
_FIRST_STEPS = 10  # The loss may be high in the first steps without that it diverges.


def find_learning_rate(
    train: keras.Model | Callable[..., PyTree],
    dataset: PyTree,
    *,
    optimizer: keras.optimizers.Optimizer | None = None,
    state: PyTree = None,
    batch_size: int | None = None,
    min_learning_rate: float = 1e-6,
    max_learning_rate: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.9,
    stop_factor: float = 4.0,
) -> LearningRates:
    """Trains for some steps with a growing learning rate, and returns the losses; afterwards all is as before.

    The learning rate grows from step to step by one factor. At small ones the loss hardly moves, then it falls, and at
    last it diverges, which ends the test; a good learning rate is where the loss falls most steeply (`suggestion`;
    L. Smith, 2015, arXiv:1506.01186). A range that shows nothing of this is told in a warning (`remark`). The variables
    (weights, optimizer, metrics, random seeds), the dataset's position, and the random generators of Python and NumPy
    are put back, also after an error.

    Args:
        train: One of three. A compiled Keras model that was made in a strategy's scope: `fit` is tested. A step of a
            custom loop, `step(batch)`, which returns the loss of the global batch: give the `optimizer` too. A step of
            a loop in plain JAX, `step(state, batch, learning_rate)`, which returns the new state and the loss: give the
            `state`.
        dataset: For a model what `fit` takes: a dataset, or `(x, y)` or `(x, y, sample_weight)` as arrays. Otherwise
            batches, mostly `strategy.distribute_dataset(...)`. It is passed over as often as needed.
        optimizer: With a step that takes a batch, the Keras optimizer in it.
        state: With a step that takes a state, the first one; it is not changed.
        batch_size: The global batch size, where `dataset` are arrays for a model.
        min_learning_rate: The first learning rate.
        max_learning_rate: The last one.
        steps: How many steps the test has.
        smoothing: How much of the smoothed loss a step keeps, at least 0 and below 1.
        stop_factor: How many times as large as the smallest the smoothed loss may be; beyond, the test ends.

    Raises:
        ArgumentError: An argument does not fit; the optimizer has a schedule; the loss is no number; `dataset` is an
            iterator.
        BatchError: The dataset has no batch, or so few finite losses come of it that nothing can be said.
        ContextError: The strategy does not train synchronously in this process.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((16, 2))
        >>> def step(w, batch, learning_rate):
        ...     loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1) ** 2))(w)
        ...     return w - learning_rate * gradient, loss
        >>> found = find_learning_rate(step, [x], state=jnp.zeros(2), steps=40)
        >>> 0.001 < found.suggestion < 1
        True
    """
    test = _Test(_checked_rates(min_learning_rate, max_learning_rate, steps), smoothing, stop_factor)
    if hasattr(train, "fit") and hasattr(train, "compile"):
        if optimizer is not None or state is not None:
            raise ArgumentError("A Keras model has its own optimizer and state: leave out `optimizer` and `state`.")
        _test_fit(train, dataset, batch_size, test)
    elif not callable(train):
        raise ArgumentError(f"`train` is a compiled Keras model or the function of a step, got {train!r:.100}.")
    elif (optimizer is None) == (state is None) or batch_size is not None:
        raise ArgumentError(
            "A step that takes a batch goes with its `optimizer`, find_learning_rate(step, dataset, optimizer=...); a "
            "step in plain JAX, which takes state, batch and learning rate, with its `state`. `batch_size` is for "
            "Keras models: batches have their size."
        )
    elif optimizer is not None:
        _test_loop(train, dataset, optimizer, test)
    else:
        _test_function(train, dataset, state, test)
    found = test.outcome()
    if found.remark is not None:
        _log.warning("%s", found.remark)
    return found


def _checked_rates(least: float, most: float, steps: int) -> np.ndarray:
    if not (is_real(least) and is_real(most) and 0 < least < most):
        raise ArgumentError(
            f"Learning rates grow from a number above 0 to a larger one, got min_learning_rate={least!r:.50} and "
            f"max_learning_rate={most!r:.50}."
        )
    return np.geomspace(least, most, checked_int("steps", steps, least=5))


class _Test:
    """Takes the losses, step by step, and says when it is enough."""

    def __init__(self, rates: np.ndarray, smoothing: float, stop_factor: float):
        if not is_real(smoothing) or not 0 <= smoothing < 1:
            raise ArgumentError(f"`smoothing` is at least 0 and below 1, got {smoothing!r:.100}.")
        if not is_real(stop_factor) or not stop_factor > 1:
            raise ArgumentError(f"`stop_factor` is a number above 1, got {stop_factor!r:.100}.")
        self._rates, self._keeps, self._factor = rates, smoothing, stop_factor
        self._losses: list[float] = []
        self._smoothed: list[float] = []
        self._sum = 0.0
        self.diverged = False

    @property
    def steps(self) -> int:
        """How many steps the test has at most."""
        return len(self._rates)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._rates[len(self._losses)])

    def take(self, loss: PyTree) -> bool:
        """Notes the loss of a step; returns whether there is another one."""
        number = _as_number(loss)
        if not np.isfinite(number):
            self.diverged = True
            return False
        self._losses.append(number)
        self._sum = self._keeps * self._sum + (1 - self._keeps) * number
        self._smoothed.append(self._sum / (1 - self._keeps ** len(self._losses)))
        best = min(self._smoothed)
        allowed = best + (self._factor - 1) * max(abs(best), 1e-3 * abs(self._losses[0]))
        self.diverged = len(self._losses) > _FIRST_STEPS and self._smoothed[-1] > allowed
        return not self.diverged and len(self._losses) < len(self._rates)

    def outcome(self) -> LearningRates:
        count = len(self._losses)
        if count < 2:
            raise BatchError(
                f"The test had {count} step(s) with a finite loss, which says nothing. Look at the data and the loss, "
                "or begin with a smaller `min_learning_rate`."
            )
        rates = tuple(map(float, self._rates[:count]))
        return LearningRates(rates, tuple(self._losses), tuple(self._smoothed), self.diverged)


def _as_number(loss: PyTree) -> float:
    try:
        number = np.asarray(loss, np.float64)
        if number.size != 1:
            raise TypeError(f"it has shape {number.shape}")
        return float(number.reshape(()))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"The step must return the loss of the global batch, one number, got {loss!r:.100} ({error}). For a loss "
            "of each replica: strategy.reduce('sum', losses, axis=None)."
        ) from error


# A custom loop.


def _test_loop(step: Callable[..., PyTree], dataset: PyTree, optimizer: Any, test: _Test) -> None:
    check_synchronous(context.current().strategy, _NAME)
    compiled = step if isinstance(step, Function) else function(step)
    with restored(dataset) as kept:
        for batch in _endless(dataset):
            kept.add([*compiled.build(batch), *optimizer.variables])
            _set_rate(optimizer, test.rate)
            if not test.take(compiled(batch)):
                return


def _test_function(step: Callable[..., PyTree], dataset: PyTree, state: PyTree, test: _Test) -> None:
    check_synchronous(context.current().strategy, _NAME)
    # A step may give its state's buffers away.
    state = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, state)
    with restored(dataset):
        for batch in _endless(dataset):
            returned = step(state, batch, np.float32(test.rate))
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise ArgumentError(f"The step must return (state, loss), got {returned!r:.100}.")
            state, loss = returned
            if not test.take(loss):
                return


def _endless(dataset: Iterable[PyTree]) -> Iterator[PyTree]:
    for number in itertools.count():
        empty = True
        for batch in dataset:
            empty = False
            yield batch
        if empty:
            raise BatchError(f"Pass {number + 1} over the dataset had no batch.")


def _set_rate(optimizer: Any, rate: float) -> None:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # A LossScaleOptimizer's.
    try:
        optimizer.learning_rate = rate
    except TypeError as error:
        raise ArgumentError(
            f"The optimizer {optimizer.name!r} has a schedule, {optimizer._learning_rate!r:.100}, so its learning rate "
            "cannot be set. Make it with a number for the test, and with a schedule that starts from the result "
            "afterwards."
        ) from error


# `fit`.


def _test_fit(model: Any, data: PyTree, batch_size: int | None, test: _Test) -> None:
    strategy = strategy_of(model)
    check_model(model, strategy)
    check_synchronous(strategy, _NAME)
    _set_rate(model.optimizer, float(model.optimizer.learning_rate))  # Fails early where there is a schedule.
    is_arrays = isinstance(data, (tuple, list)) and len(data) in (2, 3) and all(hasattr(x, "shape") for x in data)
    given = dict(zip(("x", "y", "sample_weight"), data, strict=False)) if is_arrays else {"x": data}
    history, stops = getattr(model, "history", None), model.stop_training
    with restored(data) as kept:
        try:
            model.fit(**given, batch_size=batch_size, epochs=test.steps, verbose=0, callbacks=[_callback(test, kept)])
        finally:
            model.history, model.stop_training = history, stops


def _callback(test: _Test, kept: Restored) -> keras.callbacks.Callback:
    import keras

    class RangeTest(keras.callbacks.Callback):
        """Sets the learning rate before each step and takes the loss after it."""

        def on_train_begin(self, logs: object = None) -> None:
            del logs
            variables: list[VariableLike] = [*self.model.variables, *self.model.optimizer.variables]
            kept.add([*variables, *self.model.metrics_variables])

        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            del batch, logs
            self.model.reset_metrics()  # So that the loss is that of this step alone.
            _set_rate(self.model.optimizer, test.rate)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch
            if not test.take(logs["loss"]):
                self.model.stop_training = True

    return RangeTest()
