"""Where a step is cut, and that the two halves together are the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core as jex_core

from replicax.program.cut.split import Assigned, Split
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.program.ir.moving import inlined

ROWS, IN, OUT = 8, 16, 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, IN)), jnp.float32)


class Cut:
    """A step, cut in two.

    Args:
        step: `(variables, *data) -> (new values, results)`; variables and new values are dicts by name.
        variables: Values of the variables.
        data: What the worker has.
    """

    def __init__(self, step: Any, variables: dict[str, Any], *data: Any, only_gradients: bool = False):
        args = [*variables.values(), *data]
        names = list(variables)

        def flat(*args: Any) -> list[Any]:
            new, results = step(dict(zip(names, args, strict=False)), *args[len(names) :])
            self.assigned = list(new)
            return [*new.values(), *jax.tree.leaves(results)]

        self.program = inlined(jax.make_jaxpr(flat)(*args))
        numbers = [Assigned(i, names.index(name) if name in names else None) for i, name in enumerate(self.assigned)]
        self.split = Split(self.program, range(len(names)), numbers, only_gradients)
        self._names, self.args = names, args

    @property
    def sent(self) -> list[tuple[int, ...]]:
        """The shapes of what is sent."""
        return [value.aval.shape for value in self.split.sent]

    @property
    def served(self) -> set[str]:
        """The variables that the server updates."""
        return {name for name, served in zip(self.assigned, self.split.updates, strict=True) if served}

    @property
    def read_by_server(self) -> set[str]:
        return {self._names[i] for i in self.split.server_inputs}

    @property
    def read_by_worker(self) -> set[str]:
        return {self._names[i] for i in self.split.worker_inputs if i < len(self._names)}

    @property
    def worker(self) -> list[str]:
        """The names of the worker's operations."""
        return _names_of(jax.make_jaxpr(lambda *args: self.split.worker(args))(*self.args))

    @property
    def server(self) -> list[str]:
        """The names of the server's operations."""
        sent = [jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype) for value in self.split.sent]
        return _names_of(jax.make_jaxpr(lambda args, sent: self.split.server(args, sent))(self.args, sent))

    def check(self) -> Cut:
        """Checks that the halves, each with its own inputs only, give the bits that the whole program gives."""
        whole = jex_core.jaxpr_as_fun(self.program)(*self.args)
        outputs, sent = self.split.worker(self._seen(self.split.worker_inputs))
        updated = self.split.server(self._seen(self.split.server_inputs), sent)
        for i, value in zip([i for i, flag in enumerate(self.split.updates) if flag], updated, strict=True):
            assert outputs[i] is None
            outputs[i] = value
        for ours, expected in zip(outputs, whole, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))
        return self

    def _seen(self, numbers: list[int]) -> list[Any]:
        return [value if i in numbers else None for i, value in enumerate(self.args)]


def _names_of(program: Any) -> list[str]:
    return [equation.primitive.name for equation in program.jaxpr.eqns]


