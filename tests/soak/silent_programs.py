"""Random training programs, as text: with marks that say what is added for replicax (`tests/outside/forms.py`).

A program is drawn from ingredients that multiply: a framework, a model, a loss, an optimizer, a form of the step, of the
data and of the batch, a strategy, and sometimes a typical mistake.
"""

# ruff: noqa: E501  # Programs are written as their users write them.
from __future__ import annotations

import dataclasses
import random
import textwrap

#: What is done wrong in the distributed form only, and where it is said by an error or a warning of ours.
MISTAKES = ("not distributed", "summed twice", "varying variable", "varying value", "captured")

#: Forms in which a step finds another value outside of its arguments in each call.
_CAPTURED = (
    "self",
    "self in a function",
    "global",
    "cell",
    "dict",
    "dict changed inside",
    "number changed between calls",
    "array changed between calls",
    "NumPy array changed in place",
    "new lambda",
    "new closure",
    "partial",
    "default argument",
)

_STRATEGIES = {
    "rx.OneDeviceStrategy('cpu:0')": 1,
    "rx.MirroredStrategy(['cpu:0', 'cpu:1'])": 6,
    "rx.MirroredStrategy(['cpu:0', 'cpu:1', 'cpu:2'])": 4,
    "rx.MirroredStrategy(['cpu:0', 'cpu:1'], shard_update=False)": 1,
    "rx.MirroredStrategy()": 1,
    "rx.FullyShardedStrategy(['cpu:0', 'cpu:1'], min_size=8)": 3,
    "rx.FullyShardedStrategy(min_size=8)": 1,
    "rx.LayoutStrategy(mesh_shape=(2, 2), devices=['cpu:0', 'cpu:1', 'cpu:2', 'cpu:3'], min_size=8)": 1,
    "rx.CentralStorageStrategy(['cpu:0', 'cpu:1'])": 2,
}
_SIZES = ((12, 12, 12), (12, 12, 5), (12, 7, 12), (12, 12, 1), (16, 16, 10))


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        seed: What it was drawn by.
        text: The distributed form, with marks.
        ingredients: Their names.
        mistake: What is wrong in it, or "".
        tolerance: How far an array may be off, relative to its largest number.
    """

    seed: int
    text: str
    ingredients: tuple[str, ...]
    mistake: str
    tolerance: float


def drawn(seed: int) -> Program:
    """Returns the program of a seed."""
    chance = random.Random(seed)
    [kind] = chance.choices(list(_FRAMEWORKS), [weight for weight, _ in _FRAMEWORKS.values()])
    draw = _Draw(chance, seed)
    draw.named(kind)
    body = _FRAMEWORKS[kind][1](draw)
    return Program(seed, f"{draw.head()}{body}", tuple(draw.names), draw.mistake, draw.tolerance)


class _Draw:
    """What is drawn for one program; remembers the names of all ingredients."""

    def __init__(self, chance: random.Random, seed: int):
        self.chance, self.seed = chance, seed
        self.names: list[str] = []
        self.strategy = self.of(_STRATEGIES)
        self.sizes = chance.choice(_SIZES)
        self.batch_form = chance.choice(("dict", "tuple"))
        self.mistake = ""
        self.tolerance = 3e-5  # Of float32, after several steps.
        self.names += [self.strategy, f"batches of {self.sizes}", self.batch_form]

    def of(self, choices: dict[str, int] | list[str] | tuple[str, ...]) -> str:
        """Returns one of the names."""
        if isinstance(choices, dict):
            [name] = self.chance.choices(list(choices), list(choices.values()))
            return name
        return self.chance.choice(list(choices))

    def named(self, name: str) -> str:
        """Remembers a name."""
        self.names.append(name)
        return name

    def wrong(self, mistake: str, probability: float) -> bool:
        """Decides whether a mistake is made; there is one at most."""
        if self.mistake or "OneDevice" in self.strategy or self.chance.random() >= probability:
            return False
        self.mistake = self.named(mistake)
        return True

    def batches(self) -> str:
        """Returns what the loop takes its batches from; perhaps those that nobody has distributed.

        Other averages would be right, of a loss that is reported too large, and so would a count: every replica's counts.
        """
        averages = {"global size", "default size", "weighted", "weighted rows", "reduced"}
        is_wrong = averages & set(self.names) and "after: mean of integers" not in self.names
        if is_wrong and self.wrong("not distributed", 0.2):
            return "batches"
        return "strategy.distribute_dataset(batches)"

    def head(self) -> str:
        """Returns what stands above each program."""
        fields = {
            "dict": 'return batch["x"], batch["y"], batch["label"], batch["weight"]',
            "tuple": "return batch",
        }[self.batch_form]
        rows = "dict(x=x, y=y, label=label, weight=weight)" if self.batch_form == "dict" else "(x, y, label, weight)"
        return f"""\
import functools
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from flax import nnx

import replicax as rx  # +

strategy = {self.strategy}  # +
rng = np.random.default_rng({self.seed})


def rows(n):
    x, y = rng.normal(size=(n, 8)).astype("float32"), rng.normal(size=(n, 3)).astype("float32")
    label, weight = rng.integers(0, 3, n).astype("int32"), rng.uniform(0.5, 1.5, n).astype("float32")
    return {rows}


def fields(batch):
    {fields}


