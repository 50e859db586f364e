"""Every layer of `equinox.nn` trains in steps as it does under `eqx.filter_jit`, and comes back as it was."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

eqx = pytest.importorskip("equinox")
nn = eqx.nn

KEY = jax.random.key(0)
TX = optax.sgd(0.1)
ROWS = 24  # divides by 1, 2, 3 and 8


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(np.float32)


class Scaled(eqx.Module):
    """What the issue has seen: a number of Python beside a weight."""

    weight: jax.Array
    scale: float = 2.0
    power: int = 2
    flipped: bool = False
    sizes: tuple = (1, 2)

    def __call__(self, x):
        assert isinstance(self.scale, float)
        y = self.scale * (x @ self.weight) ** self.power
        return -y if self.flipped else jnp.reshape(y, self.sizes)


class Recurrent(eqx.Module):
    """A cell over a sequence."""

    cell: eqx.Module

    def __call__(self, xs):
        first = jnp.zeros(self.cell.hidden_size)
        first = (first, first) if isinstance(self.cell, nn.LSTMCell) else first
        last, _ = jax.lax.scan(lambda carry, x: (self.cell(x, carry), None), first, xs)
        return jnp.concatenate(jax.tree.leaves(last))


class Attention(eqx.Module):
    """Self-attention with dropout, which is off."""

    inner: eqx.Module

    def __call__(self, x):
        return self.inner(x, x, x)


class Tied(eqx.Module):
    """A shared weight."""

    shared: eqx.Module

    def __init__(self):
        pair = (nn.Linear(3, 3, key=KEY), nn.Linear(3, 3, key=jax.random.key(1)))
        self.shared = nn.Shared(pair, where=lambda pair: pair[1].weight, get=lambda pair: pair[0].weight)

    def __call__(self, x):
        first, second = self.shared()
        return second(jnp.tanh(first(x)))


class Rotated(eqx.Module):
    """Rotary embeddings before a projection."""

    rotary: eqx.Module
    linear: eqx.Module

    def __call__(self, x):
        return jax.vmap(self.linear)(self.rotary(x))


def conv(kind, dims, **kwargs):
    return lambda: kind(2, 3, kernel_size=2, key=KEY, **kwargs), rows(2, *[4] * dims)


def pooled(kind, dims, *args):
    return lambda: nn.Sequential([nn.Conv(dims, 2, 2, 1, key=KEY), kind(*args)]), rows(2, *[4] * dims)


LAYERS = {
    "Scaled": (lambda: Scaled(jnp.ones((3, 2)) / 3), rows(3)),
    "PReLU": (nn.PReLU, rows(3)),
    "MultiheadAttention": (
        lambda: Attention(nn.MultiheadAttention(2, 4, dropout_p=0.5, inference=True, key=KEY)), rows(5, 4)
    ),
    "Conv": (lambda: nn.Conv(2, 2, 3, 2, padding="SAME", key=KEY), rows(2, 4, 4)),
    "Conv1d": conv(nn.Conv1d, 1, stride=2),
    "Conv2d": conv(nn.Conv2d, 2, dilation=2),
    "Conv3d": conv(nn.Conv3d, 3, use_bias=False),
    "ConvTranspose": (lambda: nn.ConvTranspose(1, 2, 3, 2, key=KEY), rows(2, 4)),
    "ConvTranspose1d": conv(nn.ConvTranspose1d, 1, stride=2),
    "ConvTranspose2d": conv(nn.ConvTranspose2d, 2, output_padding=1, stride=2),
    "ConvTranspose3d": conv(nn.ConvTranspose3d, 3),
    "Dropout": (lambda: nn.Sequential([nn.Linear(3, 3, key=KEY), nn.Dropout(0.5, inference=True)]), rows(3)),
    "Embedding": (lambda: nn.Embedding(7, 4, key=KEY), np.arange(ROWS, dtype=np.int32) % 7),
    "RotaryPositionalEmbedding": (
        lambda: Rotated(nn.RotaryPositionalEmbedding(4), nn.Linear(4, 2, key=KEY)), rows(5, 4)
    ),
    "Identity": (lambda: nn.Sequential([nn.Identity(), nn.Linear(3, 2, key=KEY)]), rows(3)),
    "Linear": (lambda: nn.Linear(3, "scalar", key=KEY), rows(3)),
    "MLP": (lambda: nn.MLP(3, 2, 8, 2, activation=nn.PReLU(), key=KEY), rows(3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), rows(4, 3)),
    "LayerNorm": (lambda: nn.LayerNorm((4, 3)), rows(4, 3)),
    "RMSNorm": (lambda: nn.RMSNorm(4), rows(4)),
    **{f"AdaptiveAvgPool{d}d": pooled(getattr(nn, f"AdaptiveAvgPool{d}d"), d, 2) for d in (1, 2, 3)},
    **{f"AdaptiveMaxPool{d}d": pooled(getattr(nn, f"AdaptiveMaxPool{d}d"), d, 2) for d in (1, 2, 3)},
    "AdaptivePool": pooled(nn.AdaptivePool, 2, 2, 2, jnp.max),
    **{f"AvgPool{d}d": pooled(getattr(nn, f"AvgPool{d}d"), d, 2, 2) for d in (1, 2, 3)},
    **{f"MaxPool{d}d": pooled(getattr(nn, f"MaxPool{d}d"), d, 2, 2) for d in (1, 2, 3)},
    "Pool": pooled(nn.Pool, 2, 0.0, jax.lax.add, 2, 2),
    "GRUCell": (lambda: Recurrent(nn.GRUCell(3, 4, key=KEY)), rows(5, 3)),
    "LSTMCell": (lambda: Recurrent(nn.LSTMCell(3, 4, key=KEY)), rows(5, 3)),
    "Lambda": (lambda: nn.Sequential([nn.Linear(3, 2, key=KEY), nn.Lambda(jax.nn.relu)]), rows(3)),
    "Sequential": (lambda: nn.Sequential([nn.Linear(3, 2, key=KEY), nn.Linear(2, 2, key=KEY)]), rows(3)),
    "Shared": (Tied, rows(3)),
    "WeightNorm": (lambda: nn.WeightNorm(nn.Linear(3, 2, key=KEY)), rows(3)),
}  # fmt: skip
_NO_LAYERS = {"inference_mode", "make_with_state", "delete_init_state", "State", "StateIndex", "StatefulLayer"}
#: They have state that goes along: `model, state = nn.make_with_state(...)`.
_STATEFUL = {"BatchNorm", "SpectralNorm"}
_QUICK = {"Scaled", "MultiheadAttention", "Dropout", "MLP"}


def cases():
    for name in LAYERS:
        for replicas in (1, 2, 3, 8):
            marks = () if name in _QUICK and replicas == 2 else pytest.mark.nightly
            yield pytest.param(name, replicas, marks=marks, id=f"{name}-{replicas}")


def test_every_layer_is_in_the_table():
    names = {name for name, value in vars(nn).items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert names - _NO_LAYERS - _STATEFUL == {*LAYERS} - {"Scaled"}


def plain_step(model, opt_state, x):
    def loss_fn(model):
        return jnp.mean(jnp.square(jax.vmap(model)(x)))

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = TX.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def step(model, opt_state, x):
    def loss_fn(model):
        y = jnp.square(jax.vmap(model)(x))
        return rx.compute_average_loss(y.reshape(len(y), -1).mean(axis=1))

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = TX.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def same(one, other):
    """Checks that two trees have the same numbers of Python, and arrays that agree."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if eqx.is_array(a):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert type(a) is type(b)
            assert a == b


