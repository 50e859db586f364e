"""State of plain JAX that is cut over the devices of several processes equals that of one device."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from tests.multiprocess.test_sharded import over_model_axis
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
BATCH, EPOCHS = 16, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(37, 6)).astype(np.float32)
Y = X[:, :3] ** 2
TX = optax.adam(1e-2, eps=1e-2)
LAYOUT = {"up$": (None, "model"), "down$": ("model", None)}
STRATEGIES = {
    "fully_sharded": (lambda: rx.FullyShardedStrategy(min_size=8, start_timeout=60), 2),
    "model_across": (lambda: over_model_axis((2, 2), True, LAYOUT), 2),
}


def first_state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    params = {
        "up": jnp.asarray(rng.normal(size=(6, 16)) / 3, jnp.float32),
        "down": jnp.asarray(rng.normal(size=(16, 3)) / 3, jnp.float32),
        "bias": jnp.full(3, rng.normal(), jnp.float32),
    }
    return {"params": params, "opt": TX.init(params), "key": jax.random.key(seed), "steps": 0}


def step(state: Any, x: Any, y: Any, rows: Any) -> Any:
    key, own = jax.random.split(state["key"])

    def loss(params: Any) -> Any:
        h = jnp.tanh(x @ params["up"]) + 0.01 * jax.random.normal(own, (16,))
        return jnp.sum((h @ params["down"] + params["bias"] - y) ** 2) / rows

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt = TX.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "key": key, "steps": state["steps"] + 1}, value


def numbers(state: Any) -> list[Any]:
    leaves = jax.tree.leaves({**state, "key": jax.random.key_data(state["key"])})
    return [np.asarray(leaf).tolist() for leaf in leaves]


def held(state: Any) -> list[int]:
    return [leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state["params"])]


def worker(kind: str, folder: str) -> dict[str, Any]:
    strategy = STRATEGIES[kind][0]()
    state = strategy.replicate(first_state(seed=strategy.worker_index))  # the chief's counts
    found: dict[str, Any] = {"placed": held(state), "held": [], "losses": []}
    for _ in range(EPOCHS):
        for batch in strategy.distribute_dataset((X, Y), batch_size=BATCH):
            rows = np.float32(BATCH if len(found["losses"]) % 3 < 2 else 5)
            state, loss = strategy.run(step, args=(state, *batch, rows))
            found["losses"].append(float(strategy.reduce("sum", loss)))
            found["held"].append(held(state))
    found["explained"] = str(strategy.explain(state))
    found["numbers"] = numbers(strategy.local_results(state)[0])
    found["mean"] = np.asarray(strategy.reduce("mean", state["params"]["up"])).tolist()
    rx.Checkpoint(state=state).write(f"{folder}/state")
    again = rx.Checkpoint(state=strategy.replicate(first_state(seed=7)))
    again.restore(f"{folder}/state")
    found["restored"] = numbers(strategy.local_results(again.state)[0])
    found["restored held"] = held(again.state)
    batch = next(iter(strategy.distribute_dataset((X, Y), batch_size=BATCH)))
    _, loss = strategy.run(step, args=(again.state, *batch, np.float32(BATCH)))
    found["next"] = float(strategy.reduce("sum", loss))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "fully_sharded" else pytest.mark.nightly) for kind in STRATEGIES]
)
def test_a_state_over_several_processes_stays_cut_and_is_that_of_one_device(kind):
    state, losses, compiled = first_state(seed=0), [], jax.jit(step)
    for _ in range(EPOCHS):
        for start in range(0, len(X), BATCH):
            x, y = X[start : start + BATCH], Y[start : start + BATCH]
            state, loss = compiled(state, x, y, np.float32(len(x)))
            losses.append(float(loss))
    with tempfile.TemporaryDirectory() as folder:
        results = run_workers(worker, 2, STRATEGIES[kind][1], kind=kind, folder=folder)
        expected = numbers(state)
        whole = [leaf.size for leaf in jax.tree.leaves(state["params"])]
        cut = [3, *[(size // (4 if kind == "fully_sharded" else 2)) for size in whole[1:]]]
        for found in results:
            np.testing.assert_allclose(found["losses"], losses, rtol=2e-6)
            for one, other in zip(found["numbers"], expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
            assert found["restored"] == found["numbers"]
            np.testing.assert_allclose(found["mean"], state["params"]["up"], rtol=1e-5, atol=1e-6)
            assert {tuple(each) for each in (found["placed"], *found["held"], found["restored held"])} == {tuple(cut)}
            assert "params/up" in found["explained"]
            np.testing.assert_allclose(found["next"], float(step(state, X[:16], Y[:16], 16.0)[1]), rtol=1e-5)
        assert Path(folder, "state").exists()