batches = [rows(n) for n in {self.sizes}]
"""


# No weight has a gradient of zero, as a bias has before a mean is subtracted, or the bias of attention's keys: optimizers
# would make steps of rounding errors.

# Models of plain arrays. Weights: a list of shapes; `body` is what is computed from `x` (n, 8) to (n, 3).

_SMALL = "[(8, 6), (6,), (6, 3), (3,)]"
_BODIES: dict[str, tuple[str, str]] = {
    "dense": (_SMALL, "return jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3], extra"),
    "convolution": (
        "[(3, 2, 5), (20, 3)]",
        """
        h = jax.lax.conv_general_dilated(x.reshape(-1, 4, 2), w[0], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
        return jax.nn.gelu(h).reshape(-1, 20) @ w[1], extra
        """,
    ),
    "attention": (
        "[(2, 4), (2, 4), (2, 4), (4, 3)]",
        """
        q, k, v = (x.reshape(-1, 4, 2) @ w[i] for i in range(3))
        a = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 2.0)
        return jnp.mean(a @ v, axis=1) @ w[3], extra
        """,
    ),
    "batch statistics": (
        _SMALL,
        """
        h = x @ w[0]
        mean = jnp.mean(h, axis=0)
        mean = rx.get_replica_context().all_reduce("mean", mean)  # +
        variance = jnp.mean(jnp.square(h - mean), axis=0)
        variance = jax.lax.pmean(variance, "replica")  # +
        h = (h - mean) / jnp.sqrt(variance + 1e-2) + w[1]
        extra = {**extra, "mean": 0.9 * extra.get("mean", jnp.zeros(6)) + 0.1 * jax.lax.stop_gradient(mean)}
        return jnp.tanh(h) @ w[2] + w[3], extra
        """,
    ),
    "scan over layers": (
        "[(3, 8, 8), (8, 3)]",
        """
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w[0])
        return h @ w[1], extra
        """,
    ),
    "recurrent": (
        "[(2, 4), (4, 4), (4, 3)]",
        """
        tokens = jnp.swapaxes(x.reshape(-1, 4, 2), 0, 1)
        cell = lambda h, t: (jnp.tanh(t @ w[0] + h @ w[1]), None)
        h, _ = jax.lax.scan(cell, jnp.zeros((x.shape[0], 4)), tokens)
        return h @ w[2], extra
        """,
    ),
    "remat": (_SMALL, "return jax.checkpoint(lambda h: jnp.tanh(h @ w[0] + w[1]))(x) @ w[2] + w[3], extra"),
    "cond on a parameter": (
        _SMALL,
        """
        h = jax.lax.cond(jnp.sum(w[0]) > 0, lambda: jnp.tanh(x @ w[0] + w[1]), lambda: jnp.sin(x @ w[0] + w[1]))
        return h @ w[2] + w[3], extra
        """,
    ),
    "cond on rows": (
        _SMALL,
        """
        def row(r):
            return jax.lax.cond(r[0] > 0, lambda: jnp.tanh(r @ w[0] + w[1]), lambda: jnp.sin(r @ w[0]))

        return jax.lax.map(row, x) @ w[2] + w[3], extra
        """,
    ),
    "while on parameters": (
        _SMALL,
        """
        norm = jax.lax.stop_gradient(jnp.sum(jnp.square(w[0])))
        scale = jax.lax.while_loop(lambda s: s * norm > 3.0, lambda s: s / 2, jnp.float32(1.0))
        return jnp.tanh(scale * (x @ w[0]) + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "fori": (
        "[(8, 8), (8, 3)]",
        "return jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w[0]) + x, x) @ w[1], extra",
    ),
    "tied": ("[(8, 6), (6, 3)]", "return jnp.tanh(jnp.tanh(x @ w[0]) @ w[0].T) @ w[0] @ w[1], extra"),
    "frozen": (_SMALL, "return jnp.tanh(x @ jax.lax.stop_gradient(w[0]) + w[1]) @ w[2] + w[3], extra"),
    "frozen by a branch": (
        _SMALL,
        """
        frozen = jax.lax.cond(extra["step"] % 2 == 0, lambda: jax.lax.stop_gradient(w[0]), lambda: w[0])
        return jnp.tanh(x @ frozen + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "rows by vmap": (_SMALL, "return jax.vmap(lambda r: jnp.tanh(r @ w[0] + w[1]) @ w[2] + w[3])(x), extra"),
    "rows by vmap with an axis": (
        _SMALL,
        """
        axes = "rows"
        axes = ("rows", "replica")  # +

        def row(r):
            h = r @ w[0]
            return jnp.tanh(h - jax.lax.pmean(h, axes) + w[1]) @ w[2] + w[3]

        return jax.vmap(row, axis_name="rows")(x), extra
        """,
    ),
    "tokens by vmap with an axis": (
        "[(2, 4), (4, 3)]",
        """
        def token(t):
            h = t @ w[0]
            return jnp.tanh(h - jax.lax.pmean(h, "token"))

        h = jax.vmap(jax.vmap(token, axis_name="token"))(x.reshape(-1, 4, 2))
        return jnp.mean(jnp.square(h), axis=1) @ w[1], extra
        """,
    ),
    "custom_vjp": (
        _SMALL,
        """
        def forward(h):
            return jnp.tanh(h), jnp.tanh(h)

        f = jax.custom_vjp(jnp.tanh)
        f.defvjp(forward, lambda t, g: (g * (1 - t * t),))
        return f(x @ w[0] + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "custom_vjp of weights": (
        _SMALL,
        """
        f = jax.custom_vjp(lambda x, k: x @ k)
        f.defvjp(lambda x, k: (x @ k, (x, k)), lambda s, g: (g @ s[1].T, s[0].T @ g))
        return jnp.tanh(f(x, w[0]) + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "custom_jvp": (
        _SMALL,
        """
        f = jax.custom_jvp(jnp.tanh)
        f.defjvp(lambda p, t: (jnp.tanh(p[0]), t[0] * (1 - jnp.tanh(p[0]) ** 2)))
        return f(x @ w[0] + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "straight through": (
        _SMALL,
        """
        h = jnp.tanh(x @ w[0] + w[1])
        return (h + jax.lax.stop_gradient(jnp.round(4 * h) / 4 - h)) @ w[2] + w[3], extra
        """,
    ),
    "odeint": (
        "[(8, 8), (8, 3)]",
        """
        from jax.experimental.ode import odeint

        path = odeint(lambda h, t: jnp.tanh(h @ w[0]), x, jnp.array([0.0, 0.5]), rtol=1e-6, atol=1e-6)
        return path[-1] @ w[1], extra
        """,
    ),
    "conjugate gradients": (
        "[(8, 8), (8, 3)]",
        """
        matrix = w[0] @ w[0].T + 2 * jnp.eye(8)
        h = jax.vmap(lambda r: jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, r, tol=1e-7)[0])(x)
        return h @ w[1], extra
        """,
    ),
    "fixed point": (
        "[(8, 8), (8, 3)]",
        """
        def solve(f, start):
            return jax.lax.fori_loop(0, 30, lambda i, h: h - f(h), start)

        def tangent(g, y):
            return jnp.linalg.solve(jax.jacobian(g)(jnp.zeros_like(y)), y)

        def row(r):
            return jax.lax.custom_root(lambda h: h - 0.3 * jnp.tanh(h @ w[0]) - r, jnp.zeros(8), solve, tangent)

        return jax.vmap(row)(x) @ w[1], extra
        """,
    ),
    "linear solve": (
        "[(8, 8), (8, 3)]",
        "return jnp.linalg.solve(w[0] @ w[0].T + 2 * jnp.eye(8), x.T).T @ w[1], extra",
    ),
    "noise on weights": (
        _SMALL,
        """
        noise = 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(3), extra["step"]), w[0].shape)
        return jnp.tanh(x @ (w[0] + noise) + w[1]) @ w[2] + w[3], extra
        """,
    ),
    "embedding": (
        "[(5, 4), (12, 3)]",
        """
        ids = jnp.clip(jnp.abs(x[:, :3]) * 3, 0, 4).astype(jnp.int32)
        return jnp.tanh(w[0][ids].reshape(-1, 12)) @ w[1], extra
        """,
    ),
    "experts": (
        "[(8, 2), (2, 8, 3)]",
        """
        gate = jax.nn.softmax(x @ w[0])
        return jnp.einsum("be,bi,eio->bo", gate, x, w[1]), extra
        """,
    ),
    "jacobian": (
        _SMALL,
        """
        f = lambda r: jnp.tanh(r @ w[0] + w[1]) @ w[2] + w[3]
        return jax.vmap(f)(x) + 0.1 * jnp.sum(jax.vmap(jax.jacrev(f))(x) ** 2, axis=-1), extra
        """,
    ),
    "forward mode": (
        _SMALL,
        """
        f = lambda r: jnp.tanh(r @ w[0] + w[1]) @ w[2] + w[3]
        value, tangent = jax.jvp(f, (x,), (jnp.ones_like(x),))
        return value + 0.1 * tangent, extra
        """,
    ),
    "float16": (
        _SMALL,
        """
        mask = (jnp.arange(6) % 2 == 0).astype(jnp.int8)
        h = jnp.tanh(x @ w[0] + w[1]) * mask
        return h @ w[2].astype(jnp.float16).astype(jnp.float32) + w[3], extra
        """,
    ),
}

# A cross-entropy does not see what is added to all columns, so columns are weighted where one goes into all.
_OPERATIONS = (
    "jnp.sort(out, axis=-1)",
    "jax.lax.top_k(out, 3)[0]",
    "jnp.cumsum(out, axis=-1) * jnp.arange(1.0, 4.0)",
    "jnp.fft.rfft(out, axis=-1).real @ jnp.arange(6.0).reshape(2, 3)",
    "jax.nn.softmax(out)",
    "out / (1 + jnp.linalg.norm(out, axis=-1, keepdims=True))",
    "jax.lax.erf(out)",
    "jnp.where(out > 0, out, 0.1 * out)",
    "jnp.flip(out, -1) + jnp.roll(out, 1, -1)",
    "jax.lax.associative_scan(jnp.add, out, axis=1) * jnp.arange(1.0, 4.0)",
    "jnp.logaddexp(out, jnp.zeros(3))",
    "out * jax.lax.rsqrt(1 + jnp.mean(out**2, -1, keepdims=True))",
)

# How the list of weights `w` is held: what is defined, how it is packed and unpacked.
_CONTAINERS = {
    "list": ("", "w", "params"),
    "dict": ("", '{f"w{i}": v for i, v in enumerate(w)}', "list(params.values())"),
    "nested": ("", '{"first": w[0], "rest": {"some": tuple(w[1:])}}', '[params["first"], *params["rest"]["some"]]'),
    "NamedTuple": (
        "class Params(NamedTuple):\n    first: Any\n    rest: Any\n",
        "Params(w[0], w[1:])",
        "[params.first, *params.rest]",
    ),
    "registered class": (
        """
        @jax.tree_util.register_pytree_node_class
        class Params:
            def __init__(self, w, factor=1.0):
                self.w, self.factor = w, factor

            def tree_flatten(self):
                return (self.w,), self.factor

            @classmethod
            def tree_unflatten(cls, factor, children):
                return cls(*children, factor)
        """,
        "Params(w, 0.5)",
        "[params.factor * v for v in params.w]",
    ),
    "dataclass with a static field": (
        """
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Params:
            w: Any
            factor: float = dataclasses.field(default=1.0, metadata={"static": True})
            note: str = dataclasses.field(default="note", metadata={"static": True})
        """,
        "Params(w, 0.5)",
        "[params.factor * v for v in params.w]",
    ),
    "with numbers": (
        "",
        '{"w": w, "scale": 0.5, "shift": jnp.float32(0.1)}',
        '[params["scale"] * v + params["shift"] for v in params["w"]]',
    ),
    "with None": ("", '{"w": w, "bias": None}', 'params["w"]'),
    "one vector": (
        "import jax.flatten_util\n",
        "jax.flatten_util.ravel_pytree(w)[0]",
        "jax.flatten_util.ravel_pytree([jnp.zeros(s) for s in SHAPES])[1](params)",
    ),
}


def _pytree_model(draw: _Draw) -> str:
    name = draw.named(draw.of(list(_BODIES)))
    shapes, body = _BODIES[name]
    if "float16" in body:
        draw.tolerance = 5e-3  # The sum over a part of a batch is rounded otherwise than that over the whole.
    container = draw.named(draw.of(list(_CONTAINERS)))
    defined, pack, unpack = _CONTAINERS[container]
    forward = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"""
import dataclasses

{textwrap.dedent(defined).strip()}

SHAPES = {shapes}


def init():
    w = [jnp.asarray(rng.normal(size=s) / max(s[0], 2) ** 0.5, jnp.float32) for s in SHAPES]
    return {pack}


def forward(params, extra, x):
    w = {unpack}
{forward}
"""


_LINEN = {
    "Dense": "x = nn.Dense(3)(jnp.tanh(nn.Dense(6)(x)))",
    "Conv": "x = nn.Dense(3)(jnp.tanh(nn.Conv(4, (3,))(x.reshape(-1, 4, 2))).reshape(x.shape[0], -1))",
    "LayerNorm": "x = nn.Dense(3)(nn.LayerNorm()(nn.Dense(6)(x)))",
    "GroupNorm": "x = nn.Dense(3)(nn.GroupNorm(2)(nn.Dense(6)(x)))",
    "attention": "x = nn.Dense(3)(nn.MultiHeadDotProductAttention(2, qkv_features=4, use_bias=False)(x.reshape(-1, 4, 2)).mean(1))",
    "RNN": "x = nn.Dense(3)(nn.RNN(nn.LSTMCell(4))(x.reshape(-1, 4, 2))[:, -1])",
    "GRU": "x = nn.Dense(3)(nn.RNN(nn.GRUCell(4))(x.reshape(-1, 4, 2))[:, -1])",
    "BatchNorm": """
        axis = None
        axis = "replica" if not self.is_initializing() else None  # +
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-2, axis_name=axis)(nn.Dense(6, use_bias=False)(x))
        x = nn.Dense(3)(jnp.tanh(x))
    """,
    "BatchNorm of single rows": """
        axis = "rows"
        axis = ("rows", "replica")  # +
        axis = None if self.is_initializing() else axis
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-2, axis_name=axis)(nn.Dense(6, use_bias=False)(x))
        x = nn.Dense(3)(jnp.tanh(x))
    """,
    "remat": "x = nn.Dense(3)(nn.remat(nn.Dense)(6)(x))",
    "scan": """
        layer = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = layer()(x, None)
        x = nn.Dense(3)(x)
    """,
    "vmap": """
        heads = nn.vmap(nn.Dense, in_axes=None, out_axes=1, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True})
        x = nn.Dense(3)(jnp.tanh(heads(4)(x)).mean(1))
    """,
    "WeightNorm": "x = nn.Dense(3)(nn.WeightNorm(nn.Dense(6))(x))",
    "Dropout off": "x = nn.Dense(3)(nn.Dropout(0.5, deterministic=True)(jnp.tanh(nn.Dense(6)(x))))",
    "Embed": "x = nn.Dense(3)(nn.Embed(5, 4)(jnp.clip(jnp.abs(x[:, :3]) * 3, 0, 4).astype(jnp.int32)).reshape(-1, 12))",
    "parameter": 'x = nn.Dense(3)(x * self.param("scale", nn.initializers.ones, (8,)) * self.factor)',
}


def _linen_model(draw: _Draw) -> str:
    name = draw.named(draw.of(list(_LINEN)))
    call = textwrap.indent(textwrap.dedent(_LINEN[name]).strip(), " " * 8)
    mutable = draw.chance.random() < 0.5
    apply = """
    if "stats" in extra:
        out, new = net.apply({"params": params, "batch_stats": extra["stats"]}, x, mutable=["batch_stats"])
        return out, {**extra, "stats": new["batch_stats"]}
    return net.apply({"params": params}, x), extra
"""
    if name == "BatchNorm of single rows":
        apply = """
    def row(r):
        return net.apply({"params": params, "batch_stats": extra["stats"]}, r, mutable=["batch_stats"])

    out, new = jax.vmap(row, out_axes=(0, None), axis_name="rows")(x)
    return out, {**extra, "stats": new["batch_stats"]}
"""
    elif mutable and name != "BatchNorm":
        apply = "\n    return net.apply(dict(params=params), x), extra\n"
    return f"""
class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return jnp.tanh(nn.Dense(8)(x)), None


class Net(nn.Module):
    factor: float = 0.5

    @nn.compact
    def __call__(self, x):
{call}
        return x


net = Net()
variables = net.init(jax.random.key(0), jnp.zeros((2, 8)))
STATS = variables.get("batch_stats")


def init():
    return variables["params"]


def forward(params, extra, x):{apply}"""


_EQUINOX = {
    "MLP": ("eqx.nn.MLP(8, 3, 6, 1, key=key)", "net(x)"),
    "MLP with tanh": ("eqx.nn.MLP(8, 3, 6, 1, activation=jnp.tanh, key=key)", "net(x)"),
    "Linear": ("eqx.nn.Linear(8, 3, key=key)", "net(x)"),
    "Conv1d": ("eqx.nn.Conv1d(2, 3, 3, key=key)", "jnp.tanh(net(x.reshape(2, 4))).mean(1)"),
    "attention": (
        "[eqx.nn.MultiheadAttention(2, 4, key=key), eqx.nn.Linear(4, 3, key=key)]",
        "net[1](net[0](*[x.reshape(2, 4)] * 3).mean(0))",
    ),
    "attention with dropout off": (
        "[eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, inference=True, key=key), eqx.nn.Linear(4, 3, key=key)]",
        "net[1](net[0](*[x.reshape(2, 4)] * 3).mean(0))",
    ),
    "GRU": (
        "[eqx.nn.GRUCell(2, 4, key=key), eqx.nn.Linear(4, 3, key=key)]",
        "net[1](jax.lax.scan(lambda h, t: (net[0](t, h), None), jnp.zeros(4), x.reshape(4, 2))[0])",
    ),
    "LayerNorm": (
        "eqx.nn.Sequential([eqx.nn.LayerNorm(8), eqx.nn.Linear(8, 3, key=key)])",
        "net(x)",
    ),
    "Sequential": (
        "eqx.nn.Sequential([eqx.nn.Linear(8, 6, key=key), eqx.nn.Lambda(jnp.tanh), eqx.nn.Dropout(0.5, inference=True), "
        "eqx.nn.Linear(6, 3, key=key)])",
        "net(x)",
    ),
    "GroupNorm": (
        "[eqx.nn.GroupNorm(2, 4), eqx.nn.Linear(8, 3, key=key)]",
        "net[1](net[0](x.reshape(4, 2)).reshape(8))",
    ),
    "Embedding": (
        "[eqx.nn.Embedding(5, 4, key=key), eqx.nn.Linear(4, 3, key=key)]",
        "net[1](jax.vmap(net[0])(jnp.clip(jnp.abs(x) * 3, 0, 4).astype(jnp.int32)).mean(0))",
    ),
    "PReLU": ("[eqx.nn.PReLU(0.2), eqx.nn.Linear(8, 3, key=key)]", "net[1](net[0](x))"),
    "BatchNorm": (
        "[eqx.nn.Linear(8, 6, use_bias=False, key=key), eqx.nn.BatchNorm(6, AXES, 1e-2, mode='batch'), eqx.nn.Linear(6, 3, key=key)]",
        "net[2](jnp.tanh(normalised))",
    ),
    "stacked": (
        "[eqx.filter_vmap(lambda k: eqx.nn.Linear(8, 8, key=k))(jax.random.split(key, 3)), eqx.nn.Linear(8, 3, key=key)]",
        "net[1](through(net[0], x))",
    ),
}
_EQUINOX_FIELDS = {
    "number": ("scale: float = 0.5", "self.scale * {}"),
    "flag": ("negative: bool = True", "(-{0} if self.negative else {0})"),
    "size": ("power: int = 2", "{} ** self.power"),
    "static": ("kind: Any = eqx.field(static=True, default='tanh')", "getattr(jnp, self.kind)({})"),
    "function": ("act: Any = jnp.tanh", "self.act({})"),
    "array": (
        "mask: Any = eqx.field(default_factory=lambda: np.array([True, False, True]))",
        "jnp.where(self.mask, {}, 0.1)",
    ),
    "integers": ("order: Any = eqx.field(default_factory=lambda: jnp.array([2, 0, 1]))", "{}[self.order]"),
    "none": ("bias: Any = None", "{}"),
}


def _equinox_model(draw: _Draw) -> str:
    name = draw.named(draw.of(list(_EQUINOX)))
    layer, call = _EQUINOX[name]
    fields = draw.chance.sample(list(_EQUINOX_FIELDS), draw.chance.randint(0, 3))
    out = call.replace("net", "self.net")
    for field in fields:
        draw.named(f"field {field}")
        out = _EQUINOX_FIELDS[field][1].format(f"({out})")
    declared = "\n".join(f"    {_EQUINOX_FIELDS[field][0]}" for field in fields)
    if name == "BatchNorm":
        return f"""
AXES = "rows"
AXES = ("rows", "replica")  # +


class Net(eqx.Module):
    net: Any
{declared}

    def __call__(self, x, state):
        normalised, state = self.net[1](self.net[0](x), state)
        return {out}, state


key = jax.random.key(0)
MODEL, STATS = eqx.nn.make_with_state(lambda: Net({layer}))()


def init():
    return MODEL


def forward(model, extra, x):
    out, state = jax.vmap(model, axis_name="rows", in_axes=(0, None), out_axes=(0, None))(x, extra["stats"])
    return out, {{**extra, "stats": state}}
"""
    return f"""
def through(layers, x):
    arrays, static = eqx.partition(layers, eqx.is_array)
    return jax.lax.scan(lambda h, a: (jnp.tanh(eqx.combine(a, static)(h)), None), x, arrays)[0]


class Net(eqx.Module):
    net: Any
{declared}

    def __call__(self, x):
        return {out}


def init():
    key = jax.random.key(0)
    return Net({layer})


def forward(model, extra, x):
    return jax.vmap(model)(x), extra
"""


# Losses: what is computed of `out`, one number a row.

_ROW_LOSSES = {
    "squared error": "jnp.mean(jnp.square(out - y), axis=-1)",
    "cross-entropy": "optax.softmax_cross_entropy_with_integer_labels(out, label)",
    "Huber": "jnp.sum(optax.huber_loss(out, y), axis=-1)",
    "Hinge": "jnp.sum(jnp.maximum(0.0, 1.0 - out * jnp.sign(y)), axis=-1)",
    "cosine": "optax.cosine_distance(out, y, epsilon=1e-2)",
}


def _average(draw: _Draw) -> str:
    largest = max(draw.sizes)
    if not draw.mistake and "OneDevice" not in draw.strategy:
        draw.chance.random()  # It decided on a mistake once; so seeds go on to draw the same programs.
    how = draw.named(draw.of(["global size", "default size", "sum", "counted", "weighted", "weighted rows", "reduced"]))
    if how == "reduced":
        draw.names.append("reported as a mean")
    return {
        "global size": f"""\
    # - return jnp.sum(losses) / {largest}
    return rx.compute_average_loss(losses, global_batch_size={largest})  # +""",
        "default size": """\
    # - return jnp.mean(losses)
    return rx.compute_average_loss(losses)  # +""",
        "sum": f"    return jnp.sum(losses) / {largest}",
        "counted": """\
    count = len(losses)
    count = jax.lax.psum(count, "replica")  # +
    return jnp.sum(losses) / count""",
        "weighted": """\
    # - return jnp.mean(losses * weight)
    return rx.compute_average_loss(losses, sample_weight=weight)  # +""",
        "weighted rows": """\
    total = jnp.sum(weight)
    total = rx.get_replica_context().all_reduce("sum", total)  # +
    return jnp.sum(losses * weight) / total""",
        "reduced": """\
    loss = jnp.mean(losses)
    loss = jax.lax.pmean(loss, "replica")  # +
    return loss""",
    }[how]


_PENALTIES = {
    "none": "",
    "weights": """
    penalty = sum(jnp.sum(jnp.square(v)) for v in floats(params))
    loss = loss + 0.01 * SCALED""",
    "gradient of the input": """
    slopes = jax.vmap(jax.grad(lambda r: jnp.sum(forward(params, extra, r[None])[0])))(x)
    loss = loss + 0.1 * average(jnp.sum(jnp.square(slopes), axis=-1), weight)""",
    "gradient of each row": """
    def row(p, r, t):
        return jnp.mean(jnp.square(forward(p, extra, r[None])[0][0] - t))

    norms = jax.vmap(lambda r, t: sum(jnp.sum(jnp.square(g)) for g in floats(GRAD(row)(params, r, t))))(x, y)
    loss = loss + 0.1 * average(norms, weight)""",
    "adapted for each row": """
    def row(p, r, t):
        return jnp.mean(jnp.square(forward(p, extra, r[None])[0][0] - t))

    def adapted(r, t):
        return row(stepped(params, GRAD(row)(params, r, t)), r, -t)

    loss = loss + 0.1 * average(jax.vmap(adapted)(x, y), weight)""",
    "gradient of the batch": """
    def inner(p):
        return average(jnp.mean(jnp.square(forward(p, extra, x)[0] - y), axis=-1), weight)

    penalty = sum(jnp.sum(jnp.square(g)) for g in floats(GRAD(inner)(params)))
    loss = loss + 0.01 * SCALED""",
}


def _loss(draw: _Draw, grad: str = "jax.grad", collectives_in_rows: bool = False) -> str:
    row = draw.named(draw.of(list(_ROW_LOSSES)))
    average = _average(draw)
    operation = draw.of(_OPERATIONS) if draw.chance.random() < 0.3 else ""
    weights = {
        "none": 8,
        "weights": 3,
        "gradient of the input": 1,
        "gradient of each row": 1,
        "adapted for each row": 1,
    }
    weights["gradient of the batch"] = 1
    # Losses that replicas have reduced count once, and a sum of losses that differ counts every replica's part.
    if collectives_in_rows or "reduced" in draw.names or draw.mistake:
        weights = {"none": 8}
    penalty = draw.of(weights)
    if penalty != "none":
        draw.named(f"penalty {penalty}")
    scaled = "    # - penalty = penalty\n    penalty = rx.scale_regularization_loss(penalty)  # +\n    loss = loss + 0.01 * penalty"
    text = _PENALTIES[penalty].replace("    loss = loss + 0.01 * SCALED", scaled).replace("GRAD", grad)
    remat = draw.chance.random() < 0.1
    call = "jax.checkpoint(forward)" if remat and grad == "jax.grad" else "forward"
    return f"""
def floats(tree):
    return [v for v in jax.tree.leaves(tree) if {"" if grad == "eqx.filter_grad" else "isinstance(v, float) or "}eqx.is_inexact_array(v)]


def stepped(params, grads):
    return jax.tree.map(lambda p, g: p if g is None else p - 0.1 * g, params, grads, is_leaf=lambda v: v is None)


def average(losses, weight):
{average}


def loss_fn(params, extra, batch):
    x, y, label, weight = fields(batch)
    out, new = {call}(params, extra, x)
{f"    out = {operation}" if operation else ""}
    loss = average({_ROW_LOSSES[row]}, weight){text}
    return loss, (new, out)
"""


_OPTIMIZERS = (
    "optax.sgd(0.1)",
    "optax.sgd(0.1, momentum=0.9, nesterov=True)",
    "optax.adam(1e-2, eps=1e-2)",
    "optax.adamw(optax.cosine_decay_schedule(1e-2, 10), eps=1e-2)",
    "optax.rmsprop(1e-2, eps=1e-2)",
    "optax.adagrad(0.1, eps=1e-2)",
    "optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))",
    "optax.chain(optax.clip(0.05), optax.add_decayed_weights(1e-2), optax.sgd(0.1))",
    "optax.MultiSteps(optax.sgd(0.1), 2)",
    "optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)",
    "optax.apply_if_finite(optax.sgd(0.1), 2)",
    "optax.contrib.schedule_free_sgd(0.1)",
    "optax.contrib.prodigy(0.1, eps=1e-2)",
    "optax.contrib.dog(0.1)",
    "optax.adafactor(1e-2)",
    "optax.lamb(1e-2, eps=1e-2)",
)


_ARRAYS_ONLY = (
    "optax.adafactor(1e-2)",
    "optax.contrib.schedule_free_sgd(0.1)",
    "optax.contrib.prodigy(0.1, eps=1e-2)",
    "optax.contrib.dog(0.1)",
)


def _optimizer(draw: _Draw) -> str:
    # Some have no room for numbers of Python, in plain JAX either.
    choices = [text for text in _OPTIMIZERS if "with numbers" not in draw.names or text not in _ARRAYS_ONLY]
    text = draw.named(draw.of(choices))
    return f"\ntx = {text}\n"


_AFTER = {
    "nothing": "",
    "clipped by hand": """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in floats(grads)))
    grads = jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), grads)""",
    "mean by hand": """
    grads = jax.lax.pmean(grads, "replica")  # +""",
    "average of weights": """
    average_of_weights = extra.get("average", floats(params))
    new = {**new, "average": [0.9 * a + 0.1 * p for a, p in zip(average_of_weights, floats(params))]}""",
    "hits counted": """
    hits = jnp.sum(jnp.argmax(out, -1) == fields(batch)[2])
    hits = rx.get_replica_context().all_reduce("sum", hits)  # +
    new = {**new, "hits": hits}""",
    "hits by psum": """
    hits = jnp.sum(jnp.argmax(out, -1) == fields(batch)[2])
    hits = jax.lax.psum(hits, "replica")  # +
    new = {**new, "hits": hits + extra.get("hits", 0)}""",
    "largest": """
    largest = jnp.max(out)
    largest = jax.lax.pmax(largest, "replica")  # +
    new = {**new, "largest": largest}""",
    "whether": """
    whether = jnp.any(out > 0.5)
    whether = jax.lax.pmax(whether.astype(jnp.int8), "replica") > 0  # +
    grads = jax.lax.cond(whether, lambda: grads, lambda: jax.tree.map(lambda g: 0.5 * g, grads))
    new = {**new, "whether": whether}""",
    "mean of integers": """
    hits = jnp.sum(jnp.argmax(out, -1) == fields(batch)[2])
    # - hits = hits.astype(jnp.float32)
    hits = rx.get_replica_context().all_reduce("mean", hits) * jax.lax.psum(1, "replica")  # +
    new = {**new, "mean of integers": hits}""",
    "no steps at first": """
    grads = jax.lax.cond(extra["step"] < 1, lambda: jax.tree.map(jnp.zeros_like, grads), lambda: grads)""",
    "skipped where not finite": """
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in floats(grads)]))
    grads = jax.tree.map(lambda g: jnp.where(finite, g, 0.0), grads)""",
    "noise": """
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(5), extra["step"]), ())
    grads = jax.tree.map(lambda g: g * (1 + 0.1 * noise), grads)""",
}


def _step(draw: _Draw, is_equinox: bool) -> str:
    value_and_grad = "eqx.filter_value_and_grad" if is_equinox else "jax.value_and_grad"
    numbers = "with numbers" in draw.names
    after = draw.of({"nothing": 4, **dict.fromkeys(list(_AFTER)[1:], 1)})
    draw.named(f"after: {after}")
    if draw.wrong("summed twice", 0.04):
        wrong = draw.of(
            [
                'grads = jax.lax.psum(grads, "replica")  # +',
                'grads = rx.get_replica_context().all_reduce("sum", grads)  # +',
                'grads = jax.tree.map(lambda g: jax.lax.psum(g, "replica"), grads)  # +',
                'grads = jax.jit(lambda g: jax.lax.psum(g, "replica"))(grads)  # +',
                'grads = jax.lax.all_gather(grads, "replica"); grads = jax.tree.map(lambda g: g.sum(0), grads)  # +',
            ]
        )
        after_text = _AFTER[after] + f"\n    {wrong}"
    else:
        after_text = _AFTER[after]
    step = f"""
    (loss, (new, out)), grads = {value_and_grad}(loss_fn, has_aux=True)(params, extra, batch){after_text}"""
    if is_equinox:
        update = """
    updates, opt_state = tx.update(grads, opt_state, eqx.filter(params, eqx.is_inexact_array))
    params = eqx.apply_updates(params, updates)"""
    else:
        update = """
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)"""
    trained = "eqx.filter(params, eqx.is_inexact_array)" if is_equinox else "params"
    if numbers:
        draw.named("a number in the tree")
    stats = (
        '\n    if STATS is not None:\n        extra["stats"] = STATS'
        if {"linen", "BatchNorm"} & set(draw.names)
        else ""
    )
    mean = ', "mean": jnp.zeros(6)' if "batch statistics" in draw.names else ""
    if after == "average of weights":
        mean += ', "average": floats(params)'
    elif after.startswith("hits"):
        mean += ', "hits": jnp.int32(0)'
    elif after == "mean of integers":
        mean += ', "mean of integers": jnp.float32(0)'
    elif after == "largest":
        mean += ', "largest": jnp.float32(0)'
    elif after == "whether":
        mean += ', "whether": jnp.array(False)'
    return f"""

def init_state():
    params = init()
    extra = {{"step": jnp.int32(0){mean}}}{stats}
    return params, tx.init({trained}), extra


def step(state, batch, rate=None):
    params, opt_state, extra = state{step}{update}
    new = {{**new, "step": extra["step"] + 1}}
    if rate is not None:
        params = jax.tree.map(lambda v: v * rate if eqx.is_inexact_array(v) else v, params)
    return (params, opt_state, new), loss
"""


# Forms of the step: what stands before `main`, what stands before the loop, the call in the plain library, and ours.

_FORMS: dict[str, tuple[str, str, str, str]] = {
    "arguments": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(step, args=(state, batch))",
    ),
    "keywords": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(step, kwargs={'batch': batch, 'state': state})",
    ),
    "rx.function": (
        "@rx.function  # +\ndef outer(state, batch):  # +\n    return strategy.run(step, args=(state, batch))  # +\n",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = outer(state, batch)",
    ),
    "jitted step": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(jitted, args=(state, batch))",
    ),
    "new lambda": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(lambda batch: step(state, batch), args=(batch,))",
    ),
    "new closure": (
        "def bound(state):\n    def inner(batch):\n        return step(state, batch)\n\n    return inner\n",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(bound(state), args=(batch,))",
    ),
    "partial": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(functools.partial(step, state), args=(batch,))",
    ),
    "parts": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(lambda p, o, e, b: step((p, o, e), b), args=(*state, batch))",
    ),
    "twice in a step": (
        "def both(state, batch):\n    state, _ = step(state, batch)\n    return step(state, batch)\n",
        "",
        "state, loss = jitted(jitted(state, batch)[0], batch)",
        "state, loss = strategy.run(both, args=(state, batch))",
    ),
    "two runs in a function": (
        "@rx.function  # +\ndef outer(state, batch):  # +\n    state, _ = strategy.run(step, args=(state, batch))  # +\n"
        "    return strategy.run(step, args=(state, batch))  # +\n",
        "",
        "state, loss = jitted(jitted(state, batch)[0], batch)",
        "state, loss = outer(state, batch)",
    ),
    "self": (
        "class Trainer:\n    def step(self, batch):\n        return step(self.state, batch)\n",
        "trainer = Trainer()\ntrainer.state = state",
        "state, loss = jitted(state, batch)",
        "trainer.state, loss = strategy.run(trainer.step, args=(batch,)); state = trainer.state",
    ),
    "self in a function": (
        "class Trainer:\n    def step(self, batch):\n        return step(self.state, batch)\n\n"
        "    @rx.function  # +\n    def run(self, batch):  # +\n        return strategy.run(self.step, args=(batch,))  # +\n",
        "trainer = Trainer()\ntrainer.state = state",
        "state, loss = jitted(state, batch)",
        "trainer.state, loss = trainer.run(batch); state = trainer.state",
    ),
    "global": (
        "STATE = None\n\n\ndef global_step(batch):\n    return step(STATE, batch)\n",
        "global STATE\nSTATE = state",
        "state, loss = jitted(state, batch)",
        "STATE, loss = strategy.run(global_step, args=(batch,)); state = STATE",
    ),
    "cell": (
        "",
        "def cell_step(batch):\n    return step(state, batch)\n",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(cell_step, args=(batch,))",
    ),
    "dict": (
        'MEMORY = {}\n\n\ndef dict_step(batch):\n    return step(MEMORY["state"], batch)\n',
        'MEMORY["state"] = state',
        "state, loss = jitted(state, batch)",
        'MEMORY["state"], loss = strategy.run(dict_step, args=(batch,)); state = MEMORY["state"]',
    ),
    "dict changed inside": (
        'MEMORY = {}\n\n\ndef dict_step(params, batch):\n    return step((params, *MEMORY["rest"]), batch)\n',
        'MEMORY["rest"] = state[1:]',
        "state, loss = jitted(state, batch)",
        'state, loss = strategy.run(dict_step, args=(state[0], batch)); MEMORY["rest"] = state[1:]',
    ),
    "default argument": (
        "",
        "",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(lambda batch, state=state: step(state, batch), args=(batch,))",
    ),
    "number changed between calls": (
        "RATE = 1.0\n\n\ndef rated(state, batch):\n    return step(state, batch, RATE)\n",
        "global RATE",
        "state, loss = jitted(state, batch, 1.0 - 0.1 * number)",
        "RATE = 1.0 - 0.1 * number; state, loss = strategy.run(rated, args=(state, batch))",
    ),
    "array changed between calls": (
        "RATE = 1.0\n\n\ndef rated(state, batch):\n    return step(state, batch, RATE)\n",
        "global RATE",
        "state, loss = jitted(state, batch, 1.0 - 0.1 * number)",
        "RATE = jnp.float32(1.0 - 0.1 * number); state, loss = strategy.run(rated, args=(state, batch))",
    ),
    "NumPy array changed in place": (
        "RATE = np.ones((), 'float32')\n\n\ndef rated(state, batch):\n    return step(state, batch, jnp.asarray(RATE))\n",
        "",
        "state, loss = jitted(state, batch, 1.0 - 0.1 * number)",
        "RATE[...] = 1.0 - 0.1 * number; state, loss = strategy.run(rated, args=(state, batch))",
    ),
    "number as an argument": (
        "",
        "",
        "state, loss = jitted(state, batch, 1.0 - 0.1 * number)",
        "state, loss = strategy.run(step, args=(state, batch, 1.0 - 0.1 * number))",
    ),
    "old state kept": (
        "",
        "first = state",
        "state, loss = jitted(state, batch)",
        "state, loss = strategy.run(step, args=(state, batch))",
    ),
    "variables": (
        """
        def variable_step(batch):
            leaves, tree = jax.tree.flatten((STATE_TREE,))
            state = jax.tree.unflatten(TREE, [v.value for v in VARIABLES])
            state, loss = step(state, batch)
            for v, new in zip(VARIABLES, jax.tree.leaves(state)):
                v.assign(new)
            return loss
        """,
        """
        global TREE, VARIABLES
        leaves, TREE = jax.tree.flatten(state)
        with strategy.scope():  # +
            VARIABLES = [rx.Variable(leaf) for leaf in leaves]  # +
        """,
        "state, loss = jitted(state, batch)",
        "loss = strategy.run(variable_step, args=(batch,)); state = jax.tree.unflatten(TREE, [v.value for v in VARIABLES])",
    ),
}
_FORMS["variables"] = (
    _FORMS["variables"][0].replace("            leaves, tree = jax.tree.flatten((STATE_TREE,))\n", ""),
    *_FORMS["variables"][1:],
)


