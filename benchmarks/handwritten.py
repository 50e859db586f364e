"""Data-parallel training steps as one would write them by hand in JAX: the yardstick.

Both train a multi-layer perceptron with Adam on integer labels. `make_shard_map_step` is one replica's view with an
explicit sum of gradients; `make_gspmd_step` is the global view, partitioned by XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from problem import (
    EPSILON,
    LEARNING_RATE,
    ROWS as ROWS,
    SIZES as SIZES,
    init_params as init_params,
    make_batch as make_batch,
)


def apply(params: Any, x: jax.Array) -> jax.Array:
    """Returns logits of shape `(rows, classes)` for `x` of shape `(rows, features)`."""
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_sum(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum of the rows' cross entropies."""
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y))


def adam() -> optax.GradientTransformation:
    """Returns Adam as the problem has it."""
    return optax.adam(LEARNING_RATE, eps=EPSILON)


class HandWritten:
    """A compiled step with its state, placed on a mesh.

    Args:
        step: `(params, opt_state, x, y) -> (params, opt_state, loss)`.
        mesh: Devices, one axis `"replica"`.
        sizes: Layer sizes.
    """

    def __init__(self, step: Callable[..., Any], mesh: Mesh, sizes: tuple[int, ...], batch: Any):
        replicated = NamedSharding(mesh, PartitionSpec())
        params = init_params(sizes)
        # In NumPy's memory, which is copied: JAX 0.10 shares an array of its own with the copy on several devices,
        # may_alias=False or not, and a donated step then deletes the caller's.
        state = (params, jax.tree.map(np.array, adam().init(params)))
        self.state = jax.device_put(state, replicated, may_alias=False)
        self.batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("replica")))
        self.compiled = jax.jit(step, donate_argnums=(0, 1))
        self.loss: Any = None

    def __call__(self) -> None:
        """Makes one step."""
        params, opt_state, self.loss = self.compiled(*self.state, *self.batch)
        self.state = (params, opt_state)

    def wait(self) -> None:
        """Waits for the last step."""
        jax.block_until_ready((self.state, self.loss))

    def peak_bytes(self) -> int:
        """Returns what a step needs on all devices at once."""
        return peak_bytes(self.compiled.lower(*self.state, *self.batch).compile())


def make_shard_map_step(mesh: Mesh, rows: int) -> Callable[..., Any]:
    """Returns the step in one replica's view; `jax.grad` sums gradients of replicated parameters over replicas."""
    shared, split = PartitionSpec(), PartitionSpec("replica")

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: loss_sum(p, x, y) / rows)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, jax.lax.psum(loss, "replica")

    return jax.shard_map(step, mesh=mesh, in_specs=(shared, shared, split, split), out_specs=(shared, shared, shared))


def make_gspmd_step(mesh: Mesh, rows: int) -> Callable[..., Any]:
    """Returns the step in the global view."""
    del mesh

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: loss_sum(p, x, y) / rows)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def peak_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns arguments + results + temporaries of a program, buffers that are reused in place counted once."""
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes
