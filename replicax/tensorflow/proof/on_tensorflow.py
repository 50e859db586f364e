"""Runs a script on TensorFlow under control: `python -m proof.on_tensorflow SPECIFICATION.json`.

It runs in TensorFlow's interpreter. Strategies of all kinds become mirrored ones over as many CPU devices as there are
to be replicas: their arithmetic is the same, and one machine without accelerators can run it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Protocol

import numpy as np

from .draws import Draws
from .keras_controls import control_fit, control_initializers, control_layers
from .recording import Finished, Recorder

#: How many characters of a traceback are kept: whole lines from its end.
LONGEST = 2000
#: Numbers of the places that differentiate, by what they differentiate with respect to.
Sites = dict[tuple[int, ...], int]


class Variable(Protocol):
    """A variable of TensorFlow."""

    name: str
    shape: Sequence[int]
    layout: SimpleNamespace  # of DTensor's variables: a mesh and more

    def read_value(self) -> object:
        """Returns a tensor."""


class MirroredExtended(Protocol):
    """`extended` of a mirrored strategy of TensorFlow."""

    _get_variable_creator_initial_value: Callable


def main(path: str) -> None:
    """Runs the script of a specification, and writes its recording."""
    specification = json.loads(Path(path).read_text(encoding="utf-8"))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", TF_ENABLE_ONEDNN_OPTS="0")
    # TensorFlow 2.15 and older have Keras 2 in any case, and no package for it.
    legacy = specification["legacy_keras"] and importlib.util.find_spec("tf_keras") is not None
    os.environ["TF_USE_LEGACY_KERAS"] = "1" if legacy else "0"
    import tensorflow as tf

    np.random.seed(0)
    recorder = Recorder(specification["steps"], specification["stop"], specification["every"])
    _control(tf, recorder, Draws(), specification["devices"])
    error = run_script(specification["script"], specification["arguments"])
    recorder.recording(error).write(Path(specification["out"]))


def run_script(script: str, arguments: Sequence[str]) -> str:
    """Runs a script as `__main__`; returns the end of its traceback, or nothing if it had none."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except Finished:
        return ""
    except SystemExit as end:
        return f"SystemExit: {end.code}" if end.code else ""
    except BaseException:
        traceback.print_exc()
        text = traceback.format_exc()
        return text if len(text) <= LONGEST else text[-LONGEST:].partition("\n")[2]
    return ""


def _control(tf: ModuleType, recorder: Recorder, draws: Draws, devices: int) -> None:
    if devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    _control_strategies(tf, devices)
    _control_draws(tf, draws)
    _control_data(tf)
    _control_dtensor(tf)
    control_layers(tf.keras.layers)
    if importlib.util.find_spec("tensorboard") is None:
        tf.keras.callbacks.TensorBoard = lambda *_, **__: tf.keras.callbacks.Callback()
    control_fit(tf.keras.Model, recorder, tf.keras.callbacks.Callback, lambda model: None)
    _record_gradients(tf, recorder)
    _record_boundaries(tf, recorder)
    _record_estimators(tf, recorder)


def _control_strategies(tf: ModuleType, devices: int) -> None:
    names = [f"/device:CPU:{index}" for index in range(devices)]
    resolver = tf.distribute.cluster_resolver
    tf_config = resolver.TFConfigClusterResolver

    def mirrored(name: str, base: type) -> type:
        def __init__(self: object, *_: object, **__: object) -> None:
            base.__init__(self, names)  # type: ignore[misc]
            _initialize_alike(tf, self.extended)  # type: ignore[attr-defined]

        return type(name, (base,), {"__init__": __init__, "cluster_resolver": property(lambda self: tf_config())})

    for module in (tf.distribute, tf.compat.v1.distribute):
        base = module.MirroredStrategy
        for owner in (module, module.experimental):
            for name in ("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy", "CentralStorageStrategy"):
                if hasattr(owner, name):
                    setattr(owner, name, mirrored(name, base))
    tf.distribute.Strategy.experimental_run_v2 = lambda self, *args, **kwargs: self.run(*args, **kwargs)
    for module in (tf, tf.compat.v1):
        module.distribute.cluster_resolver.TPUClusterResolver = lambda *_, **__: resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({})
        )
        module.config.experimental_connect_to_cluster = lambda *_, **__: None
        module.tpu.experimental.initialize_tpu_system = lambda *_, **__: None


def _initialize_alike(tf: ModuleType, extended: MirroredExtended) -> None:
    """Gives the copies of a variable that a function creates one initial value, instead of a read of the first copy."""
    # TensorFlow cannot lift such a read out of the function. It compiles a `tf.cond` then, for functions that have
    # created variables and that have not, and runs it wrongly on several logical CPUs.
    given = extended._get_variable_creator_initial_value

    def initial_value(replica_id: int, device: str, primary_var: object, **kwargs: object) -> object:
        initial = kwargs["initial_value"]
        if tf.executing_eagerly() or hasattr(initial, "checkpoint_position"):
            return given(replica_id, device, primary_var, **kwargs)
        # For the copies after the first, `initial_value` is what was returned for the one before.
        return functools.cache(initial) if callable(initial) and not replica_id else initial

    extended._get_variable_creator_initial_value = initial_value


def _control_draws(tf: ModuleType, draws: Draws) -> None:
    def as_tensor(values: np.ndarray, dtype: object) -> object:
        return tf.constant(values, tf.as_dtype(getattr(dtype, "name", dtype) or tf.keras.backend.floatx()))

    for module in (tf.keras.initializers, tf.compat.v1.initializers, tf.compat.v1.keras.initializers, tf.initializers):
        control_initializers(module, draws, as_tensor)
    control_initializers(_named(tf, ("random_normal_initializer", "random_uniform_initializer")), draws, as_tensor)

    def size(shape: object) -> tuple[int, ...]:
        return tuple(np.asarray(tf.get_static_value(tf.convert_to_tensor(shape, tf.int32))).tolist())

    def normal(
        shape: object, mean: float = 0.0, stddev: float = 1.0, dtype: object = tf.float32, **_: object
    ) -> object:
        found = size(shape)
        values = draws.normal("normal", found, draws.number("normal", found))
        return tf.constant(mean + stddev * values, dtype)

    def uniform(
        shape: object, minval: float = 0.0, maxval: float | None = None, dtype: object = tf.float32, **_: object
    ) -> object:
        found, high = size(shape), 1.0 if maxval is None else maxval
        values = draws.uniform("uniform", found, draws.number("uniform", found))
        return tf.constant(minval + (high - minval) * values, dtype)

    for module in (tf.random, tf.compat.v1.random, tf.compat.v1):
        for name, draw in (("normal", normal), ("truncated_normal", normal), ("uniform", uniform)):
            for spelling in (name, "random_" + name):
                if hasattr(module, spelling):
                    setattr(module, spelling, draw)
    tf.random.stateless_normal = lambda shape, seed=None, **kwargs: normal(shape, **kwargs)
    tf.random.stateless_uniform = lambda shape, seed=None, **kwargs: uniform(shape, **kwargs)
    tf.nn.dropout = tf.compat.v1.nn.dropout = lambda x, *_, **__: tf.identity(x)


def _named(tf: ModuleType, names: Sequence[str]) -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(tf, name) for name in names if hasattr(tf, name)})


def _control_dtensor(tf: ModuleType) -> None:
    """Lets functions run operation by operation where there are DTensors: in them nothing can be recorded."""
    from tensorflow.experimental import dtensor

    create = dtensor.create_mesh

    def created(*args: object, **kwargs: object) -> object:
        tf.config.run_functions_eagerly(True)
        return create(*args, **kwargs)

    dtensor.create_mesh = created


def _control_data(tf: ModuleType) -> None:
    """Lets datasets keep their order, and read one file after the other."""
    for dataset in (tf.data.Dataset, tf.compat.v1.data.Dataset):
        dataset.shuffle = lambda self, *_, **__: self
        dataset.with_options = lambda self, *_, **__: self  # Such as one that lets elements come in any order.
        dataset.interleave = lambda self, map_func, *_, **__: self.flat_map(map_func)
    reader = tf.data.TFRecordDataset
    tf.data.TFRecordDataset = lambda filenames, compression_type=None, *_, **__: reader(filenames, compression_type)


def _record_gradients(tf: ModuleType, recorder: Recorder) -> None:
    sites: Sites = {}
    gradient = tf.GradientTape.gradient

    @functools.wraps(gradient)
    def recorded(self: object, target: object, sources: object, *args: object, **kwargs: object) -> object:
        done = _record(tf, recorder, sites, target, sources)
        return _after(tf, done, gradient(self, target, sources, *args, **kwargs))

    tf.GradientTape.gradient = recorded
    # Keras imports `tensorflow.compat.v2`, which has modules of its own: the estimator of a Keras model takes this one.
    for module in (tf.compat.v1, tf.compat.v2.compat.v1):
        module.gradients = _recorded_gradients(tf, recorder, sites, module.gradients)


