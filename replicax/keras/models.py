"""Which strategy a Keras model belongs to, and where Keras is told about it.

Keras offers no way to take part in `Model.fit` from outside, so a few methods of its JAX trainer are wrapped, once,
when a strategy's scope is first opened with Keras loaded. For models without a strategy they do what they always did.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

import replicax.context as context
import replicax.runtime.activity as activity
from replicax.compat.keras import (
    build_for,
    build_otherwise,
    compilation_of,
    is_of_empty_generator,
    let_epochs_differ,
    let_values_stay,
    trainer_class,
)
from replicax.compat.keras_backend import check_keras_backend
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import layout_of
from replicax.data.sources import check_batch_size
from replicax.errors import ArgumentError, BatchError, ContextError
from replicax.keras.all_workers import check_same_weights, has_workers
from replicax.keras.backup import backups_last
from replicax.keras.chief_writes import callbacks_of_worker, listed, save_on_workers, write_atomically
from replicax.keras.custom_objects import remembering_arguments
from replicax.keras.feeding import (
    as_keras_data,
    dataset_of,
    first_batch_of,
    is_of_dataset,
    is_source,
    passes_of_epoch,
)
from replicax.keras.loop_state import Progress
from replicax.keras.model_pickling import ModelParcel, like_a_row
from replicax.keras.steps import accept_state, takes_data
from replicax.keras.trainer import StepFunctions
from replicax.keras.workers import loop_of_workers
from replicax.program.function import ProgramCache
from replicax.program.lifting import Program
from replicax.runtime import clock
from replicax.runtime.once import once
from replicax.typing import PyTree
from replicax.values.tracebacks import entry_point

if TYPE_CHECKING:
    import keras

    from replicax.keras.kept_steps import KeptSteps

_EPOCH_LOOPS = ("fit", "evaluate", "predict")
_LOOPS = (*_EPOCH_LOOPS, "train_on_batch", "test_on_batch", "predict_on_batch")
_EVALUATING = functools.partial(clock.section, clock.EVALUATION)
_DATA = {"x", "y", "sample_weight", "validation_data"}
_STEPS = {"make_train_function": "train", "make_test_function": "test", "make_predict_function": "predict"}


class _Membership:
    """The memory of a model that was made in a strategy's scope."""

    def __init__(self, strategy: StrategyBase):
        self.strategy = strategy
        # Steps made in loops so far; loops that are running (`fit`, and in it `evaluate`); the thread that runs them.
        self.steps = self.loops = self.thread = 0
        # Whether all workers save it just now, in a loop, where the chief may be lost meanwhile; how many `fit` have
        # begun where workers may come and go.
        self.saves_together, self.fits = False, 0
        self.is_built_by_step = False  # whether its variables were made by its own step
        self.progress: Progress | None = None  # of the running `fit`, where workers may come and go
        self.kept: KeptSteps | None = None  # those of the running `fit`, where `ReplicaDigest` keeps them
        self.dataset: Any = None  # the distributed dataset that the latest `fit` reads; None for other data
        self.source: Any = None  # what the user gave for it
        # With which pass over a source the next `fit` begins, so that it goes on with other orders and other draws.
        self.passes = weakref.WeakKeyDictionary[object, int]()
        self.batch: PyTree = None  # one row of zeros like a batch with targets; None before the first
        self.compilation: object = None  # on a client, how the model was compiled when it came back from a loop

    def ended(self, outer: int) -> None:
        """Notes that a loop has ended, in so many others."""
        self.loops = outer
        self.kept = self.kept if outer else None
        if self.dataset is not None and is_source(self.source):
            self.passes[self.source] = self.dataset.next_pass

    def count_step(self, batch: PyTree) -> None:
        if batch is not None and self.batch is None:
            self.batch = like_a_row(batch)
        self.steps += 1


def batch_of(model: keras.Model) -> PyTree:
    """Returns one row of zeros like a batch that `model`, made in a strategy's scope, has been trained on; or None."""
    return model._replicax.batch