def _indented(text: str, by: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip(), " " * by)


def _main(draw: _Draw, is_equinox: bool) -> str:
    names = list(_FORMS)
    if is_equinox or "with numbers" in draw.names:
        names.remove("variables")  # Of arrays only.
    form = draw.named(
        draw.of({name: 1 if name in _CAPTURED else 5 if name in ("arguments", "rx.function") else 3 for name in names})
    )
    before, setup, plain, ours = _FORMS[form]
    if form in _CAPTURED and not draw.mistake:
        draw.mistake = "captured"
    data = draw.batches()
    if data == "batches":
        pass
    elif draw.chance.random() < 0.2:
        data = "strategy.distribute_dataset(iter(batches))"
    elif draw.chance.random() < 0.1:
        data = "[next(iter(strategy.distribute_dataset([b]))) for b in batches]"
    replicate = draw.chance.random() < 0.6
    if draw.wrong("varying value", 0.03) and form in ("arguments", "rx.function", "keywords"):
        # Each replica's own value is made a part of the state.
        before = before.replace("strategy.run(step,", "strategy.run(spoiled,")
        ours = ours.replace("strategy.run(step,", "strategy.run(spoiled,")
        before = (
            "def spoiled(state, batch):\n    (p, o, e), loss = step(state, batch)\n"
            "    p = jax.tree.map(lambda v: v * (1 + 0.01 * jnp.mean(fields(batch)[0])) if eqx.is_inexact_array(v) else v, p)\n"
            "    return (p, o, e), loss\n\n\n"
        ) + before
    elif draw.mistake == "varying value":
        draw.mistake = ""
        draw.names.remove("varying value")
    how = "mean" if "reported as a mean" in draw.names else "sum"
    jit = "eqx.filter_jit" if is_equinox else "jax.jit"
    replicated = "    state = strategy.replicate(state)  # +\n" if replicate else ""
    kept = ', "first": first' if form == "old state kept" else ""
    return f"""

jitted = {jit}(step)

{textwrap.dedent(before).strip()}


def main():
    state = init_state()
{replicated}{_indented(setup, 4)}
    losses = []
    # - for number, batch in enumerate(batches):
    for number, batch in enumerate({data}):  # +
        # - {plain}
        {ours}  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("{how}", loss, axis=None))  # +
    return {{"state": state, "losses": losses{kept}}}
"""


def _of_pytrees(draw: _Draw) -> str:
    model = _pytree_model(draw)
    statistics = {"batch statistics", "rows by vmap with an axis"} & set(draw.names)
    return (
        model + _loss(draw, "jax.grad", bool(statistics)) + _optimizer(draw) + _step(draw, False) + _main(draw, False)
    )


def _of_linen(draw: _Draw) -> str:
    model = _linen_model(draw)
    return (
        model
        + _loss(draw, "jax.grad", any("BatchNorm" in name for name in draw.names))
        + _optimizer(draw)
        + _step(draw, False)
        + _main(draw, False)
    )


def _of_equinox(draw: _Draw) -> str:
    model = _equinox_model(draw)
    loss = _loss(draw, "eqx.filter_grad", "BatchNorm" in draw.names)
    return model + loss + _optimizer(draw) + _step(draw, True) + _main(draw, True)


_NNX = {
    "Linear": (
        "self.a, self.b = nnx.Linear(8, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)",
        "self.b(jnp.tanh(self.a(x)))",
    ),
    "Conv": (
        "self.a, self.b = nnx.Conv(2, 4, (3,), rngs=rngs), nnx.Linear(16, 3, rngs=rngs)",
        "self.b(jnp.tanh(self.a(x.reshape(-1, 4, 2))).reshape(x.shape[0], -1))",
    ),
    "LayerNorm": ("self.a, self.b = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)", "self.b(self.a(x))"),
    "BatchNorm": (
        """
        axis = None
        axis = "replica"  # +
        self.a = nnx.BatchNorm(8, epsilon=1e-2, axis_name=axis, rngs=rngs)
        self.b = nnx.Linear(8, 3, rngs=rngs)
        """,
        "self.b(self.a(x))",
    ),
    "attention": (
        "self.a, self.b = nnx.MultiHeadAttention(2, 2, 4, decode=False, use_bias=False, rngs=rngs), nnx.Linear(2, 3, rngs=rngs)",
        "self.b(self.a(x.reshape(-1, 4, 2)).mean(1))",
    ),
    "Dropout off": (
        "self.a, self.b = nnx.Dropout(0.5, deterministic=True, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)",
        "self.b(self.a(x))",
    ),
    "Embed": (
        "self.a, self.b = nnx.Embed(5, 4, rngs=rngs), nnx.Linear(32, 3, rngs=rngs)",
        "self.b(self.a(jnp.clip(jnp.abs(x) * 3, 0, 4).astype(jnp.int32)).reshape(-1, 32))",
    ),
    "GRU": (
        "self.a, self.b = nnx.RNN(nnx.GRUCell(2, 4, rngs=rngs), rngs=rngs), nnx.Linear(4, 3, rngs=rngs)",
        "self.b(self.a(x.reshape(-1, 4, 2))[:, -1])",
    ),
    "shared": (
        "self.a = self.c = nnx.Linear(8, 8, rngs=rngs); self.b = nnx.Linear(8, 3, rngs=rngs)",
        "self.b(jnp.tanh(self.c(jnp.tanh(self.a(x)))))",
    ),
    "list": (
        "self.a = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)]); self.b = nnx.Linear(8, 3, rngs=rngs)",
        "self.b(jnp.tanh(self.a[1](self.a[0](x))))",
    ),
}
_NNX_FORMS = {
    "arguments": ("", "strategy.run(step, args=(model, optimizer, batch))"),
    "rx.function": (
        "@rx.function  # +\ndef outer(model, optimizer, batch):  # +\n"
        "    return strategy.run(step, args=(model, optimizer, batch))  # +\n",
        "outer(model, optimizer, batch)",
    ),
    "captured": ("", "strategy.run(captured, args=(batch,))"),
    "new lambda": ("", "strategy.run(lambda batch: step(model, optimizer, batch), args=(batch,))"),
    "nnx.jit": ("", "strategy.run(nnx.jit(step), args=(model, optimizer, batch))"),
    "split": ("", "split_step(model, optimizer, batch)"),
}


