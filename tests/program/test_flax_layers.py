"""Every layer of flax's `linen` and `nnx` trains in steps as it does under `jax.jit` and `nnx.jit`."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")

TX = optax.sgd(0.1)
ROWS = 24  # divides by 1, 2, 3 and 8
_QUICK = {"MultiHeadAttention", "Dropout", "GroupNorm"}


def cases(table):
    for name in table:
        for replicas in (1, 2, 3, 8):
            marks = () if name in _QUICK and replicas == 2 else pytest.mark.nightly
            yield pytest.param(name, replicas, marks=marks, id=f"{name}-{replicas}")


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, *shape)).astype(np.float32)


IDS = np.arange(ROWS, dtype=np.int32) % 7
LINEN = {
    "PReLU": (lambda: linen.PReLU(), rows(3)),
    "MultiHeadAttention": (lambda: linen.MultiHeadAttention(2), rows(5, 4)),
    "MultiHeadDotProductAttention": (
        lambda: linen.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=True),
        rows(5, 4),
    ),
    "SelfAttention": (lambda: linen.SelfAttention(2), rows(5, 4)),
    "Sequential": (lambda: linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)]), rows(3)),
    "ConvLocal": (lambda: linen.ConvLocal(3, (2, 2)), rows(4, 4, 2)),
    "ConvTranspose": (lambda: linen.ConvTranspose(3, (2, 2), (2, 2)), rows(4, 4, 2)),
    "Conv": (lambda: linen.Conv(4, (3, 3), feature_group_count=2), rows(4, 4, 2)),
    "DenseGeneral": (lambda: linen.DenseGeneral((2, 3), axis=(-2, -1)), rows(5, 4)),
    "Dense": (lambda: linen.Dense(2), rows(3)),
    "Einsum": (lambda: linen.Einsum((4, 2), "bi,ij->bj"), rows(4)),
    "Embed": (lambda: linen.Embed(7, 4), IDS),
    "BatchNorm": (lambda: linen.BatchNorm(use_running_average=True), rows(3)),
    "GroupNorm": (lambda: linen.GroupNorm(2), rows(3, 4)),
    "InstanceNorm": (lambda: linen.InstanceNorm(), rows(3, 4)),
    "LayerNorm": (lambda: linen.LayerNorm(), rows(3, 4)),
    "RMSNorm": (lambda: linen.RMSNorm(), rows(3, 4)),
    "SpectralNorm": (lambda: Normed(linen.Dense(2), linen.SpectralNorm), rows(3)),
    "WeightNorm": (lambda: linen.WeightNorm(linen.Dense(2)), rows(3)),
    "Bidirectional": (
        lambda: linen.Bidirectional(linen.RNN(linen.GRUCell(3)), linen.RNN(linen.GRUCell(3))),
        rows(5, 4),
    ),
    "RNN": (lambda: linen.RNN(linen.LSTMCell(3)), rows(5, 4)),
    "ConvLSTMCell": (lambda: linen.RNN(linen.ConvLSTMCell(2, (2, 2))), rows(3, 4, 4, 1)),
    "GRUCell": (lambda: linen.RNN(linen.GRUCell(3)), rows(5, 4)),
    "LSTMCell": (lambda: linen.RNN(linen.LSTMCell(3)), rows(5, 4)),
    "MGUCell": (lambda: linen.RNN(linen.MGUCell(3)), rows(5, 4)),
    "OptimizedLSTMCell": (lambda: linen.RNN(linen.OptimizedLSTMCell(3)), rows(5, 4)),
    "SimpleCell": (lambda: linen.RNN(linen.SimpleCell(3)), rows(5, 4)),
    "Dropout": (lambda: linen.Sequential([linen.Dense(4), linen.Dropout(0.5, deterministic=True)]), rows(3)),
}


class Normed(linen.Module):
    """A layer under a normalization that says at each call whether it updates its statistics."""

    layer: linen.Module
    kind: type

    @linen.compact
    def __call__(self, x):
        return self.kind(self.layer)(x, update_stats=False)


def rngs() -> object:
    return nnx.Rngs(0)


def recurrent(kind) -> tuple:
    return lambda: nnx.RNN(kind(4, 3, rngs=rngs())), rows(5, 4)


class Called(nnx.Module):
    """A layer with what it is called with, and a projection before it."""

    def __init__(self, layer, size, **kwargs):
        self.before, self.layer = nnx.Linear(size, size, rngs=rngs()), layer
        self.kwargs = nnx.data(kwargs) if hasattr(nnx, "data") else kwargs

    def __call__(self, x):
        return self.layer(self.before(x), **self.kwargs)


NNX = {
    "Dict": (lambda: ByName(nnx.Dict), rows(3)),
    "List": (lambda: ByName(nnx.List), rows(3)),
    "Sequential": (
        lambda: nnx.Sequential(nnx.Linear(3, 4, rngs=rngs()), jax.nn.relu, nnx.Linear(4, 2, rngs=rngs())),
        rows(3),
    ),
    "PReLU": (nnx.PReLU, rows(3)),
    "MultiHeadAttention": (
        lambda: nnx.MultiHeadAttention(2, 4, dropout_rate=0.5, deterministic=True, decode=False, rngs=rngs()),
        rows(5, 4),
    ),
    **{name: recurrent(getattr(nnx, name)) for name in ("LSTMCell", "GRUCell", "OptimizedLSTMCell", "SimpleCell")},
    "RNN": recurrent(nnx.GRUCell),
    "Bidirectional": (
        lambda: nnx.Bidirectional(nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs())), nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs()))),
        rows(5, 4),
    ),
    "Conv": (lambda: nnx.Conv(2, 4, (3, 3), feature_group_count=2, rngs=rngs()), rows(4, 4, 2)),
    "ConvTranspose": (lambda: nnx.ConvTranspose(2, 3, (2, 2), (2, 2), rngs=rngs()), rows(4, 4, 2)),
    "Embed": (lambda: nnx.Embed(7, 4, rngs=rngs()), IDS),
    "Linear": (lambda: nnx.Linear(3, 2, rngs=rngs()), rows(3)),
    "LinearGeneral": (lambda: nnx.LinearGeneral((5, 4), (2, 3), axis=(-2, -1), rngs=rngs()), rows(5, 4)),
    "Einsum": (lambda: nnx.Einsum("bi,ij->bj", (4, 2), rngs=rngs()), rows(4)),
    "LoRA": (lambda: nnx.LoRA(3, 2, 4, rngs=rngs()), rows(3)),
    "LoRALinear": (lambda: nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs()), rows(3)),
    "BatchNorm": (lambda: Called(nnx.BatchNorm(3, rngs=rngs()), 3, use_running_average=True), rows(3)),
    "LayerNorm": (lambda: nnx.LayerNorm(4, rngs=rngs()), rows(3, 4)),
    "RMSNorm": (lambda: nnx.RMSNorm(4, rngs=rngs()), rows(3, 4)),
    "GroupNorm": (lambda: nnx.GroupNorm(4, 2, rngs=rngs()), rows(3, 4)),
    "InstanceNorm": (lambda: nnx.InstanceNorm(4, rngs=rngs()), rows(3, 4)),
    "SpectralNorm": (
        lambda: Called(nnx.SpectralNorm(nnx.Linear(3, 4, rngs=rngs()), rngs=rngs()), 3, update_stats=False),
        rows(3),
    ),
    "WeightNorm": (lambda: nnx.WeightNorm(nnx.Linear(3, 4, rngs=rngs()), rngs=rngs()), rows(3)),
    "Dropout": (lambda: Called(nnx.Dropout(0.5, rngs=rngs()), 3, deterministic=True), rows(3)),
}


if hasattr(nnx, "RoPE"):  # newer than flax 0.12.8
    NNX["RoPE"] = (
        lambda: nnx.Sequential(nnx.Linear(4, 4, rngs=rngs()), nnx.RoPE(embedding_size=4, max_seq_len=5)),
        rows(5, 4),
    )


class ByName(nnx.Module):
    """Layers in one of flax's containers."""

    def __init__(self, kind):
        first, second = nnx.Linear(3, 4, rngs=rngs()), nnx.Linear(4, 2, rngs=rngs())
        self.layers = kind(first=first, second=second) if kind is nnx.Dict else kind([first, second])

    def __call__(self, x):
        is_dict = isinstance(self.layers, nnx.Dict)
        first, second = (self.layers["first"], self.layers["second"]) if is_dict else self.layers
        return second(jnp.tanh(first(x)))