def _recorded_gradients(tf: ModuleType, recorder: Recorder, sites: Sites, gradients: Callable) -> Callable:
    @functools.wraps(gradients)
    def recorded(ys: object, xs: object, *args: object, **kwargs: object) -> object:
        return _after(tf, _record(tf, recorder, sites, ys, xs), gradients(ys, xs, *args, **kwargs))

    return recorded


def _after(tf: ModuleType, done: object, gradients: object) -> object:
    """Makes gradients in a graph of TensorFlow 1 wait for what records: no function runs it by itself there."""
    if done is None or tf.executing_eagerly() or getattr(tf.compat.v1.get_default_graph(), "building_function", True):
        return gradients
    with tf.control_dependencies([done]):
        return tf.nest.map_structure(lambda each: each if each is None else tf.identity(each), gradients)


def _record(tf: ModuleType, recorder: Recorder, sites: Sites, target: object, sources: object) -> object:
    """Records an objective, or adds an operation that does where it is computed; returns that."""
    variables = [each for each in tf.nest.flatten(sources) if hasattr(each, "assign")]
    if not variables:
        return None
    key = tuple(hash(each.name) for each in variables)
    if key not in sites:
        with tf.init_scope():
            eager = tf.executing_eagerly()
            sites[key] = recorder.site(lambda: [(each.name, _value(tf, each)) for each in variables] if eager else [])
            if eager:
                recorder.keep_initial(sites[key])
    targets = tf.nest.flatten(target)
    if tf.executing_eagerly():
        recorder.objective(sites[key], 0, float(sum(np.sum(_value(tf, each)) for each in targets)))
        return None
    context = tf.distribute.get_replica_context()
    replica = int(tf.get_static_value(0 if context is None else context.replica_id_in_sync_group))
    with tf.device("/device:CPU:0"):
        value = tf.add_n([tf.cast(tf.reduce_sum(each), tf.float64) for each in targets])

        def record(value: np.ndarray) -> np.int32:
            recorder.objective(sites[key], replica, float(value))
            return np.int32(0)

        return tf.numpy_function(record, [value], tf.int32)


def _value(tf: ModuleType, tensor: Variable) -> np.ndarray:
    from tensorflow.experimental import dtensor

    layout = getattr(tensor, "layout", None)
    if layout is None and not hasattr(tensor, "assign") and dtensor.is_dtensor(tensor):
        layout = dtensor.fetch_layout(tensor)
    if layout is None:
        return np.asarray(tf.convert_to_tensor(tensor))
    held = tensor.read_value() if hasattr(tensor, "read_value") else tensor
    replicated = dtensor.Layout.replicated(layout.mesh, rank=len(tensor.shape))
    return np.asarray(dtensor.unpack(dtensor.relayout(held, replicated))[0])


def _record_boundaries(tf: ModuleType, recorder: Recorder) -> None:
    function = type(tf.function(lambda: None))
    function.__call__ = recorder.around(function.__call__)
    # `run` of a strategy may be given a function that is not compiled; the compiled ones of Keras call it inside.
    tf.distribute.Strategy.run = recorder.around(tf.distribute.Strategy.run)
    optimizer = tf.keras.optimizers.Optimizer
    for name in ("apply_gradients", "apply"):
        if hasattr(optimizer, name):
            setattr(optimizer, name, recorder.around(getattr(optimizer, name)))


def _record_estimators(tf: ModuleType, recorder: Recorder) -> None:
    """Records the steps of TensorFlow 1's optimizers, whose variables are read beside the objective."""
    optimizer = tf.compat.v1.train.Optimizer
    minimize = optimizer.minimize

    def recorded(
        self: object, loss: object, *args: object, var_list: Sequence | None = None, **kwargs: object
    ) -> object:
        made = minimize(self, loss, *args, var_list=var_list, **kwargs)
        if tf.executing_eagerly():
            return made
        variables = var_list or tf.compat.v1.trainable_variables()
        values: dict[str, np.ndarray] = {}
        names = [each.name for each in variables]
        site = recorder.site(lambda: [(name, values[name]) for name in names])

        def record(loss: np.ndarray, *arrays: np.ndarray) -> np.int32:
            values.update(zip(names, arrays, strict=True))
            recorder.objective(site, 0, float(loss))
            recorder.boundary(may_stop=False)
            return np.int32(0)

        with tf.control_dependencies([made]):
            arrays = [each.read_value() for each in variables]
            return tf.group(made, tf.numpy_function(record, [loss, *arrays], tf.int32))

    optimizer.minimize = recorded


if __name__ == "__main__":
    main(sys.argv[1])