def note_batch(model: keras.Model, batch: PyTree) -> None:
    """Remembers that Keras has built a model, its losses and metrics elsewhere, for batches like this one."""
    if batch is not None:
        model._replicax.batch, model._replicax.compilation = batch, compilation_of(model)


def strategy_of(model: Any) -> StrategyBase | None:
    """Returns the strategy in whose scope `model` was made, or None."""
    membership = getattr(model, "_replicax", None)
    return None if membership is None else membership.strategy


def training_program(model: keras.Model, batch: PyTree) -> tuple[Program, list[jax.Array]]:
    """Returns the traced program of one training step, and the arrays of its batch."""
    strategy = strategy_of(model)
    if strategy is None:
        raise ArgumentError(f"{model!r:.100} belongs to no strategy: make it in the scope of one.")
    if batch is None:  # One row for each replica, like those that the model has been trained on.
        row = batch_of(model)
        if row is None:
            raise ArgumentError(f"Model {model.name!r} has not been trained yet: give a batch of its, step=(x, y).")
        batch = jax.tree.map(lambda leaf: np.repeat(leaf, strategy.num_replicas_in_sync, axis=0), row)
    batch = jax.tree.map(np.asarray, batch)
    with strategy.scope():
        build_for(model, batch)
    return StepFunctions(model, strategy, model._replicax).training_program(batch)


@once
def install_trainer_hooks() -> None:
    """Wraps the methods of Keras's trainer that a strategy takes part in."""
    import keras

    from replicax.program.gradients.keras_remat import install_keras_remat  # A step without Keras needs none of it.
    from replicax.weights.hooks import install_weight_hooks
    from replicax.weights.keras_files import explained

    check_keras_backend()
    install_weight_hooks()
    install_keras_remat()
    trainer: Any = trainer_class()
    trainer.__init__ = _remembering_strategy(trainer.__init__)
    keras.Model.__new__ = staticmethod(remembering_arguments(keras.Model.__new__))
    for name in _LOOPS:
        setattr(trainer, name, _in_global_view(getattr(trainer, name)))
    build_otherwise(trainer, _built_by_its_step, first_batch_of)
    let_epochs_differ(is_of_dataset)
    let_values_stay(lambda model: getattr(model, "_replicax", None) is not None)
    for name, kind in _STEPS.items():
        setattr(trainer, name, _with_strategy_steps(getattr(trainer, name), kind))
    trainer.__deepcopy__ = _deepcopy
    trainer.__reduce__ = _for_another_process(trainer)
    for name in [name for name in vars(keras.callbacks.CallbackList) if name.startswith("on_")]:
        noted = activity.phase(activity.CALLBACK)(getattr(keras.callbacks.CallbackList, name))
        setattr(keras.callbacks.CallbackList, name, noted)  # so that we can say why a worker does not go on
    for name in ("save", "save_weights"):
        setattr(keras.Model, name, _whole_or_not_at_all(getattr(keras.Model, name)))
    keras.Model.load_weights = explained(keras.Model.load_weights, _check_file)