def _of_nnx(draw: _Draw) -> str:
    layers, call = _NNX[draw.named(draw.of(list(_NNX)))]
    counts = draw.chance.random() < 0.3
    number = draw.chance.random() < 0.4
    form = draw.named(draw.of(list(_NNX_FORMS)))
    before, run = _NNX_FORMS[form]
    changed = number and draw.chance.random() < 0.4
    if changed:
        draw.named("number changed between calls")
    loss = _average(draw)
    how = "mean" if "reported as a mean" in draw.names else "sum"
    row = _ROW_LOSSES[draw.named(draw.of(list(_ROW_LOSSES)))]
    optimizer = draw.named(draw.of(["optax.sgd(0.1, momentum=0.9)", "optax.adam(1e-2, eps=1e-2)"]))
    data = draw.batches()
    count = "\n        self.calls[...] += 1" if counts else ""
    return f"""

class Net(nnx.Module):
    def __init__(self, rngs):
        self.scale = 0.5
        self.calls = nnx.Variable(jnp.int32(0))
{_indented(layers, 8)}

    def __call__(self, x):{count}
        return {call}{" * self.scale" if number else ""}


def average(losses, weight):
{loss}


def loss_fn(model, batch):
    x, y, label, weight = fields(batch)
    out = model(x)
    return average({row}, weight)


def step(model, optimizer, batch):
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


{before}

def main():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, {optimizer}, wrt=nnx.Param)
    graph = nnx.graphdef((model, optimizer))
    jitted = nnx.jit(step)

    def captured(batch):
        return step(model, optimizer, batch)

    def merged(state, batch):
        model, optimizer = nnx.merge(graph, state)
        loss = step(model, optimizer, batch)
        return nnx.state((model, optimizer)), loss

    def split_step(model, optimizer, batch):
        state, loss = strategy.run(merged, args=(nnx.state((model, optimizer)), batch))  # +
        # - state, loss = merged(nnx.state((model, optimizer)), batch)
        nnx.update((model, optimizer), state)
        return loss

    losses = []
    # - for number, batch in enumerate(batches):
    for number, batch in enumerate({data}):  # +
{"        model.scale = 0.5 + 0.1 * number; graph = nnx.graphdef((model, optimizer))" if changed else ""}
        # - losses.append(jitted(model, optimizer, batch))
        losses.append(strategy.reduce("{how}", {run}, axis=None))  # +
    return {{
        "model": nnx.to_pure_dict(nnx.state(model)),
        "optimizer": nnx.to_pure_dict(nnx.state(optimizer)),
        "losses": losses,
        "scale": model.scale,
    }}
"""


