"""`numbers="bitwise"`: the same bits on any number of devices, and the numbers of one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.program.blocks.evaluation import flat
from replicax.program.blocks.plan import Plan

ROWS, STEPS = 32, 3


def _strategy(devices: int, **arguments: object) -> rx.MirroredStrategy:
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)], numbers="bitwise", **arguments)


def _batches(rows: int = ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    numbers = np.random.default_rng(0)
    for _ in range(STEPS):
        yield numbers.normal(size=(rows, 6)).astype(np.float32), numbers.integers(0, 3, rows)


def _trained(strategy: rx.Strategy, rows: int = ROWS) -> list[np.ndarray]:
    """Trains with what mixes rows (a normalization), draws for them (dropout) and sums over them, and counts rows."""
    numbers = np.random.default_rng(1)
    with strategy.scope():
        first = rx.Variable(numbers.normal(size=(6, 16)).astype(np.float32))
        second = rx.Variable(numbers.normal(size=(16, 3)).astype(np.float32))
        seen = rx.Variable(np.zeros(3, np.float32))

    def step(batch: tuple[jax.Array, jax.Array], key: jax.Array) -> jax.Array:
        x, labels = batch

        def loss() -> jax.Array:
            hidden = jnp.tanh(x @ first.value)
            hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-3)
            hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape)
            return -jnp.sum(jax.nn.log_softmax(hidden @ second.value) * jax.nn.one_hot(labels, 3)) / rows

        value, gradients = rx.value_and_grad(loss, [first, second])()
        for variable, gradient in zip([first, second], gradients, strict=True):
            variable.assign_sub(0.1 * gradient / jnp.sqrt(gradient**2 + 1e-2))
        seen.assign(seen.value.at[labels].add(1.0))
        return value

    keys = jax.random.split(jax.random.key(0), STEPS)
    for i, batch in enumerate(strategy.distribute_dataset(list(_batches(rows)))):
        value = strategy.run(step, (batch, keys[i]))
    return [first.numpy(), second.numpy(), seen.numpy(), np.asarray(value)]


def _bits(arrays: list[np.ndarray]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@functools.cache
def _trained_on_one() -> list[np.ndarray]:
    return _trained(_strategy(1))


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_a_custom_loop_has_the_same_bits_on_1_and_more_devices(devices):
    assert _bits(_trained(_strategy(devices))) == _bits(_trained_on_one())


def test_a_custom_loop_has_the_numbers_of_one_device():
    for found, plain in zip(_trained_on_one(), _trained(rx.OneDeviceStrategy("cpu:0")), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [4, 7, 20])
def test_a_batch_that_blocks_do_not_divide_has_the_same_bits(rows: int):
    assert _bits(_trained(_strategy(8), rows)) == _bits(_trained(_strategy(1), rows))


def test_fit_has_the_same_bits_where_state_is_sharded():
    def fitted(strategy: rx.Strategy) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
            model.compile(
                keras.optimizers.Adam(0.01),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        x, y = (np.concatenate(each) for each in zip(*_batches(), strict=True))
        history = model.fit(x, y, batch_size=ROWS, verbose=0)
        return [*model.get_weights(), np.asarray(history.history["accuracy"] + history.history["loss"])]

    sharded = rx.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=8, numbers="bitwise")
    assert _bits(fitted(sharded)) == _bits(fitted(_strategy(1)))


# What is worked off in blocks, of operations that models are made of.

_X, _W = np.ones((ROWS, 4, 6), np.float32), np.ones((6, 6), np.float32)
_IMAGES, _KERNEL = np.ones((ROWS, 8, 8, 2), np.float32), np.ones((3, 3, 2, 4), np.float32)


def _convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _attended(x: jax.Array, w: jax.Array) -> jax.Array:
    scores = jax.nn.softmax(jnp.einsum("bid,bjd->bij", x @ w, x))
    return jax.nn.gelu(scores @ x)


def _recurrent(x: jax.Array, w: jax.Array) -> jax.Array:
    def cell(state: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w + each)
        return state, state

    return jax.lax.scan(cell, jnp.zeros((x.shape[0], 6)), x.swapaxes(0, 1))[1]


def _looked_up(x: jax.Array, w: jax.Array) -> jax.Array:
    return w[jnp.asarray(x[..., 0], jnp.int32)]


def _pooled(x: jax.Array, w: jax.Array) -> jax.Array:
    windows = (1, 2, 2, 1)
    return jax.lax.reduce_window(_convolved(x, w), -jnp.inf, jax.lax.max, windows, windows, "VALID")


def _chosen(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x @ w, jnp.asarray(x[:, :, :1], jnp.int32), -1)


@pytest.mark.parametrize(
    ("function", "x", "w"),
    [
        (lambda x, w: x.reshape(-1, 6) @ w, _X, _W),
        (_convolved, _IMAGES, _KERNEL),
        (_pooled, _IMAGES, _KERNEL),
        (_attended, _X, _W),
        (_recurrent, _X, _W),
        (_looked_up, _X, _W),
        (_chosen, _X, _W),
        (lambda x, w: jnp.cumsum(jnp.concatenate([x @ w, x[:, ::-1]], 1), 1)[:, 1:], _X, _W),
    ],
    ids=["dense", "convolution", "pooling", "attention", "recurrent", "embedding", "chosen", "joined"],
)
def test_forward_and_backward_are_worked_off_in_blocks(function: Callable[..., jax.Array], x: object, w: object):
    def step(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        value, gradient = jax.value_and_grad(lambda w: jnp.sum(function(x, w) ** 2))(w)
        return [value, w - gradient]

    program = flat(step, [jax.ShapeDtypeStruct(np.shape(each), np.float32) for each in (x, w)])
    plan = Plan(program, {program.jaxpr.invars[0]: 0}, 8)
    gradients, update = plan.stages  # All rows are used before the sums, and none after them.
    assert gradients.blocks
    assert not gradients.joined
    assert not update.blocks
    assert all(ROWS not in var.aval.shape for each in gradients.whole for var in each.results)


def test_rows_that_meet_are_put_together():
    def step(x: jax.Array) -> list[jax.Array]:
        return [jnp.sum(jax.nn.log_softmax(x @ x.T))]

    program = flat(step, [jax.ShapeDtypeStruct((ROWS, 6), np.float32)])
    stages = Plan(program, {program.jaxpr.invars[0]: 0}, 8).stages
    assert any(stage.joined for stage in stages)
    assert not any(stage.sums for stage in stages)


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"numbers": "exact"}, "`numbers` is 'bitwise', or None, got 'exact'"),
        ({"numbers": "bitwise", "blocks": 6}, "`blocks` is a power of two .*, got 6"),
        ({"numbers": "bitwise", "blocks": 1 << 40}, "at most 1024, got 1099511627776"),
        ({"blocks": 8}, "blocks=8 has no meaning without numbers='bitwise'"),
        ({"numbers": "bitwise", "cross_device_ops": rx.RingAllReduce()}, "`cross_device_ops` has no meaning"),
        (
            {
                "numbers": "bitwise",
                "communication_options": rx.CommunicationOptions(compression=rx.collectives.Int8()),
            },
            "`communication_options` has no meaning",
        ),
    ],
)
@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.MultiWorkerMirroredStrategy])
def test_arguments_are_checked(kind: type[rx.Strategy], arguments: dict[str, object], words: str):
    with pytest.raises(rx.errors.ArgumentError, match=words):
        kind(**arguments)


def test_another_number_of_threads_is_refused():
    jax.devices()
    with pytest.raises(rx.errors.ContextError, match=r"JAX has already started, with 16.*PJRT_NPROC=8"):
        _strategy(2, blocks=4)


def _told(x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda value: None, x)
    return x


def _asked(x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.asarray, x, x)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("call", [_told, _asked, lambda x: jax.lax.map(_asked, x[None])[0]])
def test_a_call_of_the_host_is_refused(call: Callable[[jax.Array], jax.Array], devices: int):
    strategy = _strategy(devices)
    with strategy.scope():
        total = rx.Variable(0.0)

    def step(x: jax.Array) -> None:
        total.assign_add(call(x.sum()))

    with pytest.raises(rx.errors.ProgramError, match=r"calls the host, .* at .*test_bitwise.py"):
        strategy.run(step, (np.ones((8, 2), np.float32),))
    assert total.numpy() == 0


def test_steps_that_are_not_compiled_are_refused():
    strategy = _strategy(2)
    rx.config.run_eagerly(True)
    try:
        with pytest.raises(rx.errors.ContextError, match="compiles each step"):
            strategy.run(lambda x: x + 1, (np.ones(8, np.float32),))
    finally:
        rx.config.run_eagerly(False)
