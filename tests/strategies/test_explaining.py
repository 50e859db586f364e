"""What `explain` says of variables, and of what a compiled step sends."""

import math

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.collectives.hlo import collectives
from replicax.errors import ArgumentError

X, Y = np.ones((16, 16), "float32"), np.ones((16, 16), "float32")


def words(shown):
    return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.fixture(scope="module")
def trained():
    strategy = rx.LayoutStrategy(mesh_shape=(2, 4), min_size=64)
    with strategy.scope():
        layers = [keras.layers.Dense(64, "relu", name="up"), keras.layers.Dense(16, name="down")]
        model = keras.Sequential([keras.Input((16,)), *layers], name="mlp")
        model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="has not been trained yet: give a batch"):
        strategy.explain(model, step=True)
    return strategy, model


def test_each_variable_has_a_line_with_the_rule_that_decided(trained):
    strategy, model = trained
    lines = words(strategy.explain(model))
    assert lines[0] == (
        "mlp/up/kernel (16, 64) ('batch', 'model') 512 bytes (up kernel of Dense in Sequential: output features over "
        "'model', the longest other dimension over 'batch')"
    )
    assert lines[1] == "mlp/up/bias (64,) ('model',) 64 bytes (bias of Dense: as mlp/up/kernel)"
    assert lines[3] == "mlp/down/bias (16,) mirrored 64 bytes (bias of Dense: as mlp/down/kernel)"
    variables = [*model.variables, *model.optimizer.variables]
    assert len(lines) == len(variables) + 1
    homes = [strategy.placement.variable_sharding(variable).shard_shape(variable.shape) for variable in variables]
    local = sum(4 * math.prod(shape) for shape in homes)
    whole = sum(variable.value.nbytes for variable in variables)
    assert lines[-1] == f"total {len(variables)} variables on each device {local} bytes (of {whole} bytes in all)"


def test_the_collectives_of_a_step_of_fit_are_counted(trained):
    strategy, model = trained
    before = np.asarray(model.get_weights()[0])
    shown = strategy.explain(model, step=(X, Y))
    caption = "collectives of a step of fit with 16 rows, with the bytes that each device has of them:"
    lines = words(shown)
    table = lines[lines.index(caption) + 1 :]
    # Kernels are gathered over the batch's axis, products summed over the model's, and gradients over the batch's.
    assert table == [
        "all-gather over batch 2 2048 bytes",
        table[1],
        "all-reduce over model 1 512 bytes",
        f"total 4 {2048 + 512 + int(table[1].split()[-2])} bytes",
    ]
    assert table[1].startswith("all-reduce over batch 1 ")
    assert "<caption>collectives of a step of fit" in shown._repr_html_()
    np.testing.assert_array_equal(model.get_weights()[0], before)
    model.fit(X, Y, batch_size=16, verbose=0)
    assert "collectives of a step of fit with 2 rows" in strategy.explain(model, step=True)


def test_the_collectives_of_a_function_are_counted():
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        w = rx.Variable(np.ones((4, 2), "float32"), name="w")

    @rx.function
    def step(x):
        return strategy.run(lambda x: w.assign_add(rx.get_replica_context().all_reduce("sum", x)), args=(x,))

    x = strategy.distribute_dataset([np.ones((32, 2), "float32")])
    batch = next(iter(x))
    lines = words(strategy.explain(step, batch))
    assert lines[0] == "w (4, 2) mirrored 32 bytes"
    assert lines[2:] == [
        "collectives of step, with the bytes that each device has of them:",
        "all-reduce over replica 1 32 bytes",
        "total 1 32 bytes",
    ]
    np.testing.assert_array_equal(w.value, np.ones((4, 2)))
    assert [each.num_bytes for each in collectives(step.lower(batch).compile().as_text())] == [32]


def test_run_moves_no_more_than_the_layouts_ask_for(trained):
    """Each device gathers its part of a kernel along the axis of the batch, and gets its shard of a gradient."""
    strategy, model = trained
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)

    def train_step(x, y):
        def loss_fn():
            return keras.ops.mean((model(x) - y) ** 2)

        _, gradients = rx.value_and_grad(loss_fn, model.trainable_variables, aggregation="mean")()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    batch = next(iter(strategy.distribute_dataset([(X, Y)])))
    lines = words(strategy.explain(rx.function(lambda x, y: strategy.run(train_step, args=(x, y))), *batch))
    kernel = 16 * 64 * 4 // 4  # bytes on each device, once its shards along the axis of the batch are gathered
    # The kernel of the first layer is used in the forward pass only: the input needs no gradient.
    assert f"all-gather over batch 3 {3 * kernel} bytes" in lines
    assert f"reduce-scatter over batch 2 {2 * kernel} bytes" in lines
    assert not any(line.startswith("all-gather over model") for line in lines)


def test_a_step_without_collectives_says_so():
    strategy = rx.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    assert words(strategy.explain(rx.function(lambda x: w.assign_add(x)), 1.0))[-1].endswith(
        "each device has of them: none"
    )


def test_arguments_without_a_meaning_are_refused(trained):
    strategy, model = trained
    with pytest.raises(ArgumentError, match=r"Arguments go with an rx\.function"):
        strategy.explain(model, X)
    with pytest.raises(ArgumentError, match="`step` goes with a Keras model"):
        strategy.explain(rx.function(lambda: 1), step=True)
    with pytest.raises(ArgumentError, match="`step` goes with a compiled Keras model"):
        strategy.explain(model.variables, step=True)
    with strategy.scope():
        eager = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
        eager.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ArgumentError, match="runs eagerly"):
        strategy.explain(eager, step=(X, X[:, :4]))
    assert jax.device_count() == 8