#: Bases, and what has no weights of its own but numbers of another format (FP8).
_NO_LAYERS = {"Module", "RNNCellBase"}


@pytest.mark.parametrize(("library", "table"), [(linen, LINEN), (nnx, NNX)], ids=["linen", "nnx"])
def test_every_layer_is_in_the_table(library, table):
    kinds = {n for n, v in vars(library).items() if inspect.isclass(v) and issubclass(v, library.Module)}
    assert {name for name in kinds if "Fp8" not in name} - _NO_LAYERS == {*table}


def per_row(y):
    return jnp.square(y - 1).reshape(len(y), -1).mean(axis=1)


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("name", "replicas"), [*cases(LINEN)])
def test_a_layer_of_linen_trains_as_with_jit(mirrored, name, replicas):
    make, x = LINEN[name]
    layer = make()
    everything = layer.init(jax.random.key(0), x[:2])
    params, others = everything.pop("params"), everything
    strategy = mirrored(replicas)

    def step_with(average):
        def step(layer, params, others, state, x):
            def loss_fn(params):
                return average(per_row(layer.apply({"params": params, **others}, x)))

            loss, grads = jax.value_and_grad(loss_fn)(params)
            updates, state = TX.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        return step

    plain, state = jax.jit(functools.partial(step_with(jnp.mean), layer)), TX.init(params)
    expected, expected_state = params, state
    ours, step = strategy.replicate(params), step_with(rx.compute_average_loss)
    for batch in strategy.distribute_dataset([x] * 2):
        ours, state, loss = strategy.run(step, args=(layer, ours, others, state, batch))
        expected, expected_state, expected_loss = plain(expected, others, expected_state, x)
        np.testing.assert_allclose(strategy.reduce("sum", loss), expected_loss, rtol=1e-5)
    same(ours, expected)