@pytest.mark.daily(2)
@pytest.mark.parametrize(("name", "replicas"), [*cases()])
def test_a_layer_trains_as_with_filter_jit(mirrored, name, replicas):
    make, x = LAYERS[name]
    model = expected = make()
    opt_state = expected_state = TX.init(eqx.filter(model, eqx.is_array))
    strategy = mirrored(replicas)
    [forward] = strategy.distribute_dataset([x])
    # Before the step: what Equinox keeps of rotary angles belongs to the mesh that it was computed in.
    result = jax.vmap(model)(jnp.asarray(x))
    same(strategy.gather(strategy.run(lambda model, x: jax.vmap(model)(x), args=(model, forward))), result)
    plain, placed = eqx.filter_jit(plain_step), strategy.replicate(model)
    same(placed, model)
    for batch in strategy.distribute_dataset([x] * 2):
        placed, opt_state, loss = strategy.run(step, args=(placed, opt_state, batch))
        expected, expected_state, expected_loss = plain(expected, expected_state, x)
        np.testing.assert_allclose(strategy.reduce("sum", loss), expected_loss, rtol=1e-5)
    same(placed, expected)


@pytest.mark.parametrize("replicas", [1, 2])
def test_state_of_spectral_norm_goes_along(mirrored, replicas):
    layer = lambda: nn.SpectralNorm(nn.Linear(3, 4, key=KEY), "weight", key=KEY)  # noqa: E731
    model, state = nn.make_with_state(layer)()
    x, strategy = rows(3), mirrored(replicas)

    def step(model, state, x, average):
        def loss_fn(model):
            forward = jax.vmap(model, in_axes=(0, None), out_axes=(0, None))
            y, new_state = forward(x, state)
            return average(jnp.square(y - 1).mean(axis=1)), new_state

        (loss, state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), state, loss

    ours, plain = (model, state), (model, state)
    for batch in strategy.distribute_dataset([x] * 2):
        *ours, loss = strategy.run(step, args=(*ours, batch, rx.compute_average_loss))
        *plain, expected = eqx.filter_jit(step)(*plain, x, jnp.mean)
        np.testing.assert_allclose(strategy.reduce("sum", loss), expected, rtol=1e-5)
    same(ours, plain)