def _remembering_strategy(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if context.current().strategy is not None:
            self._replicax = _Membership(cast("StrategyBase", context.current().strategy))

    return __init__


def _in_global_view(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    @entry_point
    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _without_our_keras_distribution():
            strategy = strategy_of(self) or _joined(self, original.__name__)
            if strategy is None:
                return original(self, *args, **kwargs)
            _check_current(original.__name__, strategy)
            try:
                given = signature.bind_partial(self, *args, **kwargs)
            except TypeError as error:  # Python's own message would begin with the function.
                raise TypeError(f"Model.{original.__name__}() {error}") from None
            if given.arguments.get("batch_size") is not None:
                check_batch_size(given.arguments["batch_size"])
            loops = strategy.keras_loops(self)
            if loops is not None:
                return getattr(loops, original.__name__)(*given.args[1:], **given.kwargs)
            source = given.arguments.get("x")
            for name in _DATA & given.arguments.keys():
                given.arguments[name] = as_keras_data(given.arguments[name], strategy, original.__name__)
            if original.__name__ == "fit":
                self._replicax.dataset, self._replicax.source = dataset_of(given.arguments.get("x")), source
                _begin_where_fits_have_ended(self._replicax, given)
                _put_backups_last(given)
            if context.current().planner is not None and "callbacks" in given.signature.parameters:
                # A plan makes one step. Callbacks that write would empty the files of an earlier training.
                given.arguments["callbacks"] = callbacks_of_worker(given.arguments.get("callbacks"), is_chief=False)
            around = strategy.around_loop(self, original.__name__, given)
            if around is not None:
                with around:
                    return _run_loop(original, self, given)
            if not has_workers(strategy) or original.__name__ not in _EPOCH_LOOPS:
                return _run_loop(original, self, given)
            with loop_of_workers(given, strategy, original.__name__):
                return _run_loop(original, self, given)

    return loop


def _begin_where_fits_have_ended(membership: _Membership, given: inspect.BoundArguments) -> None:
    """Lets a `fit` begin with the pass of `initial_epoch`, or with the one after those of earlier calls."""
    dataset, source = membership.dataset, membership.source
    if dataset is None or not dataset.can_continue or not dataset.is_unread:
        return
    epoch = 0 if given.arguments.get("steps_per_epoch") else given.arguments.get("initial_epoch", 0)
    first = epoch * passes_of_epoch(source) or (membership.passes.get(source, 0) if is_source(source) else 0)
    if first:
        dataset.begin_at(first)


def _put_backups_last(given: inspect.BoundArguments) -> None:
    callbacks: Any = given.arguments.get("callbacks")
    ordered = backups_last(listed(callbacks))
    if hasattr(callbacks, "callbacks"):
        callbacks.callbacks = ordered
    elif ordered:
        given.arguments["callbacks"] = ordered


def _built_by_its_step(model: Any, batch: PyTree) -> bool:
    """Builds a model by its step, if that takes the data alone; returns whether it does."""
    strategy = strategy_of(model)
    step = next(filter(takes_data, (model.train_step, model.test_step)), None)
    if strategy is None or step is None:
        return False
    # Such a step need not call the model, and what was compiled need not fit its batches.
    if not model._replicax.is_built_by_step:
        with strategy.scope():
            ProgramCache(lambda: step).program((batch,), {})
        model._replicax.is_built_by_step = True
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return True


def _joined(model: Any, call: str) -> Any:
    """Lets a model that belongs to no strategy join the one in whose scope a loop is called; returns it, or None."""
    current = context.current()
    strategy = current.strategy
    if strategy is None or current.replica is not None or current.frame is not None:
        return None
    has_places = any(layout_of(variable) is not None for variable in model.variables)
    if has_places or strategy.keras_loops(model) is not None:  # The strategy must know variables from their beginning.
        if not getattr(model, "_replicax_warned", False):
            model._replicax_warned = True
            warnings.warn(
                f"Model.{call} of {model.name!r} was called inside the scope of {strategy!r}, but the model was made "
                "outside of it, so it runs without the strategy. Make (or load) the model inside the scope.",
                stacklevel=4,
            )
        return None
    # The first step that places its state moves the variables, and what is made later with them: an optimizer's slots.
    model._replicax = _Membership(strategy)
    model.train_function = model.test_function = model.predict_function = None  # They may have been made without it.
    return strategy


def _run_loop(original: Callable[..., Any], model: Any, given: inspect.BoundArguments) -> Any:
    _check_thread(original.__name__, model)
    outer = model._replicax.loops
    try:
        return _counted_loop(original, model, given, outer)
    except BaseException:
        model._replicax.ended(outer)  # An interrupt may have come where the loop was counted.
        raise


def _counted_loop(original: Callable[..., Any], model: Any, given: inspect.BoundArguments, outer: int) -> Any:
    before = model._replicax.steps
    model._replicax.loops = outer + 1
    try:
        with _EVALUATING() if original.__name__ in ("evaluate", "predict") else contextlib.nullcontext():
            return original(*given.args, **given.kwargs)
    except (StopIteration, UnboundLocalError, IndexError) as error:
        # Keras's loops raise this when their first `next` finds nothing.
        is_of_keras = not isinstance(error, IndexError) or is_of_empty_generator(error)
        if is_of_keras and model._replicax.steps == before:
            raise BatchError(f"{original.__name__}: the data yielded no batch at all.") from error
        raise
    except TypeError as error:
        has_lost_step = original.__name__ == "fit" and model.train_function is None
        if has_lost_step and "'NoneType' object is not callable" in str(error):
            raise ContextError(
                "Model.compile was called while fit runs, by a callback say: the loop has lost its step. Stop the loop "
                "(model.stop_training = True), compile, and call fit again with initial_epoch."
            ) from error
        raise
    finally:
        model._replicax.ended(outer)


def _check_current(call: str, strategy: StrategyBase) -> None:
    current = context.current()
    if current.replica is not None:
        raise ContextError(
            f"Model.{call} was called inside strategy.run. It runs the model on all replicas by itself: call it "
            "outside of run. In a function for run, call the model: model(x)."
        )
    if current.strategy not in (None, strategy):
        raise ContextError(
            f"Model.{call} of a model that belongs to {strategy!r} was called inside the scope of {current.strategy!r}."
        )


def _check_thread(call: str, model: Any) -> None:
    """Notes the thread of a model's loop. Keras takes the variables' values from them for as long as a loop runs."""
    own = threading.get_ident()
    if model._replicax.loops and model._replicax.thread != own:
        raise ContextError(
            f"Model.{call} of {model.name!r} was called while another thread runs fit, evaluate or predict of the same "
            "model. One model is used by one thread at a time: wait for the other to end."
        )
    model._replicax.thread = own


def _with_strategy_steps(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            accept_state(self)
            return original(self, force)
        if getattr(self, attribute) is None or force:
            loops = strategy.keras_loops(self)
            if loops is None:
                functions: object = StepFunctions(self, strategy, self._replicax)
            else:
                functions = loops.steps
            setattr(self, attribute, getattr(functions, kind)())
        return getattr(self, attribute)

    return make


def _whole_or_not_at_all(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    @clock.saving
    def save(self: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, filepath, overwrite, *args, **kwargs)

        def write() -> Any:
            return write_atomically(filepath, lambda path: original(self, path, overwrite, *args, **kwargs), overwrite)

        if not has_workers(strategy):
            return write()
        return save_on_workers(self, filepath, write, strategy, original.__name__)

    return save


def _check_file(model: Any, path: str) -> None:
    strategy = strategy_of(model)
    # In a loop a callback loads, which decides alike. Where workers come and go, they take the values of others.
    if strategy is None or strategy.placement.group.may_change or model._replicax.loops:
        return
    if has_workers(strategy):
        check_same_weights(path)


def _for_another_process(trainer: type[keras.Model]) -> Callable[[keras.Model], tuple[object, ...]]:
    def __reduce__(self: keras.Model) -> tuple[object, ...]:
        """Sends a model of a client with its strategy, in whose scope it is made again there."""
        strategy = strategy_of(self)
        if strategy is None or not strategy.is_client:
            return super(trainer, self).__reduce__()
        membership = self._replicax
        is_built = membership.batch is not None and membership.compilation is compilation_of(self)
        return _made_in_scope, (strategy, ModelParcel.of(self, membership.batch if is_built else None))

    return __reduce__


def _made_in_scope(strategy: StrategyBase, parcel: ModelParcel) -> keras.Model:
    install_trainer_hooks()  # With Keras not loaded yet, the scope would not do it.
    with strategy.scope():
        return parcel.opened()


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """Copies a model as `copy.deepcopy` would, in the scope of its strategy."""
    rebuild, arguments = self.__reduce__()[:2]
    strategy = strategy_of(self)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        return rebuild(*copy.deepcopy(arguments, memo))


@contextlib.contextmanager
def _without_our_keras_distribution() -> Iterator[None]:
    """Inside a scope ours is active; Keras's loops would ask it for layouts of data."""
    import keras

    previous = keras.distribution.distribution()
    try:
        if context.current().strategy is not None:
            keras.distribution.set_distribution(None)
        yield
    finally:
        keras.distribution.set_distribution(previous)
