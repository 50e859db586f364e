"""Steps of `plan_steps.py` in plain JAX, compiled by hand for a slice of TPUs: prints what the compiler says.

Usage: python tests/soak/plan_by_hand.py SLICE NAME
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

ROWS, WIDTH, CLASSES = 128, 256, 16


def main(on: str, name: str) -> None:
    from replicax.planning.topologies import Topology

    topology = Topology.of(on)
    topology.prepare(os.environ)
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.devices()
    mesh = Mesh(np.array(topology.devices()), ("d",))

    def array(shape: tuple[int, ...], *spec: str, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def mapped(local: Any, inputs: Any, outputs: Any) -> Any:
        return jax.shard_map(local, mesh=mesh, in_specs=inputs, out_specs=outputs)

    x = array((ROWS, WIDTH), "d")

    def loop_sgd(w: Any, x: Any) -> Any:
        def local(w: Any, x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).sum() / ROWS)(w)
            return gradient, loss[None]

        gradient, loss = mapped(local, (P(), P("d")), (P(), P("d")))(w, x)
        return w - 1e-2 * gradient, loss

    def loop_optax(params: Any, state: Any, x: Any, y: Any) -> Any:
        def local(params: Any, state: Any, x: Any, y: Any) -> Any:
            def loss(params: Any) -> Any:
                logits = jnp.tanh(x @ params["in"]) @ params["out"]
                return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / ROWS

            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optax.adamw(1e-3).update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value[None]

        return mapped(local, (P(), P(), P("d"), P("d")), (P(), P(), P("d")))(params, state, x, y)

    adam = optax.adamw(1e-3)
    params = {"in": array((WIDTH, 512)), "out": array((512, CLASSES))}
    given: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
        "loop_sgd": (loop_sgd, (array((WIDTH, 512)), x), (0,)),
        "loop_optax": (
            loop_optax,
            (
                params,
                jax.tree.map(lambda each: array(each.shape, dtype=each.dtype), jax.eval_shape(adam.init, params)),
                x,
                array((ROWS,), "d", dtype=jnp.int32),
            ),
            (),
        ),
    }
    step, arguments, donated = given[name]
    found: Any = jax.jit(step, donate_argnums=donated).lower(*arguments).compile().memory_analysis()
    said = {
        "peak": found.peak_memory_in_bytes,
        "temporaries": found.temp_size_in_bytes,
        "arguments": found.argument_size_in_bytes,
        "outputs": found.output_size_in_bytes,
        "aliased": found.alias_size_in_bytes,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
