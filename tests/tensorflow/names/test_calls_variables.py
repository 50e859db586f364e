"""TensorFlow's keywords of variables, losses, checkpoints and functions do here what they do there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.tensorflow.names.calls import tries

_V = "tf.Variable"
_K = "tf.train.Checkpoint"
_M = "tf.train.CheckpointManager"


@tries(_V, *(f"{_V}.{name}" for name in ("assign", "assign_add", "assign_sub", "read_value", "value")))
@pytest.mark.parametrize("replicas", [0, 2])
def test_variables(call, mirrored, replicas):
    strategy = mirrored(replicas) if replicas else rx.get_strategy()
    with strategy.scope():
        variable = call(
            _V,
            rx.Variable,
            initial_value=lambda: 1,
            trainable=False,
            validate_shape=True,
            caching_device=None,
            name="v",
            variable_def=None,
            dtype="float32",
            import_scope=None,
            constraint=abs,
            synchronization=rx.VariableSynchronization.ON_WRITE,
            aggregation=rx.VariableAggregation.MEAN,
            shape=None,
            experimental_enable_variable_lifting=True,
        )
        by_place = rx.Variable(1.0, False, True, None, "p", None, "float32")
    assert (variable.name, variable.trainable, variable.dtype) == ("v", False, np.float32)
    assert variable.constraint is abs
    assert (by_place.name, by_place.trainable) == ("p", False)

    def step():
        call(f"{_V}.assign", variable.assign, value=3.0, use_locking=True, name="label", read_value=True)
        call(f"{_V}.assign_add", variable.assign_add, delta=2.0, use_locking=False, name=None, read_value=False)
        call(f"{_V}.assign_sub", variable.assign_sub, delta=1.0, use_locking=None, name=None, read_value=True)
        variable.assign_add(1.0, False, "label", True)
        return call(f"{_V}.read_value", variable.read_value)

    assert float(step()) == 5.0
    assert float(strategy.run(step)) == 5.0
    assert float(rx.function(step)()) == 5.0
    assert float(call(f"{_V}.value", lambda: variable.value)) == 5.0


_ROWS = {  # Rows 0 and 2 of [[1, 2], [3, 4], [5, 6]] with updates [[2, 2], [8, 8]]
    "scatter_add": [[3, 4], [3, 4], [13, 14]],
    "scatter_sub": [[-1, 0], [3, 4], [-3, -2]],
    "scatter_mul": [[2, 4], [3, 4], [40, 48]],
    "scatter_div": [[0.5, 1], [3, 4], [0.625, 0.75]],
    "scatter_max": [[2, 2], [3, 4], [8, 8]],
    "scatter_min": [[1, 2], [3, 4], [5, 6]],
    "scatter_update": [[2, 2], [3, 4], [8, 8]],
    "scatter_nd_add": [[3, 4], [3, 4], [13, 14]],
    "scatter_nd_sub": [[-1, 0], [3, 4], [-3, -2]],
    "scatter_nd_update": [[2, 2], [3, 4], [8, 8]],
    "scatter_nd_max": [[2, 2], [3, 4], [8, 8]],
    "scatter_nd_min": [[1, 2], [3, 4], [5, 6]],
}
_ONLY_THERE = ("scatter_nd_max", "scatter_nd_min")  # of DVariable


def _full_name(name: str) -> str:
    return f"tf.experimental.dtensor.DVariable.{name}" if name in _ONLY_THERE else f"{_V}.{name}"


@tries(*map(_full_name, _ROWS), f"{_V}.batch_scatter_update", "tf.IndexedSlices")
def test_scatter_methods(call):
    updates = np.array([[2.0, 2.0], [8.0, 8.0]], np.float32)
    for name, expected in _ROWS.items():
        variable = rx.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        method = getattr(variable, name)
        if "_nd_" in name:
            call(_full_name(name), method, indices=[[0], [2]], updates=updates, name="label")
        else:
            delta = call("tf.IndexedSlices", rx.IndexedSlices, values=updates, indices=[0, 2], dense_shape=(3, 2))
            call(_full_name(name), method, sparse_delta=delta, use_locking=False, name="label")
        assert variable.numpy().tolist() == expected, name
    variable = rx.Variable([[1.0, 2.0], [3.0, 4.0]])
    delta = rx.IndexedSlices(values=np.array([[5.0], [6.0]], np.float32), indices=[[0], [1]])
    of = f"{_V}.batch_scatter_update"
    call(of, variable.batch_scatter_update, sparse_delta=delta, use_locking=True, name=None)
    assert variable.numpy().tolist() == [[5.0, 2.0], [3.0, 6.0]]


@pytest.mark.parametrize(
    ("keyword", "value", "way_out"),
    [
        ("validate_shape", False, "fixed shape"),
        ("caching_device", "cpu:0", "strategy places"),
        ("shape", (2,), "initial value's"),
    ],
)
def test_what_variables_have_not_is_refused_with_a_way_out(keyword, value, way_out):
    with pytest.raises(ArgumentError, match=f"`{keyword}`.*{way_out}"):
        rx.Variable(1.0, **{keyword: value})


@tries("tf.nn.compute_average_loss", "tf.nn.scale_regularization_loss")
def test_losses(call, mirrored):
    losses = jnp.array([1.0, 2.0])

    def step():
        mean = call(
            "tf.nn.compute_average_loss",
            rx.compute_average_loss,
            per_example_loss=losses,
            sample_weight=jnp.array([1.0, 2.0]),
            global_batch_size=4,
        )
        return mean, call("tf.nn.scale_regularization_loss", rx.scale_regularization_loss, regularization_loss=losses)

    strategy = mirrored(2)
    shares = [strategy.local_results(share) for share in strategy.run(step)]  # Each replica has its own.
    assert np.asarray(shares).tolist() == [[1.25, 1.25], [1.5, 1.5]]


@tries("tf.TensorSpec")
def test_specs(call):
    spec = call("tf.TensorSpec", rx.TensorSpec, shape=(None, 3), dtype=jnp.float32, name="x")
    assert spec == rx.TensorSpec([None, 3], "float32", "x")


@tries("tf.function")
def test_functions(call):
    def step(x):
        return x + 1

    compiled = call(
        "tf.function",
        rx.function,
        func=step,
        input_signature=[jax.ShapeDtypeStruct((), jnp.float32)],
        autograph=False,
        jit_compile=True,
        reduce_retracing=False,
        experimental_implements=None,
        experimental_autograph_options=None,
        experimental_attributes=None,
        experimental_relax_shapes=None,
        experimental_compile=None,
        experimental_follow_type_hints=None,
    )
    assert float(compiled(1.0)) == 2.0
    assert float(rx.function(step, None, False, True)(1.0)) == 2.0  # In TensorFlow's order.