_KERAS = {
    "Dense": 'layers.Dense(3)(layers.Dense(6, "tanh")(x))',
    "regularised": 'layers.Dense(3)(layers.Dense(6, "tanh", kernel_regularizer="l2")(x))',
    "Conv1D": 'layers.Dense(3)(layers.Flatten()(layers.Conv1D(4, 3, activation="tanh")(layers.Reshape((4, 2))(x))))',
    "LayerNormalization": "layers.Dense(3)(layers.LayerNormalization()(layers.Dense(6)(x)))",
    "BatchNormalization": "layers.Dense(3)(NORM(epsilon=1e-2)(layers.Dense(6, use_bias=False)(x)))",
    "frozen": 'layers.Dense(3)(layers.Dense(6, "tanh", trainable=False)(x))',
    "GRU": "layers.Dense(3)(layers.GRU(4)(layers.Reshape((4, 2))(x)))",
    "attention": "layers.Dense(3)(layers.Flatten()(layers.MultiHeadAttention(2, 2, use_bias=False)(r := layers.Reshape((4, 2))(x), r)))",
    "activity": 'layers.Dense(3)(layers.Dense(6, "tanh", activity_regularizer="l2")(x))',
    "Embedding": "layers.Dense(3)(layers.Flatten()(layers.Embedding(5, 4)(layers.Lambda(ids)(x))))",
    "shared": 'layers.Dense(3)((d := layers.Dense(8, "tanh"))(d(x)))',
    "GroupNormalization": "layers.Dense(3)(layers.GroupNormalization(2)(layers.Dense(6)(x)))",
    "SpectralNormalization": 'layers.Dense(3)(layers.SpectralNormalization(layers.Dense(6, "tanh"))(x))',
    "Discretization": "layers.Dense(3)(layers.Concatenate()([x, layers.Rescaling(2.0)(layers.UnitNormalization()(x))]))",
}
_KERAS_OPTIMIZERS = (
    "SGD(0.1, momentum=0.9)",
    "Adam(1e-2, epsilon=1e-2)",
    "AdamW(1e-2, epsilon=1e-2, clipnorm=0.5)",
    "RMSprop(1e-2, epsilon=1e-2)",
    "SGD(0.1, global_clipnorm=0.3)",
    "SGD(0.1, use_ema=True, ema_momentum=0.5)",
    "SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))",
    "Adam(1e-2, epsilon=1e-2, gradient_accumulation_steps=2)",
    "Adagrad(0.1, epsilon=1e-2)",
    "Lamb(1e-2, epsilon=1e-2)",
)


