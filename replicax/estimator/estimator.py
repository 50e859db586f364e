"""`Estimator`: trains, evaluates, predicts and exports a model that a function describes."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from replicax.checkpoint import entries, latest_checkpoint, read_arrays
from replicax.checkpoint.places import absolute
from replicax.checks import checked_int, explained
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, EstimatorError
from replicax.estimator.basic_hooks import StopAtStepHook
from replicax.estimator.built_model import GLOBAL_STEP, BuiltModel
from replicax.estimator.checkpoint_saver import checked_listeners
from replicax.estimator.evaluation import Evaluation
from replicax.estimator.hook_list import Hooks
from replicax.estimator.inputs import InputFn, batches_of
from replicax.estimator.keras_model import KerasModelFn
from replicax.estimator.mode_keys import ModeKeys
from replicax.estimator.model_fn import call_model_fn, check_input_fn, check_model_fn
from replicax.estimator.prediction import predictions
from replicax.estimator.roles import EVALUATOR, SERVER
from replicax.estimator.run_config import RunConfig
from replicax.estimator.saving import checkpoint_manager
from replicax.estimator.scopes import own_scope, without_workers
from replicax.estimator.serving import export_model
from replicax.estimator.spec import EstimatorSpec
from replicax.estimator.training import Training
from replicax.estimator.warm_start import WarmStartSettings, warm_start
from replicax.strategies import Strategy
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_log = logging.getLogger("replicax.estimator")

ModelFn = Callable[..., EstimatorSpec]


class Estimator(Advised):
    """Trains and evaluates a model that a function describes, in a folder of its own.

    `model_fn(features, labels, mode, params, config)` gets a batch and computes from it: it makes layers and variables,
    calls them, and returns an `EstimatorSpec`. It is called when a step is traced, so its Python runs a few times and
    not once for each step; what it makes is found again by its name. It is written in Keras 3 or in plain JAX, where
    its state are `rx.Variable`s with names.

    A call of `train` goes on from the newest checkpoint in `model_dir` and leaves a newer one there; `evaluate` and
    `predict` restore the newest, or the one they are told.

    A batch of an input function is a *global* batch: its rows are split over the replicas of the strategy, and the
    results are those of one device. An input function that asks for the `input_context` gives batches for one replica
    each instead, as in TensorFlow: `input_context.get_per_replica_batch_size(global_batch_size)` is their size.

    Args:
        model_fn: The model function. It declares those of the arguments that it wants; `features` it must.
        model_dir: The folder for checkpoints, logs and exports; by default that of `config`, otherwise a temporary one.
        config: The settings.
        params: Hyperparameters for the model function and the input functions: a dict.
        warm_start_from: A checkpoint, or a folder of checkpoints, or `WarmStartSettings`: a training that does not go
            on from a checkpoint of its own takes first values from it.
        keras_model: A compiled Keras model, in the place of `model_fn`.

    Raises:
        EstimatorError: The model function or the model is not one; `params` do not fit it; or `model_dir` is given
            twice.

    Example:
        >>> import numpy as np
        >>> def model_fn(features, labels, mode):
        ...     w = Variable(0.0, name="w")
        ...     predictions = w * features
        ...     if mode == "infer":
        ...         return EstimatorSpec(mode, predictions=predictions)
        ...     def train_op(gradients):
        ...         for gradient, variable in gradients:
        ...             variable.assign_sub(0.1 * gradient)
        ...     loss = ((predictions - labels) ** 2).mean()
        ...     return EstimatorSpec(mode, predictions, loss, train_op)
        >>> x = np.ones(8, "float32")
        >>> estimator = Estimator(model_fn).train(lambda: (x, 3 * x), steps=50)
        >>> round(next(estimator.predict(lambda: x)).item(), 3)
        3.0
    """

    def __init__(
        self,
        model_fn: ModelFn | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, object] | None = None,
        warm_start_from: str | os.PathLike[str] | WarmStartSettings | None = None,
        *,
        keras_model: keras.Model | None = None,
    ):
        if (model_fn is None) == (keras_model is None):
            raise EstimatorError("An Estimator is given `model_fn` or `keras_model`, and not both.")
        if params is not None and not isinstance(params, Mapping):
            raise EstimatorError(f"`params` is a dict of hyperparameters by name, got {params!r:.100}.")
        self._config = _with_model_dir(config, model_dir)
        self._params = copy.deepcopy(dict(params or {}))
        if keras_model is not None:
            model_fn = KerasModelFn(keras_model)
        assert model_fn is not None
        check_model_fn(model_fn, self._params)
        self._model_fn = model_fn
        self._warm_start = WarmStartSettings.of(warm_start_from)

    # Its parts.

    @property
    def model_dir(self) -> str:
        """The folder of its checkpoints, logs and exports."""
        assert self._config.model_dir is not None
        return self._config.model_dir

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self._config

    @property
    def params(self) -> dict[str, object]:
        """A copy of the hyperparameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[[PyTree, PyTree, str, RunConfig], EstimatorSpec]:
        """The model function with `params` bound to it: a function of (features, labels, mode, config)."""

        def bound(features: PyTree, labels: PyTree, mode: str, config: RunConfig) -> EstimatorSpec:
            return call_model_fn(self._model_fn, features, labels, mode, self.params, config)

        return bound

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint in `model_dir`, None if there is none."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of all variables in the newest checkpoint.

        Raises:
            EstimatorError: There is none.
        """
        return sorted(entries(self._trained(None)))

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of a variable in the newest checkpoint.

        Raises:
            EstimatorError: There is no checkpoint, or no variable of that name in it.
        """
        import jax

        path = self._trained(None)
        found = entries(path)
        if name not in found:
            raise EstimatorError(f"There is no variable {name!r} in {path}. There are: {', '.join(sorted(found))}.")
        wanted = jax.ShapeDtypeStruct(found[name].shape, found[name].dtype)
        return np.asarray(read_arrays(path, {name: wanted})[name])

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of the evaluations of a name."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    # Its work.

    def train(
        self,
        input_fn: InputFn,
        hooks: Iterable[object] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[object] | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint on, and saves one at the end.

        Args:
            input_fn: Returns the data: a dataset of pairs `(features, labels)`, in any form that
                `strategy.distribute_dataset` takes; or one such pair of arrays, a batch for all steps. It may declare
                `mode`, `params`, `config` and `input_context`.
            hooks: Hooks and Keras callbacks.
            steps: How many steps to make; None to go on as long as there is data.
            max_steps: The global step at which to end, over all calls; if it is reached already, nothing is done. Not
                beside `steps`.
            saving_listeners: Are told of each checkpoint: see `CheckpointSaverListener`.

        Returns:
            The estimator itself.

        Raises:
            EstimatorError: The arguments exclude each other, or the model function returns what does not fit.
            ArgumentError: `steps` or `max_steps` is not a positive int.
            BatchError: There is no data.
            NanLossError: The loss is not finite.
        """
        _check_trains(self._config)
        check_input_fn(input_fn)
        _check_steps(steps, max_steps)
        if max_steps is not None and self._step_of_checkpoint() >= max_steps:
            _log.info("Nothing to train: the newest checkpoint has step %d.", self._step_of_checkpoint())
            return self
        given = _as_list(hooks)
        if steps is not None or max_steps is not None:
            given.append(StopAtStepHook(steps, max_steps))
        Hooks(given)  # checks them
        listeners = checked_listeners(saving_listeners)
        strategy = self._config.training_strategy()
        with own_scope(strategy):
            self._train(strategy, input_fn, given, listeners, endless=True if steps or max_steps else None)
        return self

    def _train(
        self, strategy: Strategy, input_fn: InputFn, hooks: list[object], listeners: list[object], endless: bool | None
    ) -> None:
        with self._batches(input_fn, ModeKeys.TRAIN, strategy, endless) as (first, batches):
            model = self._built(ModeKeys.TRAIN, strategy, first)
            manager = checkpoint_manager(model, self._config, self.model_dir)
            if manager.restore_or_initialize() is None:
                if isinstance(self._model_fn, KerasModelFn):
                    for variable, value in self._model_fn.first_values(model.store):
                        variable.assign(value)
                if self._warm_start is not None:
                    warm_start(model, self._warm_start)
            done = Training(model, self._config, self.model_dir, manager, hooks, listeners).run(batches)
        if done.steps_done:
            _log.info("Loss for final step: %s.", done.loss)

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[object] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Evaluates the model of a checkpoint.

        Args:
            input_fn: Returns the data, as for `train`. One pair of arrays is evaluated once.
            steps: How many batches to take; None for all.
            hooks: Hooks and Keras callbacks.
            checkpoint_path: The checkpoint; by default the newest.
            name: A name for the evaluation, if there are several on different data.

        Returns:
            The loss (the mean over all rows), the metrics of the model function, and `global_step`.

        Raises:
            EstimatorError: There is no checkpoint, or it does not fit the model.
            ArgumentError: `steps` is not a positive int.
            BatchError: There is no data.
        """
        check_input_fn(input_fn)
        _check_steps(steps)
        given = _as_list(hooks)
        Hooks(given)
        path = self._trained(checkpoint_path)
        if steps is not None:
            given.append(StopAtStepHook(steps))
        strategy = without_workers(self._config.evaluation_strategy())
        with (
            own_scope(strategy),
            self._batches(input_fn, ModeKeys.EVAL, strategy, steps is not None) as (first, batches),
        ):
            model = self._built(ModeKeys.EVAL, strategy, first)
            model.restore(path)
            return Evaluation(model, self._config, self.model_dir, self.eval_dir(name), given).run(batches)

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Iterable[str] | str | None = None,
        hooks: Iterable[object] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[PyTree]:
        """Yields the predictions for the features of an input function.

        Args:
            input_fn: Returns the data: features, or pairs with labels, which are left out.
            predict_keys: Which keys of the predictions, if they are a dict; by default all.
            hooks: Hooks and Keras callbacks.
            checkpoint_path: The checkpoint; by default the newest.
            yield_single_examples: Whether to yield each example by itself; otherwise whole batches.

        Returns:
            An iterator of NumPy arrays, or of dicts of them. The checkpoint is read when the first is asked for.

        Raises:
            EstimatorError: There is no checkpoint, or it does not fit the model; there are no such keys; or an array of
                the predictions has no row for each example.
        """
        check_input_fn(input_fn)
        given = _as_list(hooks)
        Hooks(given)
        keys = [predict_keys] if isinstance(predict_keys, str) else None if predict_keys is None else list(predict_keys)
        path = self._trained(checkpoint_path)
        strategy = without_workers(self._config.evaluation_strategy())

        def yielded() -> Iterator[PyTree]:
            with self._batches(input_fn, ModeKeys.PREDICT, strategy, endless=False) as (first, batches):
                with own_scope(strategy):
                    model = self._built(ModeKeys.PREDICT, strategy, first)
                    model.restore(path)
                yield from predictions(model, self.model_dir, batches, given, keys, yield_single_examples)

        return yielded()

    def export(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input: PyTree,
        checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Writes the model of a checkpoint as a function of features, which `rx.load_export` runs without this code.

        Args:
            export_dir_base: The folder in which the export gets one of its own, named by the time.
            serving_input: What the features look like: a pytree of arrays, `rx.TensorSpec`s (in which None is any
                length) or `jax.ShapeDtypeStruct`s; or a function that returns one.
            checkpoint_path: The checkpoint; by default the newest.

        Returns:
            The folder of the export. The function returns the predictions, or `export_outputs` if they are several.

        Raises:
            EstimatorError: There is no checkpoint, or it does not fit the model.
            ExportError: JAX cannot export the model.
        """
        path = self._trained(checkpoint_path)
        return export_model(self._call, path, export_dir_base, serving_input)

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: PyTree,
        checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> str:
        """The same as `export`, under TensorFlow's name."""
        return self.export(export_dir_base, serving_input_receiver_fn, checkpoint_path)

    # How.

    def _call(self, features: PyTree, labels: PyTree, mode: str) -> EstimatorSpec:
        return call_model_fn(self._model_fn, features, labels, mode, self.params, self._config)

    def _built(self, mode: str, strategy: Strategy, batch: PyTree) -> BuiltModel:
        model = BuiltModel(self._call, mode, strategy)
        model.build(batch, self._config.seed)
        return model

    def _batches(
        self, input_fn: InputFn, mode: str, strategy: Strategy, endless: bool | None
    ) -> contextlib.AbstractContextManager[tuple[PyTree, Iterator[PyTree]]]:
        given = {"mode": mode, "params": self.params, "config": self._config}
        return batches_of(input_fn, strategy, endless, **given)

    def _trained(self, checkpoint_path: str | os.PathLike[str] | None) -> str:
        path = self.latest_checkpoint() if checkpoint_path is None else os.fspath(checkpoint_path)
        if path is None:
            raise EstimatorError(
                f"There is no checkpoint in {self.model_dir}: the estimator has not been trained. Call `train` first, "
                "or give `checkpoint_path`."
            )
        return path

    def _step_of_checkpoint(self) -> int:
        path = self.latest_checkpoint()
        return 0 if path is None else int(self.get_variable_value(GLOBAL_STEP))


@explained
@called_as("tf.keras.estimator.model_to_estimator")
def model_to_estimator(
    keras_model: keras.Model | None = None,
    keras_model_path: str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
) -> Estimator:
    """Makes an estimator of a compiled Keras model, after `tf.keras.estimator.model_to_estimator`.

    The model stays as it is. The estimator trains a copy of it, which begins with its weights; what it has learned is
    in the checkpoints in `model_dir`.

    Args:
        keras_model: The model; or
        keras_model_path: The file of one that was saved with its optimizer (`.keras`).
        custom_objects: Classes and functions that loading the file needs, by name.
        model_dir: As for `Estimator`.
        config: Likewise.

    Raises:
        EstimatorError: Both or neither of the models are given, or it is not compiled or cannot be copied.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> estimator = rx.estimator.model_to_estimator(model)
        >>> x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
        >>> estimator = estimator.train(lambda: [(x, y)], steps=1)
        >>> sorted(estimator.evaluate(lambda: [(x, y)]))
        ['global_step', 'loss']
    """
    if (keras_model is None) == (keras_model_path is None):
        raise EstimatorError("Give either `keras_model` or `keras_model_path`, and not both.")
    if keras_model_path is not None:
        import keras

        keras_model = keras.saving.load_model(keras_model_path, custom_objects=custom_objects)
    return Estimator(keras_model=keras_model, model_dir=model_dir, config=config)


# Arguments, checked.


def _with_model_dir(config: RunConfig | None, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns the settings of an estimator, with the folder that it was given, or a temporary one."""
    if config is not None and not isinstance(config, RunConfig):
        raise EstimatorError(f"`config` is an rx.estimator.RunConfig, got {config!r:.100}.")
    config = config or RunConfig()
    for given in (model_dir, config.model_dir):
        if isinstance(given, (str, os.PathLike)):
            _check_can_be_folder(os.fspath(given))
    if model_dir is not None:
        if not isinstance(model_dir, (str, os.PathLike)) or not os.fspath(model_dir):
            raise ArgumentError(f"`model_dir` is the path of a folder, got {model_dir!r:.100}.")
        if config.model_dir is not None and os.fspath(model_dir) != config.model_dir:
            raise EstimatorError(
                f"`model_dir` is given twice and differs: {os.fspath(model_dir)!r}, and {config.model_dir!r} in the "
                "RunConfig. Give one."
            )
        return config.replace(model_dir=os.fspath(model_dir))
    if config.model_dir is None:
        folder = tempfile.mkdtemp(prefix="replicax-estimator-")
        _log.warning("The estimator has no `model_dir`: it writes to the temporary folder %s.", folder)
        return config.replace(model_dir=folder)
    return config


def _check_can_be_folder(path: str) -> None:
    """Checks that the folder is there or can be made: that no file is in its place, or in that of one above it."""
    if not isinstance(absolute(path), Path):
        return  # A store has no folders.
    found = os.path.abspath(path)
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        raise ArgumentError(
            f"`model_dir` is the path of a folder, got {path!r}, but {found!r} is a file. Give a folder, which is made "
            "if it does not exist."
        )


def _as_list(hooks: Iterable[object] | None) -> list[object]:
    """Returns hooks as a list; None is an empty one."""
    if hooks is None:
        return []
    if not isinstance(hooks, Iterable) or isinstance(hooks, (str, Mapping)):
        raise EstimatorError(f"`hooks` is a list, got {hooks!r:.100}.")
    return list(hooks)


def _check_steps(steps: int | None, max_steps: int | None = None) -> None:
    """Checks that at most one of `steps` and `max_steps` is given, and that it is a positive int."""
    if steps is not None and max_steps is not None:
        raise EstimatorError(f"Either `steps` or `max_steps` can be given, got {steps!r} and {max_steps!r}.")
    for name, number in (("steps", steps), ("max_steps", max_steps)):
        if number is not None:
            checked_int(name, number, least=1)


def _check_trains(config: RunConfig) -> None:
    """Checks that the role of this process is one that trains."""
    if config.role in (EVALUATOR, SERVER):
        raise EstimatorError(
            f"`train` was called in a process whose role is {config.role!r}: it does not train. "
            "rx.estimator.train_and_evaluate does what the role says."
        )
