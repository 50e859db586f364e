"""TensorFlow's names outside of tf.distribute that scripts use in their steps, and names of older versions."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Rows, absent, differs, refused, renamed, to

_CONTRIB = "`tf.contrib` ended with TensorFlow 1. "
_COMPILES = refused(
    "XLA compiles every `rx.function`, which is what `jit_compile=True` asks for. To run the Python operation by "
    "operation use `rx.config.run_eagerly(True)`.",
    None,
    True,
)
_SHAPES = refused(
    "XLA compiles for fixed shapes, so each new shape makes a program. Give batches of one size "
    "(`rx.InputOptions(remainder='drop')`, or pad them), and leave it out.",
    None,
    False,
)
_CONTROL_FLOW = (
    "Nothing rewrites the function's Python: an `if` or `for` over arrays is written with `jnp.where`, `jax.lax.cond`, "
    "`scan` or `fori_loop`; over Python values it runs while the function is traced. Leave it out."
)
_GRAPHS = refused("There is no TensorFlow graph to mark or to replace functions in. Leave it out.", None)

BESIDE: Rows = {
    "tf.function": differs(
        "function",
        "One trace for a kind of arguments, not one for each replica; Python's control flow stays.",
        func=to("fn"),
        jit_compile=_COMPILES,
        experimental_compile=_COMPILES,
        reduce_retracing=_SHAPES,
        experimental_relax_shapes=_SHAPES,
        autograph=refused(_CONTROL_FLOW, None, False),
        experimental_autograph_options=refused(_CONTROL_FLOW, None),
        experimental_implements=_GRAPHS,
        experimental_attributes=_GRAPHS,
        experimental_follow_type_hints=refused(
            "Arrays and numbers are inputs, whatever their annotations say. Leave it out.", None, False
        ),
    ).ordered(
        "func input_signature autograph jit_compile reduce_retracing experimental_implements "
        "experimental_autograph_options experimental_attributes experimental_relax_shapes "
        "experimental_compile experimental_follow_type_hints"
    ),
    # TensorFlow beside tf.distribute: what scripts use in their steps.
    "tf.GradientTape": absent(
        "A function takes its place: `loss, grads = rx.value_and_grad(loss_fn, variables)()`; the gradients are summed "
        "over the replicas."
    ),
    "tf.Module": differs(
        "Module", "Variables come in the order of the attributes' names, those of modules inside behind them."
    ),
    "tf.keras": absent("Use Keras 3 itself: `import keras`."),
    "tf.data.Dataset": absent(
        "`strategy.distribute_dataset` takes any iterable of global batches: arrays with `batch_size=`, Grain, a torch "
        "`DataLoader`, a `tf.data.Dataset` where TensorFlow is installed."
    ),
    "tf.constant": absent("Use `jax.numpy.asarray`."),
    "tf.cast": absent("Use `x.astype(dtype)`."),
    "tf.reduce_sum": absent("Use `jax.numpy.sum`."),
    "tf.reduce_mean": absent("Use `jax.numpy.mean`."),
    "tf.gradients": absent("Use `rx.grad(loss_fn, variables)()`."),
    "tf.print": absent("Use `jax.debug.print('loss {}', loss)`, which prints at each call of a compiled step."),
    "tf.py_function": absent("Use `jax.pure_callback` or `jax.experimental.io_callback`."),
    "tf.random": absent("Use `keras.random` with a `keras.random.SeedGenerator`, or `jax.random`."),
    "tf.config.list_physical_devices": absent("Use `jax.devices()`."),
    "tf.config.list_logical_devices": absent("Use `jax.devices()`."),
    "tf.config.set_logical_device_configuration": renamed(
        "config.set_virtual_devices", "It takes a number: `rx.config.set_virtual_devices(8)`."
    ),
    "tf.config.run_functions_eagerly": renamed("config.run_eagerly"),
    "tf.function.get_concrete_function": absent(
        "`function.lower(*args)` gives the program for these arguments; `rx.export` saves one."
    ),
    "tf.function.experimental_get_compiler_ir": absent("Use `function.lower(*args).compile().as_text()`."),
    "tf.function.experimental_get_tracing_count": absent("Use the property `function.num_programs`."),
    "tf.function.pretty_printed_concrete_signatures": absent(
        "`function.num_programs` says how many kinds of arguments have been compiled."
    ),
    "tf.keras.utils.experimental.DatasetCreator": renamed("data.DatasetCreator"),
    "tf.keras.utils.SidecarEvaluator": renamed("keras.SidecarEvaluator"),
    "tf.errors.UnavailableError": differs(
        "errors.ParameterServerLost", "Raised without a checkpoint manager only; with one, training goes on."
    ),
    "tf.errors.CancelledError": renamed("errors.CancelledError"),
    "tf.errors.OutOfRangeError": differs(
        "errors.EndOfDataError", "In a scheduled function; a loop over a dataset ends with StopIteration."
    ),
    # Predecessors.
    "tf.contrib": absent(_CONTRIB + "Its `distribute` lives on in `replicax` itself."),
    "tf.contrib.distribute": absent(_CONTRIB + "Its classes are those of `replicax` now."),
    "tf.contrib.distribute.run_standard_tensorflow_server": absent(_CONTRIB + "`rx.Server(resolver).join()` serves."),
}