def loss_of(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def gradient(w, x):
    return marked_as_gradient(jax.grad(loss_of)(w, x))


def weights(seed=1, **others):
    w = np.random.default_rng(seed).normal(size=(IN, OUT)).astype(np.float32)
    return {"w": jnp.asarray(w), **{name: jnp.asarray(value, jnp.float32) for name, value in others.items()}}


# Updates by gradients.


def sgd(v, x):
    return {"w": v["w"] - v["rate"] * gradient(v["w"], x)}, ()


def momentum(v, x):
    m = 0.9 * v["m"] + gradient(v["w"], x)
    return {"m": m, "w": v["w"] - 0.1 * m}, ()


def adam(v, x):
    g, t = gradient(v["w"], x), v["t"] + 1
    m, s = 0.9 * v["m"] + 0.1 * g, 0.999 * v["s"] + 0.001 * g**2
    rate = 0.1 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return {"m": m, "s": s, "t": t, "w": v["w"] - rate * m / (jnp.sqrt(s) + 1e-7)}, ()


ZEROS = np.zeros((IN, OUT))
OPTIMIZERS = {
    "sgd": (sgd, weights(rate=0.1)),
    "momentum": (momentum, weights(m=ZEROS)),
    "adam": (adam, weights(m=ZEROS, s=ZEROS, t=0)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gradient_is_sent_and_the_server_updates(name):
    step, variables = OPTIMIZERS[name]
    cut = Cut(step, variables, X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.served == set(cut.assigned)
    assert cut.read_by_server == set(variables)
    assert cut.read_by_worker == {"w"}
    assert "dot_general" not in cut.server
    assert cut.worker.count("dot_general") == _names_of(cut.program).count("dot_general") == 2


@pytest.mark.parametrize("make", [optax.adamw, optax.lion, optax.rmsprop])
def test_optax_updates_are_the_servers(make):
    variables, optimizer = weights(), make(0.1)
    leaves, treedef = jax.tree.flatten(optimizer.init(variables["w"]))
    state = {f"state_{i}": leaf for i, leaf in enumerate(leaves)}

    def step(v, x):
        old = jax.tree.unflatten(treedef, [v[name] for name in state])
        updates, new = optimizer.update(gradient(v["w"], x), old, v["w"])
        return {"w": v["w"] + updates, **dict(zip(state, jax.tree.leaves(new), strict=True))}, ()

    cut = Cut(step, variables | state, X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.read_by_worker == {"w"}


def two_layers(clipped):
    """SGD with momentum for two weights, whose gradients `clipped` changes first."""

    def step(v, x):
        def loss(w, b):
            return jnp.sum((x @ w + b) ** 2)

        gradients = clipped([marked_as_gradient(g) for g in jax.grad(loss, argnums=(0, 1))(v["w"], v["b"])])
        new = {}
        for name, g in zip("wb", gradients, strict=True):
            new[f"m{name}"] = 0.9 * v[f"m{name}"] + g
            new[name] = v[name] - 0.1 * new[f"m{name}"]
        return new, ()

    return Cut(step, weights(b=np.ones(OUT), mw=ZEROS, mb=np.zeros(OUT)), X).check()


def by_norm(g):
    return g * (0.1 / jnp.maximum(jnp.sqrt(jnp.sum(g**2)), 0.1))


def by_global_norm(gradients):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
    return [g * (0.1 / jnp.maximum(norm, 0.1)) for g in gradients]


@pytest.mark.parametrize(
    "clipped",
    [
        lambda gradients: [jnp.clip(g, -0.1, 0.1) for g in gradients],
        lambda gradients: [by_norm(g) for g in gradients],
        by_global_norm,
        lambda gradients: optax.clip_by_global_norm(0.1).update(gradients, optax.EmptyState())[0],
        lambda gradients: [jnp.where(jnp.isfinite(g), g, jnp.zeros_like(g)) for g in gradients],
        lambda gradients: [g * jnp.arange(OUT) for g in gradients],
    ],
    ids=["value", "norm", "global_norm", "optax_global_norm", "finite", "mask"],
)
def test_gradients_are_clipped_by_the_worker(clipped):
    cut = two_layers(clipped)
    assert cut.sent == [(IN, OUT), (OUT,)]
    assert set(cut.server) == {"mul", "add", "sub"}
    assert cut.read_by_worker == {"w", "b"}


def test_gradients_that_are_clipped_by_a_variable_are_clipped_by_the_server():
    def step(v, x):
        g = jnp.clip(gradient(v["w"], x), -v["limit"], v["limit"])
        return {"w": v["w"] - g, "limit": v["limit"] * 0.5}, ()

    cut = Cut(step, weights(limit=0.1), X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.read_by_server == {"w", "limit"}


def test_the_smaller_of_two_types_is_sent():
    def step(v, x):
        g = marked_as_gradient(jax.grad(loss_of)(v["w"].astype("bfloat16"), x.astype("bfloat16")))
        return {"w": v["w"] - 0.1 * g.astype("float32")}, ()

    cut = Cut(step, weights(), X).check()
    assert [value.aval.dtype for value in cut.split.sent] == [jnp.bfloat16]


def test_a_compressed_gradient_is_sent():
    def step(v, x):
        row_sums = jnp.sum(gradient(v["w"], x), axis=0)
        return {"w": v["w"] - row_sums}, ()

    assert Cut(step, weights(), X).check().sent == [(1, OUT)]


def test_gradients_summed_in_a_loop_are_sent():
    def step(v, x):
        def one(total, row):
            return total + gradient(v["w"], row[None]), None

        total, _ = jax.lax.scan(one, jnp.zeros_like(v["w"]), x)
        m = 0.9 * v["m"] + total
        return {"m": m, "w": v["w"] - 0.1 * m}, ()

    cut = Cut(step, weights(m=ZEROS), X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.read_by_worker == {"w"}
    assert "scan" not in cut.server


def test_weight_decay_is_the_servers():
    def step(v, x):
        return {"w": v["w"] * 0.99 - 0.1 * (gradient(v["w"], x) + 0.01 * v["w"])}, ()

    cut = Cut(step, weights(), X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.worker.count("mul") < _names_of(cut.program).count("mul")


def test_rates_that_are_arguments_are_sent_beside_the_gradient():
    def step(v, x, rate, beta):
        m = beta * v["m"] + (1 - beta) * gradient(v["w"], x)
        return {"m": m, "w": v["w"] * (1 - 0.01 * rate) - rate * m}, ()

    cut = Cut(step, weights(m=ZEROS), X, jnp.float32(0.1), jnp.float32(0.9)).check()
    assert sorted(shape for shape in cut.sent if shape) == [(IN, OUT)]
    assert cut.read_by_worker == {"w"}


def test_an_update_that_uses_the_loss_gets_it_sent():
    def step(v, x):
        loss, g = jax.value_and_grad(loss_of)(v["w"], x)
        return {"w": v["w"] - marked_as_gradient(g) * v["rate"] * loss}, loss

    cut = Cut(step, weights(rate=0.1), X).check()
    assert sorted(cut.sent) == [(), (IN, OUT)]
    assert "dot_general" not in cut.server


def test_what_the_worker_returns_of_an_update_it_computes_too():
    def step(v, x):
        new = v["w"] - 0.1 * gradient(v["w"], x)
        return {"w": new}, {"norm": jnp.sum(new**2)}

    cut = Cut(step, weights(), X).check()
    assert cut.sent == [(IN, OUT)]
    assert cut.served == {"w"}


def test_a_condition_over_the_update_is_the_servers():
    def step(v, x):
        g = gradient(v["w"], x)
        finite = jnp.all(jnp.isfinite(g))
        w, scale = jax.lax.cond(
            finite, lambda w, s, g: (w - g / s, s * 2), lambda w, s, g: (w, s / 2), v["w"], v["scale"], g
        )
        return {"w": w, "scale": scale}, ()

    cut = Cut(step, weights(scale=4), X).check()
    assert (IN, OUT) in cut.sent
    assert "cond" in cut.server
    assert cut.read_by_worker == {"w"}


# A gradient that follows from an update by another one, as in a GAN.


def second(w, u, x):
    return marked_as_gradient(jax.grad(lambda u: jnp.sum(jnp.tanh(x @ w) * jnp.sin(x @ u)))(u))


def one_after_the_other(v, x):
    m = 0.9 * v["m"] + gradient(v["w"], x)
    w = v["w"] - 0.1 * m
    return {"w": w, "m": m, "u": v["u"] - 0.1 * second(w, v["u"], x)}, loss_of(w, x)


def twice(v, x):
    w = v["w"] - 0.1 * gradient(v["w"], x)
    w = w - 0.1 * gradient(w, x)
    return {"w": w, "u": v["u"] - 0.1 * second(w, v["u"], x)}, ()


def clipped_between(v, x):
    w = jnp.clip(v["w"] - 0.1 * gradient(v["w"], x), -0.3, 0.3)
    return {"w": w, "u": v["u"] - 0.1 * second(w, v["u"], x)}, ()


def counted(v, x):
    w = v["w"] - 0.1 * gradient(v["w"], x)
    u = v["u"] - 0.1 * second(w, v["u"], x)
    return {"w": w, "u": u, "total": v["total"] + loss_of(w, x)}, ()


@pytest.mark.parametrize("step", [one_after_the_other, twice, clipped_between, counted], ids=lambda step: step.__name__)
def test_both_updates_are_the_servers_and_the_worker_makes_the_first_one_too(step):
    variables = weights(m=ZEROS, u=np.full((IN, OUT), 0.1), total=0)
    cut = Cut(step, variables, X).check()
    assert cut.served == set(cut.assigned)
    gradients = 3 if step is twice else 2
    assert sorted(cut.sent) == [()] * (step is counted) + [(IN, OUT)] * gradients
    assert "dot_general" not in cut.server
    assert "w" in cut.read_by_worker
    assert "w" in cut.read_by_server
