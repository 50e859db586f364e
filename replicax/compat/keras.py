"""Parts of Keras for which it exports no name. Read in Keras 3.12 to 3.15.

Keras is imported when it is asked, not before. `tests/compat/test_keras.py` names what a newer Keras lacks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_Kind = TypeVar("_Kind", bound=type)
#: Arguments that a layer was not given, in Keras's messages.
_ABSENT = re.compile(r"\n  • \w+=(None|<class 'inspect\._empty'>)(?=\n|$)")

# Classes of which Keras exports subclasses only: they are found among the bases of one, by name.


def optimizer_class() -> type:
    """Returns the class whose `apply` all optimizers inherit."""
    # Without the name: `keras.optimizers.Optimizer`, of which they are subclasses too.
    import keras

    return _base(keras.optimizers.Optimizer, "BaseOptimizer")


def trainer_class() -> type:
    """Returns the class of which a `keras.Model` has `fit` and what makes its steps."""
    # Without the name: the first base that defines `make_train_function`.
    import keras

    return _base(keras.Model, "JAXTrainer")


def variable_class() -> type:
    """Returns the class whose `__init__` gives a `keras.Variable` its first value; it needs no private name."""
    import keras

    return next(base for base in keras.Variable.__mro__ if "__init__" in vars(base))


def distribution_class() -> type:
    """Returns the class of `keras.distribution` that learns of each new variable."""
    # Without the name: `keras.distribution.DataParallel`, with all of its methods overridden.
    import keras

    return _base(keras.distribution.DataParallel, "Distribution")


def data_adapter_class() -> type:
    """Returns the class of what yields batches to the loops; without it, loops take a Python generator."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    return DataAdapter


def _base(of: type, name: str) -> type:
    return next(base for base in of.__mro__ if base.__name__ == name)


# Layers and their variables.


@contextlib.contextmanager
def objects_named_anew(counts: dict[str, int]) -> Iterator[None]:
    """Makes Keras number the names of objects (`dense_1`) on in `counts`, a `defaultdict`, in a `with` block."""
    # Without the attribute: objects are numbered through the whole process, and a model function has to name its
    # layers.
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", counts)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", before)


def name_scope() -> str:
    """Returns the path of the layer that is being built, or an empty string."""
    # Without the function: the `path` of a variable that is made for its name, and thrown away.
    from keras.src.backend.common.name_scope import current_path

    return str(current_path())


def open_scopes() -> list[object]:
    """Returns the layers, optimizers and metrics that are building or calling just now, the innermost first."""
    # Without the attribute: the makers of variables are unknown, and layouts follow from their shapes alone.
    from keras.src.backend.common import global_state

    scopes = global_state.get_global_attribute("name_scope_stack") or ()
    callers = [scope.caller for scope in reversed(scopes) if scope.caller is not None]
    return [caller for i, caller in enumerate(callers) if all(caller is not other for other in callers[:i])]


def is_in_layer_call() -> bool:
    """Returns whether the running code is a layer's forward pass (or a model's)."""
    # Without the attribute: a wrapper of `keras.Layer.__call__` that counts.
    from keras.src.backend.common.global_state import get_global_attribute

    return get_global_attribute("current_call_ctx") is not None


def is_in_stateless_scope() -> bool:
    """Returns whether assignments to variables go to a `keras.StatelessScope` just now."""
    # Without the attribute: whether a variable that is assigned its own value keeps the array that it has.
    from keras.src.backend.common.global_state import get_global_attribute

    return get_global_attribute("stateless_scope") is not None


def leave_own_scopes() -> None:
    """Leaves the scopes of replicax in which this thread is still, since an interrupt has kept it from leaving them."""
    # Without the attributes: after a Ctrl-C at such a moment Keras's variables do not get their values any more.
    if "keras" not in sys.modules:
        return
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

    scope = innermost = get_global_attribute("stateless_scope")
    while getattr(scope, "is_of_replicax", False):
        scope = scope.original_scope
    if scope is not innermost:
        set_global_attribute("stateless_scope", scope)