def _keras_model(draw: _Draw, norm: str, leave_out: tuple[str, ...] = ()) -> str:
    model = draw.named(draw.of([name for name in _KERAS if name not in leave_out]))
    return f"""
layers = keras.layers


def ids(x):
    return keras.ops.cast(keras.ops.clip(keras.ops.abs(x) * 3, 0, 4), "int32")


def build():
    norm = keras.layers.BatchNormalization
    {norm}
    x = keras.Input((8,))
    return keras.Model(x, {_KERAS[model].replace("NORM", "norm")})
"""


def _of_keras_loop(draw: _Draw) -> str:
    # A penalty on activities is a mean over a replica's rows, which the guide scales; of unequal batches it is exact, too.
    # What SpectralNormalization assigns to a kernel, Keras's own stateless_call loses.
    model = _keras_model(draw, "norm = rx.keras.BatchNormalization  # +", ("SpectralNormalization",))
    average = _average(draw)
    how = "mean" if "reported as a mean" in draw.names else "sum"
    row = _ROW_LOSSES[draw.named(draw.of(list(_ROW_LOSSES)))]
    optimizer = draw.named(draw.of(_KERAS_OPTIMIZERS))
    form = draw.named(draw.of(["run", "rx.function", "self"]))
    penalties = (
        "" if "reported as a mean" in draw.names or draw.mistake else " + rx.scale_regularization_loss(model.losses)"
    )
    run = {
        "run": "strategy.run(train_step, args=(batch,))",
        "rx.function": "outer(batch)",
        "self": "strategy.run(trainer.step, args=(batch,))",
    }[form]
    data = draw.batches()
    extra_before = extra = ""
    if draw.wrong("varying variable", 0.06):
        extra_before = '    seen = rx.Variable(0.0, name="seen")  # +\n'
        extra = "    seen.assign(jnp.mean(x))  # +\n"
    return f"""{model}

def average(losses, weight):
{average}


with strategy.scope():  # +
    model = build()
    optimizer = keras.optimizers.{optimizer}
    optimizer.build(model.trainable_variables)
    metric = keras.metrics.SparseCategoricalAccuracy()
{extra_before}

def train_step(batch):  # +
    x, y, label, weight = fields(batch)  # +
{extra}
    def loss_fn():  # +
        out = model(x, training=True)  # +
        return average({row}, weight){penalties}, out  # +

    (loss, out), grads = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()  # +
    optimizer.apply_gradients(zip(grads, model.trainable_variables))  # +
    metric.update_state(label, out)  # +
    return loss  # +


@jax.jit
def plain_step(trainable, other, state, batch):
    x, y, label, weight = fields(batch)

    def loss_fn(trainable, other):
        out, other, penalties = model.stateless_call(trainable, other, x, training=True, return_losses=True)
        return average({row}, weight){" + sum(penalties)" if penalties else ""}, (out, other)

    (loss, (out, other)), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, other)
    trainable, state = optimizer.stateless_apply(state, grads, trainable)
    return loss, out, trainable, other, state


def plain(batch):
    variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    loss, out, *new = plain_step(*[[v.value for v in group] for group in variables], batch)
    for group, values in zip(variables, new):
        for v, value in zip(group, values):
            v.assign(value)
    metric.update_state(fields(batch)[2], out)
    return loss


class Trainer:
    def step(self, batch):
        return train_step(batch)


trainer = Trainer()


@rx.function  # +
def outer(batch):  # +
    return strategy.run(train_step, args=(batch,))  # +


def main():
    losses = []
    # - for batch in batches:
    for batch in {data}:  # +
        # - losses.append(plain(batch))
        losses.append(strategy.reduce("{how}", {run}, axis=None))  # +
    return {{
        "weights": [np.asarray(w) for w in model.get_weights()],
        "optimizer": [np.asarray(v) for v in optimizer.variables],
        "losses": losses,
        "metric": metric.result(),
    }}
"""