@pytest.mark.parametrize("how", [pytest.param(how, id=how) for how in ("run", "function", "default")])
def test_another_number_makes_another_program_and_comes_back_as_it_is(two, how):
    model = Scaled(jnp.ones((3, 2)) / 3, sizes=(-1,))
    x, seen = jnp.ones(3), []

    def call(model, number, x):
        seen.append((model.scale, model.power, model.flipped, isinstance(number, jax.Array)))
        return model, model(x), {"number": number}

    strategy = rx.get_strategy() if how == "default" else two
    run = rx.function(call) if how == "function" else lambda *args: strategy.run(call, args=args)
    for number in (1.0, 3.0):  # One of Python in a plain pytree is an input, as in jax.jit.
        same(run(model, number, x)[0], model)
    same(strategy.replicate(model), model)
    for change in ({"scale": 3.0}, {"scale": 2}, {"power": 3}, {"flipped": True}):
        changed = Scaled(**(vars(model) | change)) if change != {"scale": 2} else model
        back, y, plain = run(changed, 1.0, x)
        same((back, y), (changed, changed(x)))
    if how in ("run", "function"):
        assert [each[:3] for each in dict.fromkeys(seen)] == [
            (2.0, 2, False), (3.0, 2, False), (2.0, 3, False), (2.0, 2, True)
        ]  # fmt: skip
        assert all(each[3] for each in seen)
        assert isinstance(plain["number"], jax.Array)


def test_numbers_of_modules_in_other_containers_are_settings_too(two):
    class Batch(dict):
        """A dict that JAX does not know."""

    held = Batch(models=[Scaled(jnp.ones((3, 2)), sizes=(-1,))], rate=0.5, x=jnp.ones(3))

    def call(held):
        return type(held["models"][0].scale), isinstance(held["rate"], jax.Array), held["models"][0](held["x"])

    kind, traced, y = two.run(call, args=(held,))
    assert kind is float
    assert traced
    np.testing.assert_allclose(y, held["models"][0](held["x"]))


def test_numbers_of_modules_are_settings_operation_by_operation(two, eagerly):
    model = Scaled(jnp.ones((3, 2)), sizes=(-1,))
    same(two.run(lambda model, x: (model, model(x)), args=(model, jnp.ones(3))), (model, model(jnp.ones(3))))