@pytest.mark.daily(3)
@pytest.mark.parametrize("captured", [False, True], ids=["passed", "captured"])
@pytest.mark.parametrize(("name", "replicas"), [*cases(NNX)])
def test_a_layer_of_nnx_trains_as_with_nnx_jit(mirrored, name, replicas, captured):
    make, x = NNX[name]
    kinds = nnx.LoRAParam if name == "LoRA" else nnx.Param

    def step_with(average):
        def step(model, optimizer, x):
            loss, grads = nnx.value_and_grad(lambda model: average(per_row(model(x))), argnums=nnx.DiffState(0, kinds))(
                model
            )
            optimizer.update(model, grads)
            return loss

        return step

    plain, expected = nnx.jit(step_with(jnp.mean)), make()
    expected_optimizer = nnx.Optimizer(expected, TX, wrt=kinds)
    strategy, model = mirrored(replicas), make()
    optimizer, step = nnx.Optimizer(model, TX, wrt=kinds), step_with(rx.compute_average_loss)
    of_batch = lambda x: step(model, optimizer, x)  # noqa: E731
    for batch in strategy.distribute_dataset([x] * 2):
        loss = strategy.run(of_batch, args=(batch,)) if captured else strategy.run(step, args=(model, optimizer, batch))
        np.testing.assert_allclose(strategy.reduce("sum", loss), plain(expected, expected_optimizer, x), rtol=1e-5)
    same(nnx.state(model, nnx.Param), nnx.state(expected, nnx.Param))
