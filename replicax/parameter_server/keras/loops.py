"""`Model.fit`, `evaluate` and `predict` under a `ParameterServerStrategy`: Keras's steps, scheduled on workers.

Keras's own loops pass the values of all variables from step to step. Here the values are on servers, and no process
needs all of them: a step is scheduled, and the loop goes on. Around the steps these loops do what Keras's do.

Training is asynchronous. Callbacks of a batch are called when its steps have been scheduled (a few for each worker are
running), with the logs of the newest step that has ended, as its worker saw them. At the end of an epoch all steps have
ended, and its logs are exact. So are evaluation and prediction: the coordinator reads the data, and sends each batch to
one worker.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

import replicax.compat.keras as keras_door
from replicax.errors import ArgumentError, BatchError
from replicax.keras.steps import KerasSteps
from replicax.parameter_server.coordinator import ClusterCoordinator, CoordinatedStrategy
from replicax.parameter_server.keras.data import DataArguments, RoundRobin, array_batches, for_coordinator, for_workers
from replicax.parameter_server.scheduling.remote_values import RemoteValue
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    import keras

Callbacks: TypeAlias = "Sequence[keras.callbacks.Callback] | keras.callbacks.CallbackList | None"
Logs: TypeAlias = dict[str, PyTree]  # numbers, or whatever else a metric of the user's returns
NextCall: TypeAlias = Callable[[], tuple[PyTree, ...]]  # returns a step to schedule, and its arguments


class KerasLoops:
    """The loops of one model, by their names in Keras."""

    def __init__(self, model: keras.Model, strategy: CoordinatedStrategy):
        self._model, self._strategy = model, strategy
        self.steps = KerasSteps(model)  # makes what is scheduled: `model.train_function` and the like

    def fit(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: PyTree = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: PyTree = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> keras.callbacks.History:
        """Trains the model; see `keras.Model.fit`."""
        model = self._model
        keras_door.check_compiled(model, "fit")
        if validation_split and validation_data is None:
            arrays = (x, y, sample_weight)
            (x, y, sample_weight), validation_data = keras_door.split_for_validation(arrays, validation_split)
        given = DataArguments(x, y, sample_weight, batch_size, steps_per_epoch, class_weight)
        with self._training(given, shuffle) as (next_call, steps):
            calls = self._callbacks(callbacks, verbose, epochs, steps, add_history=True)
            model.stop_training = False
            calls.on_train_begin()
            logs: Logs = {}
            first = keras_door.initial_epoch(model) or initial_epoch  # of a backup, if there was one
            keras_door.set_initial_epoch(model, None)
            for epoch in range(first, epochs):
                model.reset_metrics()
                calls.on_epoch_begin(epoch)
                newest = self._train_epoch(next_call, steps, calls)
                logs = keras_door.metrics_or_logs(model, newest)
                if validation_data is not None and keras_door.is_epoch_to_validate(model, epoch, validation_freq):
                    size = validation_batch_size or (batch_size if isinstance(validation_data, (tuple, list)) else None)
                    logs |= self._validate(validation_data, size, validation_steps, calls)
                calls.on_epoch_end(epoch, logs)
                if model.stop_training:
                    break
            model.optimizer.finalize_variable_values(model.trainable_weights)
            calls.on_train_end(logs=logs)
        return model.history

    @contextlib.contextmanager
    def _training(self, given: DataArguments, shuffle: bool | str) -> Iterator[tuple[NextCall, int]]:
        """Yields a function that returns the next step to schedule, with its arguments, and the steps of an epoch."""
        data, model = for_workers(given, shuffle, self._strategy.cluster.workers), self._model
        if self._strategy.max_staleness == 0 and isinstance(data.dataset_fn, RoundRobin):
            # Whichever worker makes a step, its batch is the one that a single device would have.
            stream = data.dataset_fn.in_order()
            first = next(stream)
            self._build(first)
            model.make_train_function()
            in_order = itertools.chain([first], stream)
            yield lambda: (model.train_function, next(in_order)), data.steps
            return
        iterators = [iter(self._coordinator().create_per_worker_dataset(data.dataset_fn))]
        self._build(iterators[0].element_spec)
        model.make_train_function()
        step = model.train_function

        def train_step() -> PyTree:
            return step(next(iterators[0]))

        try:
            yield lambda: (train_step,), data.steps
        except BaseException:
            with contextlib.suppress(Exception):
                self._coordinator().join()  # The few steps that are running need their batches.
            raise
        finally:
            iterators.clear()  # The compiled step may live on; the workers can drop the data now.

    def _train_epoch(self, next_call: NextCall, steps: int, calls: keras.callbacks.CallbackList) -> Logs | None:
        """Schedules the steps of an epoch and waits for them; returns the logs of the last one."""
        newest: collections.deque[Logs | None] = collections.deque([None], maxlen=1)
        running = RunningSteps(self._coordinator(), newest.append)
        for begin in range(0, steps, self._model.steps_per_execution):
            end = min(begin + self._model.steps_per_execution, steps)
            calls.on_train_batch_begin(begin)
            for _ in range(begin, end):
                running.schedule(*next_call())
            if end == steps:
                running.join()
            calls.on_train_batch_end(end - 1, newest[0])
            if self._model.stop_training:
                break
        running.join()
        return newest[0]

    def _validate(self, data: PyTree, batch_size: int | None, steps: int | None, callbacks: Callbacks) -> Logs:
        x, y, sample_weight = _unpacked(data)
        logs = self._evaluated(DataArguments(x, y, sample_weight, batch_size, steps), 0, callbacks)
        return {f"val_{name}": value for name, value in logs.items()}

    def evaluate(
        self,
        x: PyTree = None,
        y: PyTree = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: PyTree = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
    ) -> float | list[float] | Logs:
        """Evaluates the model on each row once; see `keras.Model.evaluate`."""
        keras_door.check_compiled(self._model, "evaluate")
        logs = self._evaluated(DataArguments(x, y, sample_weight, batch_size, steps), verbose, callbacks)
        return logs if return_dict else keras_door.in_order_of_metrics(self._model, logs)

    def _evaluated(self, given: DataArguments, verbose: int | str, callbacks: Callbacks) -> Logs:
        model = self._model
        first, batches, steps = _opened(given)
        self._build(first)
        calls = self._callbacks(callbacks, verbose, 1, steps)
        model.make_test_function()
        model.stop_evaluating = False
        calls.on_test_begin()
        model.reset_metrics()
        newest: collections.deque[Logs | None] = collections.deque([None], maxlen=1)
        running = RunningSteps(self._coordinator(), newest.append)
        for number, batch in enumerate(batches):
            calls.on_test_batch_begin(number)
            running.schedule(model.test_function, batch)
            calls.on_test_batch_end(number, newest[0])
            if model.stop_evaluating:
                break
        running.join()
        logs = keras_door.as_python_numbers(keras_door.metrics_or_logs(model, newest[0]))
        calls.on_test_end(logs)
        return logs

    def predict(
        self,
        x: PyTree,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> PyTree:
        """Returns predictions for each row, in order; see `keras.Model.predict`."""
        model = self._model
        first, batches, count = _opened(DataArguments(x, batch_size=batch_size, steps=steps))
        self._build_layers(_unpacked(first)[0])
        calls = self._callbacks(callbacks, verbose, 1, count)
        model.make_predict_function()
        model.stop_predicting = False
        outputs: list[PyTree] = []

        def collect(predicted: PyTree) -> None:
            outputs.append(predicted)
            calls.on_predict_batch_end(len(outputs) - 1, {"outputs": predicted})

        calls.on_predict_begin()
        running = RunningSteps(self._coordinator(), collect)
        for number, batch in enumerate(batches):
            calls.on_predict_batch_begin(number)
            running.schedule(model.predict_function, batch)
            if model.stop_predicting:
                break
        running.join()
        calls.on_predict_end()
        return jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *outputs)

    # Single batches.

    def train_on_batch(
        self,
        x: PyTree,
        y: PyTree = None,
        sample_weight: PyTree = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> float | list[float] | Logs:
        """Runs one training step; see `keras.Model.train_on_batch`."""
        keras_door.check_compiled(self._model, "train_on_batch")
        return self._on_batch(DataArguments(x, y, sample_weight, class_weight=class_weight), "train", return_dict)

    def test_on_batch(
        self, x: PyTree, y: PyTree = None, sample_weight: PyTree = None, return_dict: bool = False
    ) -> float | list[float] | Logs:
        """Evaluates one batch; see `keras.Model.test_on_batch`."""
        keras_door.check_compiled(self._model, "test_on_batch")
        return self._on_batch(DataArguments(x, y, sample_weight), "test", return_dict)

    def _on_batch(self, given: DataArguments, kind: str, return_dict: bool) -> float | list[float] | Logs:
        batch = array_batches(given).arrays
        self._build(batch)
        getattr(self._model, f"make_{kind}_function")()
        self._model.reset_metrics()
        logs = keras_door.as_python_numbers(self._once(getattr(self._model, f"{kind}_function"), batch))
        return logs if return_dict else keras_door.in_order_of_metrics(self._model, logs)

    def predict_on_batch(self, x: PyTree) -> PyTree:
        """Returns predictions for one batch; see `keras.Model.predict_on_batch`."""
        self._build_layers(x)
        self._model.make_predict_function()
        return self._once(self._model.predict_function, (x,))

    def _once(self, step: PyTreeFunction, batch: PyTree) -> PyTree:
        results: list[PyTree] = []
        running = RunningSteps(self._coordinator(), results.append)
        running.schedule(step, batch)
        running.join()
        return results[0]

    # Shared by the loops.

    def _coordinator(self) -> ClusterCoordinator:
        return ClusterCoordinator(self._strategy)

    def _build(self, batch: PyTree) -> None:
        """Builds the variables of the model, its metrics and its optimizer for batches like this one."""
        with self._strategy.scope():
            keras_door.build_for(self._model, batch)

    def _build_layers(self, x: PyTree) -> None:
        import keras

        if not all(layer.built for layer in keras_door.sublayers(self._model, include_self=True)):
            with self._strategy.scope(), keras.StatelessScope():
                self._model(x)

    def _callbacks(
        self, callbacks: Callbacks, verbose: int | str, epochs: int, steps: int | None, add_history: bool = False
    ) -> keras.callbacks.CallbackList:
        import keras

        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=add_history,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
            model=self._model,
        )


def _opened(given: DataArguments) -> tuple[PyTree, Iterator[PyTree], int | None]:
    """Returns the first batch, an iterator over all batches, and their number if it is known."""
    batches = for_coordinator(given)
    try:
        count = len(batches)
    except ArgumentError:  # unknown before the end
        count = None
    if given.steps is not None:
        count = given.steps if count is None else min(given.steps, count)
    found = itertools.islice(iter(batches), given.steps)
    first = next(found, None)
    if first is None:
        raise BatchError("The data yielded no batch at all.")
    return first, itertools.chain([first], found), count


def _unpacked(data: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    import keras

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, sample_weight


# `RunningSteps`: Keras's steps that have been scheduled and may not have ended.


_STEPS_AHEAD = 4  # for each worker: two that it has, and two that are queued, so that it never waits


class RunningSteps:
    """Scheduled steps, few as callbacks act on those that follow; calls `taken` with the result of each, in order."""

    def __init__(self, coordinator: ClusterCoordinator, taken: Callable[[PyTree], None]):
        self._coordinator, self._taken = coordinator, taken
        self._values: collections.deque[RemoteValue] = collections.deque()
        self._most = _STEPS_AHEAD * coordinator.strategy.cluster.workers

    def schedule(self, step: PyTreeFunction, *args: PyTree) -> None:
        """Schedules a step; waits while too many are running."""
        while len(self._values) >= self._most:
            self._take()
        self._values.append(self._coordinator.schedule(step, args))
        while self._values and self._values[0].is_ready:
            self._take()

    def join(self) -> None:
        """Waits for all of them."""
        while self._values:
            self._take()

    def _take(self) -> None:
        try:
            result = self._values.popleft().fetch()
        except Exception:
            self._coordinator.join()  # It raises the first error, of which this one may be a consequence.
            raise
        self._taken(result)