def sublayers(layer: keras.Layer, include_self: bool = False, recursive: bool = True) -> list[keras.Layer]:
    """Returns the layers that a layer or model holds, at any depth if `recursive`."""
    # Without the method: a walk through the attributes of layers that are layers, or lists and dicts of them.
    return list(layer._flatten_layers(include_self=include_self, recursive=recursive))


def was_called(layer: keras.Layer) -> bool:
    """Returns whether a layer was called, on arrays or symbols."""
    # Without the attribute: a wrapper of `keras.Layer.__call__` that notes it.
    return bool(layer._called)


#: The method of `BatchNormalization` that computes the statistics of a batch. Without it: its `call` is overridden.
MOMENTS = "_moments"


def own_moments(layer: keras.layers.BatchNormalization, inputs: jax.Array, mask: jax.Array | None) -> Any:
    """Returns the mean and variance of the rows as Keras computes them."""
    import keras

    # On TensorFlow Keras would synchronize where a layer says so, and on JAX it would raise an error then.
    if mask is None:
        return keras.ops.moments(inputs, axes=layer._reduction_axes)
    return keras.layers.BatchNormalization._moments(layer, inputs, mask)


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the axes over which a layer takes means. Without the attribute: all but `axis`."""
    return list(layer._reduction_axes)


def epsilon() -> float:
    """Returns Keras's small number."""
    import keras

    return float(keras.config.epsilon())