_FITS = {
    "plain": "model.fit(x, y, batch_size=12, epochs=2, verbose=0)",
    "not shuffled": "model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)",
    "weights": "model.fit(x, y, batch_size=12, epochs=2, sample_weight=weight, verbose=0)",
    "generator": "model.fit((b for _ in range(2) for b in blocks), steps_per_epoch=3, epochs=2, verbose=0)",
    "validation": "model.fit(x, y, batch_size=12, epochs=2, validation_data=(x[:7], y[:7]), verbose=0)",
    "validation split": "model.fit(x, y, batch_size=8, epochs=2, validation_split=0.25, verbose=0)",
    "again and again": "[model.fit(x, y, batch_size=12, epochs=1, verbose=0) for _ in range(2)][-1]",
    "train_on_batch": "[model.train_on_batch(*b) for b in blocks] and None",
    "after evaluate": "(model.evaluate(x, y, verbose=0), model.fit(x, y, batch_size=12, verbose=0))[1]",
    "learning rate": "model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[keras.callbacks.LearningRateScheduler(lambda e: 0.1 / (e + 1))])",
    "stops early": "model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[keras.callbacks.EarlyStopping('loss')])",
    "recompiled": "(model.fit(x, y, batch_size=12, verbose=0), compiled(), model.fit(x, y, batch_size=12, verbose=0))[2]",
    "weights set between": "(model.fit(x, y, batch_size=12, verbose=0), model.set_weights([0.9 * w for w in model.get_weights()]), model.fit(x, y, batch_size=12, verbose=0))[2]",
}
_SUBCLASSES = {
    "Model": "",
    "train_step": """
    def train_step(self, state, data):
        return super().train_step(state, data)
""",
    "compute_loss": """
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        return loss + 0.01 * sum(keras.ops.sum(keras.ops.square(w)) for w in self.trainable_weights)
""",
    "number": """
    factor = 0.5

    def call(self, x, training=None):
        return self.factor * super().call(x, training=training)
""",
}


def _of_keras_fit(draw: _Draw) -> str:
    model = _keras_model(draw, "")
    fit = draw.named(draw.of(list(_FITS)))
    subclass = draw.named(draw.of(list(_SUBCLASSES)))
    dropout = draw.chance.random() < 0.3 and draw.named("dropout")
    optimizer = draw.named(draw.of(list(_KERAS_OPTIMIZERS)))
    while fit == "learning rate" and "schedules" in optimizer:
        optimizer = draw.of(list(_KERAS_OPTIMIZERS))
    loss = draw.named(draw.of(["mse", "huber", "keras.losses.MeanSquaredError(reduction='sum')", "own"]))
    loss = {"mse": '"mse"', "huber": '"huber"', "own": "lambda a, b: keras.ops.mean(keras.ops.abs(a - b), -1)"}.get(
        loss, loss
    )
    steps = draw.of({"1": 4, "2": 1})
    fit_text = _FITS[fit]
    return f"""{model}

class Net(keras.Model):{_SUBCLASSES[subclass] or chr(10) + "    pass" + chr(10)}

def compiled():
    model.compile(keras.optimizers.{optimizer}, {loss}, metrics=["mae"], weighted_metrics=[], steps_per_execution={steps})


with strategy.scope():  # +
    inner = build()
    x = inner.inputs[0]
    y = inner.outputs[0]
{"    y = keras.layers.Dropout(0.3)(y)" if dropout else ""}
    model = Net(x, y)
    compiled()


def main():
    n = {draw.of(["36", "31", "25"])}
    x, y = rng.normal(size=(n, 8)).astype("float32"), rng.normal(size=(n, 3)).astype("float32")
    weight = rng.uniform(0.5, 1.5, n).astype("float32")
    blocks = [(x[i : i + 12], y[i : i + 12]) for i in range(0, 36, 12)][:3]
    keras.utils.set_random_seed(1)
    history = {fit_text}
    return {{
        "weights": model.get_weights(),
        "optimizer": [np.asarray(v) for v in model.optimizer.variables],
        "history": {{k: np.float32(v) for k, v in history.history.items()}} if history else {{}},
        "evaluated": np.float32(model.evaluate(x, y, batch_size=8, verbose=0)),
        "predicted": model.predict(x[:11], batch_size=4, verbose=0),
    }}


"""


_FRAMEWORKS = {
    "pytrees": (9, _of_pytrees),
    "linen": (3, _of_linen),
    "equinox": (4, _of_equinox),
    "nnx": (3, _of_nnx),
    "keras loop": (2, _of_keras_loop),
    "keras fit": (2, _of_keras_fit),
}
