"""Replicas on sharded variables: the numbers of one device, and no more of a variable than is needed at a time."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SIZE, LAYERS = 16, 5


@pytest.fixture(scope="module", params=[2, 8])
def sharded(request):
    return rx.FullyShardedStrategy(request.param, min_size=64)


def weights(strategy, number=LAYERS, dtype="float32"):
    rng = np.random.default_rng(0)
    values = [(rng.normal(size=(SIZE, SIZE)) * 0.3).astype(dtype) for _ in range(number)]
    if strategy is None:
        return [rx.Variable(value) for value in values]
    with strategy.scope():
        return [rx.Variable(value) for value in values]


def batch(strategy, rows=16):
    x = np.random.default_rng(1).normal(size=(rows, SIZE)).astype("float32")
    return jnp.asarray(x) if strategy is None else next(iter(strategy.distribute_dataset([x])))


def forward(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w.value)
    return jnp.sum(x**2) / 64


def through_a_jitted_function(ws, x):
    @jax.jit
    def layer(w, x):
        return jnp.tanh(x @ w)

    for w in ws:
        x = layer(w.value, x)
    return jnp.sum(x**2) / 64


def in_bfloat16(ws, x):
    for w in ws:
        x = jnp.tanh(x.astype("bfloat16") @ w.value.astype("bfloat16")).astype("float32")
    return jnp.sum(x**2) / 64


def transposed_looked_up_and_scanned(ws, x):
    x = jnp.tanh(x @ ws[0].value.T)
    x = x + ws[1].value[jnp.argmax(x, axis=1)]
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, jnp.stack([w.value for w in ws[2:]]))
    return jnp.sum(x**2) / 64


def recomputed(ws, x):
    for w in ws:
        x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w.value)
    return jnp.sum(x**2) / 64


def trained(strategy, loss, steps=3, clip=False):
    ws = weights(strategy)
    slots = weights(strategy)

    def step(x):
        value, gradients = rx.value_and_grad(loss, ws)(ws, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
        for w, slot, gradient in zip(ws, slots, gradients, strict=True):
            if clip:
                gradient = gradient / jnp.maximum(norm, 1e-2)
            slot.assign(0.9 * slot.value + gradient)
            w.assign_sub(0.1 * slot.value)
        return value, norm

    x = batch(strategy)
    run = rx.function(step) if strategy is None else lambda x: strategy.run(step, args=(x,))
    norms = [np.asarray(run(x)[1]) for _ in range(steps)]
    return [w.numpy() for w in (*ws, *slots)], norms


@pytest.mark.daily(6)
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped by the global norm"])
@pytest.mark.parametrize(
    "loss",
    [forward, through_a_jitted_function, transposed_looked_up_and_scanned, recomputed],
    ids=lambda loss: loss.__name__.replace("_", " "),
)
def test_the_numbers_are_those_of_one_device(sharded, loss, clip):
    (values, norms), (expected, expected_norms) = trained(sharded, loss, clip=clip), trained(None, loss, clip=clip)
    for value, other in zip([*values, *norms], [*expected, *expected_norms], strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-6)


def test_weights_that_are_converted_for_each_use_train_as_mirrored_ones_do(sharded):
    mirrored = rx.MirroredStrategy(sharded.num_replicas_in_sync)
    values, _ = trained(sharded, in_bfloat16)
    expected, _ = trained(mirrored, in_bfloat16)
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-3)  # bfloat16 has 8 bits


def collectives_of(strategy, loss):
    ws = weights(strategy)

    @rx.function
    def step(x):
        def replica_step(x):
            value, gradients = rx.value_and_grad(loss, ws)(ws, x)
            for w, gradient in zip(ws, gradients, strict=True):
                w.assign_sub(0.1 * gradient)
            return value

        return strategy.run(replica_step, args=(x,))

    compiled = step.lower(batch(strategy)).compile()
    found = re.findall(r" (all-gather|all-reduce|reduce-scatter)(?:-start)?\(", compiled.as_text())
    return collections.Counter(found), compiled.memory_analysis()


@pytest.mark.daily(2)
@pytest.mark.parametrize("loss", [forward, through_a_jitted_function])
def test_each_use_gathers_and_each_gradient_is_scattered(sharded, loss):
    found, _ = collectives_of(sharded, loss)
    # The backward pass does not go on below the first layer.
    assert found["all-gather"] == 2 * LAYERS - 1
    assert found["reduce-scatter"] == LAYERS
    assert found["all-reduce"] == 0


def test_a_step_holds_few_whole_variables_at_a_time():
    """Beside the arguments, which are an eighth, there are some gathered variables and gradients, not all of them."""
    _, memory = collectives_of(rx.FullyShardedStrategy(8, min_size=64), forward)
    assert memory.temp_size_in_bytes < 3 * SIZE * SIZE * 4
    _, mirrored = collectives_of(rx.MirroredStrategy(8), forward)
    assert mirrored.temp_size_in_bytes > LAYERS * SIZE * SIZE * 4


def test_a_variable_that_a_replica_returns_and_one_that_it_reads_after_its_update_are_whole(sharded):
    ws = weights(sharded, 2)

    def step(x):
        value, gradients = rx.value_and_grad(forward, ws)(ws, x)
        for w, gradient in zip(ws, gradients, strict=True):
            w.assign_sub(gradient)
        replica = rx.get_replica_context().replica_id_in_sync_group
        return value, ws[0].value, ws[1].value * (replica + 1), gradients[0]

    _, first, scaled, gradient = sharded.run(step, args=(batch(sharded),))
    np.testing.assert_array_equal(np.asarray(first), ws[0].numpy())
    assert np.shape(gradient) == (SIZE, SIZE)
    for i, each in enumerate(sharded.local_results(scaled)):
        np.testing.assert_allclose(np.asarray(each), ws[1].numpy() * (i + 1), rtol=1e-6)


def test_a_batch_for_fewer_replicas_trains_whole_variables():
    strategy = rx.FullyShardedStrategy(4, min_size=64)
    ws, others = weights(strategy), weights(None)

    def step(ws, x):
        _, gradients = rx.value_and_grad(forward, ws)(ws, x)
        for w, gradient in zip(ws, gradients, strict=True):
            w.assign_sub(0.1 * gradient)

    for rows in (16, 6):
        strategy.run(step, args=(ws, batch(strategy, rows)))
        rx.function(step)(others, batch(None, rows))
    for w, other in zip(ws, others, strict=True):
        np.testing.assert_allclose(w.numpy(), other.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shard_update", [True, False])
def test_a_mirrored_strategy_shards_what_only_the_update_reads(shard_update):
    size = 64  # 4096 elements: large enough to be sharded
    strategy = rx.MirroredStrategy(8, shard_update=shard_update)
    start = np.random.default_rng(0).normal(size=(size, size)).astype("float32") / 8

    def trained_by(strategy):
        with strategy.scope():
            w, slot = rx.Variable(start), rx.Variable(np.zeros_like(start))

        def step(x):
            _, [gradient] = rx.value_and_grad(lambda: jnp.sum(jnp.tanh(x @ w.value) ** 2) / 16, [w])()
            slot.assign(0.9 * slot.value + gradient)
            w.assign_sub(0.1 * slot.value)

        x = np.random.default_rng(1).normal(size=(16, size)).astype("float32")
        for batch in strategy.distribute_dataset([x, x, x[:6], x]):
            strategy.run(step, args=(batch,))
        return w, slot

    w, slot = trained_by(strategy)
    assert w.value.sharding.is_fully_replicated
    assert slot.value.sharding.is_fully_replicated == (not shard_update)
    for value, other in zip((w, slot), trained_by(rx.OneDeviceStrategy("cpu:0")), strict=True):
        np.testing.assert_allclose(value.numpy(), other.numpy(), rtol=0, atol=1e-6)