def initialize_new_variables() -> None:
    """Gives the variables that layers and optimizers have just made their initial values."""
    # Keras does so when its last stateless scope is left. Without the function: variables that have no value yet are
    # given that of their `initializer`.
    from keras.src.backend.common import global_state, variables

    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        variables.initialize_all_variables()
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def trainable_variables_of(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Returns what an optimizer was built for. Without the attribute: `build` is wrapped, and notes it."""
    return list(optimizer._trainable_variables)


def slots_of(optimizer: keras.optimizers.Optimizer) -> dict[str, list[keras.Variable | None]]:
    """Returns the lists in which an optimizer keeps a variable for each one that it updates, such as `"momentums"`."""
    # Without the attributes: the variables' paths, which end in a singular of these names.
    import keras

    count, own = len(trainable_variables_of(optimizer)), {id(variable) for variable in optimizer.variables}
    found = {}
    for name, value in vars(optimizer).items():
        is_list = isinstance(value, list) and len(value) == count and name not in ("_variables", "_trainable_variables")
        if is_list and any(isinstance(each, keras.Variable) and id(each) in own for each in value):
            found[name.removeprefix("_")] = list(value)
    return found


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> jax.Array | Callable[[jax.Array], jax.Array]:
    """Returns the learning rate as an array, or the schedule: a function of the number of steps made before."""
    # Without the name: `optimizer.learning_rate`, whose schedule counts the steps of the optimizer itself.
    found = getattr(optimizer, "_learning_rate", None)
    return found if callable(found) else jax.numpy.asarray(optimizer.learning_rate)


def as_tensor_of(variable: keras.Variable, value: object, dtype: object) -> jax.Array:
    """Returns a value as an array of a dtype. Without the method: `keras.ops.convert_to_tensor`."""
    return variable._convert_to_tensor(value, dtype=dtype)


def set_initializer(variable: keras.Variable, initializer: Callable[..., jax.Array]) -> None:
    """Replaces the initializer of a variable that has no value yet. Without the attribute: it is assigned later."""
    variable._initializer = initializer


def assign_without_scopes(variable: keras.Variable, value: object) -> None:
    """Assigns a value to the variable itself, whatever stateless scope there is."""
    # Without the method: the scope is taken away meanwhile, as in `initialize_new_variables`.
    variable._direct_assign(as_tensor_of(variable, value, variable._dtype))


def wrap_first_values(wrapper: Callable[[Callable[..., None], Callable[..., None]], Callable[..., None]]) -> None:
    """Wraps the method by which a variable gets the first value that an initializer computes."""
    # The second argument of `wrapper` tells Keras's distribution of a variable. Without the method: a strategy gets
    # whole values, and large variables are made here before they are sent.
    import keras

    name = "_initialize_with_initializer"
    owner = next(base for base in keras.Variable.__mro__ if name in vars(base))
    setattr(owner, name, wrapper(getattr(owner, name), lambda variable: variable._initialize_layout()))


def change_class(variable: object, subclass_of: Callable[[_Kind], _Kind]) -> None:
    """Gives a variable that Keras (or `rx.Variable`) has just made a class of ours, a subclass of its own."""
    # Python allows that only between classes of one layout: the subclass has empty `__slots__`, and Keras's class none.
    # Keras has no way to say which class its layers make variables of. If this goes: `keras.Layer.add_weight`,
    # `keras.optimizers.Optimizer.add_variable` and `keras.metrics.Metric.add_variable` are wrapped.
    kind: Any = type(variable)
    variable.__class__ = subclass_of(kind)


def compile_arguments(model: keras.Model) -> dict[str, object]:
    """Returns the arguments that a model was compiled with, as they were given."""
    # Without the attribute: `get_compile_config`, from which losses and metrics that are functions cannot be made
    # again.
    return dict(model._compile_config.config)


def compilation_of(model: keras.Model) -> object:
    """Returns an object that stands for one call of `compile`; None before. Without the attribute: its `optimizer`."""
    return getattr(model, "_compile_config", None)


def takes_one_tensor(model: keras.Model) -> bool:
    """Returns whether a functional model, such as a built `Sequential`, is made for one tensor, not a dict or list."""
    # Without the attribute: `model.inputs` has one input, and an error where that stands in a dict.
    import keras

    return isinstance(getattr(model, "_inputs_struct", None), keras.KerasTensor)


# The loops: what `fit`, `evaluate` and `predict` do around the steps.


def initial_epoch(model: keras.Model) -> int | None:
    """Returns the epoch that a callback has told `fit` to begin with; None if none has."""
    return model._initial_epoch


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Sets the first epoch of the `fit` that is beginning."""
    # As Keras's own `BackupAndRestore` does. Without the attribute: the `initial_epoch` given to `fit` is changed where
    # a model's `fit` is wrapped, before callbacks are asked.
    model._initial_epoch = epoch


def stop_writing(backup: keras.callbacks.BackupAndRestore, takes_part: bool = False) -> None:
    """Lets a `BackupAndRestore` restore only; if `takes_part`, it still calls `save_weights`, to help the others."""
    # Without the method: a subclass overrides the hooks that save.
    backup._save_model = lambda: backup.model.save_weights(backup._weights_path) if takes_part else None
    backup.on_train_end = lambda logs=None: None


@contextlib.contextmanager
def write_only_if(backup: keras.callbacks.BackupAndRestore, writes: Callable[[], bool]) -> Iterator[None]:
    """Lets a `BackupAndRestore` write only while `writes()` is true, in a `with` block; see `stop_writing`."""
    save, end = backup._save_model, backup.on_train_end

    def on_train_end(logs: Mapping[str, Any] | None = None) -> None:
        if writes():
            end(logs)

    backup._save_model = lambda: save() if writes() else None
    backup.on_train_end = on_train_end
    try:
        yield
    finally:
        del backup._save_model, backup.on_train_end


@contextlib.contextmanager
def epoch_iterator_noted(model: keras.Model, note: Callable[[object], None]) -> Iterator[None]:
    """Calls `note` with what counts the batches of the loops of a model that begin in a `with` block."""
    # Without the method it is not called; see `set_steps_seen`.
    build = model._symbolic_build

    def noting(iterator: Any = None, **given: Any) -> None:
        if iterator is not None:
            note(iterator)
        build(iterator=iterator, **given)

    vars(model)["_symbolic_build"] = noting  # Keras tracks what is set otherwise.
    try:
        yield
    finally:
        del vars(model)["_symbolic_build"]


def build_otherwise(
    trainer: Any, build: Callable[[keras.Model, PyTree], bool], batch_of: Callable[[Any], PyTree]
) -> None:
    """Has `build` build models where Keras fails to build one by calling it with a part of the first batch.

    `build` returns False if it cannot either. `batch_of` returns, for what yields batches to a loop, a batch like the
    first one, so that Keras need not begin a pass to see that; None if Keras has to.
    """
    # Without the method: Keras's error about a model that it cannot build, and passes that begin too early.
    original = trainer._symbolic_build

    @functools.wraps(original)
    def symbolic_build(self: keras.Model, iterator: Any = None, data_batch: PyTree = None) -> None:
        seen = [] if data_batch is None else [data_batch]

        def noted() -> Iterator[tuple[int, int, Iterator[PyTree]]]:
            # Keras asks only where something is not built; nothing is read for the others.
            alike = batch_of(iterator.data_adapter)
            for begin, end, data in iterator if alike is None else [(0, 0, [alike])]:
                seen.extend(itertools.islice(data, 1))  # There may be none: Keras says so.
                yield begin, end, iter(seen)

        try:
            original(self, None if iterator is None else noted(), data_batch)
        except Exception:
            if not seen or not build(self, seen[-1]):
                raise

    trainer._symbolic_build = symbolic_build


def let_epochs_differ(is_sized_anew: Callable[[Any], bool]) -> None:
    """Lets each epoch over some data have as many steps as there are batches."""
    # Without the method: Keras takes the length of the first epoch for that of all, which leaves out the rest of longer
    # ones, and says after each that the data has ended too early.
    from keras.src.trainers.epoch_iterator import EpochIterator

    original = EpochIterator.catch_stop_iteration

    @contextlib.contextmanager
    def catch_stop_iteration(self: Any) -> Iterator[None]:
        if self.steps_per_epoch or not is_sized_anew(self.data_adapter):
            with original(self):
                yield
            return
        try:
            yield
        except StopIteration:
            self._current_iterator = None
            self.data_adapter.on_epoch_end()

    EpochIterator.catch_stop_iteration = catch_stop_iteration


def let_values_stay(stays: Callable[[Any], bool]) -> None:
    """Lets the values of some models stay in their variables while a loop runs, whose steps are handed these values."""
    # Without the name: an error between two steps leaves such a model without values.
    trainer: Any = trainer_class()
    original = getattr(trainer, "_purge_model_variables", None)
    if original is None:
        return

    @functools.wraps(original)
    def _purge_model_variables(self: Any, *args: object, **kwargs: object) -> None:
        if not stays(self):
            original(self, *args, **kwargs)

    trainer._purge_model_variables = _purge_model_variables


def steps_of(optimizer: Any) -> Any:
    """Returns the variable in which an optimizer counts its steps, also those that only accumulate gradients."""
    # Without the name: its updates, of which there are fewer where gradients are accumulated.
    return getattr(optimizer, "_iterations", optimizer.iterations)


def set_steps_seen(epoch_iterator: Any, earlier: int) -> None:
    """Counts the batches of earlier epochs: Keras begins anew with data of known length when it has seen all of it."""
    # Without the attribute: a worker that joins a `fit(steps_per_epoch=...)` on arrays begins anew with them too late.
    epoch_iterator._steps_seen += earlier


def user_lets_replace(path: object) -> bool:
    """Asks whether a file may be replaced, as `model.save(overwrite=False)` does."""
    # Without the function: `input`, and the file stays unless the answer is "y".
    from keras.src.utils.io_utils import ask_to_proceed_with_overwrite

    return bool(ask_to_proceed_with_overwrite(path))


def is_default_hook(hook: Callable[..., object]) -> bool:
    """Returns whether a hook of a callback is the one of `keras.callbacks.Callback`, which does nothing."""
    # Without the mark: the functions are compared with those of `keras.callbacks.Callback`.
    return bool(getattr(hook, "_is_default", False))


def is_of_empty_generator(error: BaseException) -> bool:
    """Returns whether a loop was given a generator that yields nothing; Keras 3.15 has a `ValueError` for it."""
    # Where the module has another name, the `IndexError` of Keras's own stays what it is.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__")
    return isinstance(error, IndexError) and module == "keras.src.trainers.data_adapters.generator_data_adapter"


def is_of_a_layer(error: BaseException) -> bool:
    """Returns whether a layer's call failed, so that Keras has told in the message what the layer was given."""
    # Without the name: the message stays as it is.
    return hasattr(error, "_keras_call_info_injected")


def name_given_arguments_alone(error: BaseException) -> None:
    """Shortens the message of a layer's call: it names no arguments that were not given or are None."""
    if is_of_a_layer(error) and error.args:
        told, heading, arguments = str(error.args[0]).rpartition("\n\nArguments received by ")
        if heading:
            error.args = (told.replace("\n\n", "\n", 1) + heading[1:] + _ABSENT.sub("", arguments),)


def check_compiled(model: keras.Model, call: str) -> None:
    """Raises Keras's `ValueError` unless `model.compile` was called."""
    # Without the method: `model.compiled` says it.
    model._assert_compile_called(call)


def is_epoch_to_validate(model: keras.Model, epoch: int, frequency: int | Sequence[int]) -> bool:
    """Returns whether `validation_freq` asks for a validation after an epoch. Without the method: a division."""
    return model._should_eval(epoch, frequency)


def metrics_or_logs(model: keras.Model, logs: object) -> dict[str, Any]:
    """Returns the metrics' results by name, or the logs that a step of the model's own has returned."""
    # Without the method: `model.get_metrics_result`, if its names are those of the logs.
    return dict(model._get_metrics_result_or_logs(logs))


def in_order_of_metrics(model: keras.Model, logs: Mapping[str, Any]) -> Any:
    """Returns logs as `return_dict=False` wants them. Without the method: in the order of `model.metrics_names`."""
    return model._flatten_metrics_in_order(logs)


def build_for(model: keras.Model, batch: PyTree) -> None:
    """Makes the variables of a model, its metrics and its optimizer for batches like `batch`, computing nothing."""
    # Without the method: `keras.backend.compute_output_spec` of the model, its loss and its metrics, and then
    # `optimizer.build`.
    model._symbolic_build(data_batch=batch)


# The data of the loops.


def are_arrays(data: PyTree) -> bool:
    """Returns whether data are arrays (tables, tensors, pytrees of them). Without it: all leaves have a shape."""
    from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays

    return can_convert_arrays(data)


def as_one_batch(
    x: PyTree, y: PyTree, sample_weight: PyTree, class_weight: Mapping[int, float] | None, rows: int
) -> PyTree:
    """Returns all rows of arrays as one batch `(x, y, sample_weight)`, checked by Keras."""
    # Without the class: `keras.ops.convert_to_numpy` of each leaf, and weights of classes looked up in `y`.
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = ArrayDataAdapter(x, y, sample_weight=sample_weight, class_weight=class_weight, batch_size=rows)
    return next(iter(adapter.get_numpy_iterator()))


def split_for_validation(arrays: PyTree, fraction: float) -> tuple[PyTree, PyTree]:
    """Returns the rows of arrays for training and those for validation. Without it: two slices of each array."""
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    return train_validation_split(arrays, validation_split=fraction)


def as_python_numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs with Python numbers in place of scalars. Without it: `float` of each that has no dimension."""
    from keras.src.utils.python_utils import pythonify_logs

    return pythonify_logs(logs)
