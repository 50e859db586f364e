"""Moving averages equal those that NumPy computes in double precision, on any number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.contract.problems import EVEN, UNEVEN, batches
from tests.contract.strategies import ALL

DECAY = 0.9
#: The arguments of the averages, and the decay of each update.
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, lambda n: DECAY),
    "early": ({"num_updates": True}, lambda n: min(DECAY, (1 + n) / (10 + n))),
    "debiased": ({"zero_debias": True}, lambda n: DECAY),
}


def expected(first: np.ndarray, values: list[np.ndarray], kind: str) -> np.ndarray:
    """Returns the average in float64, by the definition."""
    debiased, decays = kind == "debiased", KINDS[kind][1]
    average, left = (np.zeros_like(first, np.float64) if debiased else first.astype(np.float64)), 1.0
    for n, value in enumerate(values):
        average = decays(n) * average + (1 - decays(n)) * value
        left *= decays(n)
    return average / (1 - left) if debiased else average


def train(strategy: rx.Strategy, kind: str, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Trains a model, and returns its parameters' averages when it has compared them with the definition."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1)
        ema = rx.ExponentialMovingAverage(DECAY, **KINDS[kind][0])
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch: Any) -> None:
        x, y = batch
        loss_fn = lambda: rx.compute_average_loss(per_example(y, model(x, training=True)))  # noqa: E731
        _, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        ema.apply(model.trainable_variables)

    if strategy is rx.get_strategy():  # It runs the step as it stands: there the averages would begin after an update.
        ema.create(model.trainable_variables)
    first = [np.asarray(each) for each in model.trainable_variables]
    values: list[list[np.ndarray]] = [[] for _ in first]
    for batch in strategy.distribute_dataset(batches(sizes)):
        strategy.run(train_step, args=(batch,))
        for seen, variable in zip(values, model.trainable_variables, strict=True):
            seen.append(np.asarray(variable))
    found = [np.asarray(ema.average(variable)) for variable in model.trainable_variables]
    for begun, seen, average in zip(first, values, found, strict=True):
        np.testing.assert_allclose(average, expected(begun, seen, kind), rtol=2e-6, atol=1e-7)
    assert ema.num_updates is not None
    assert int(ema.num_updates.numpy()) == len(sizes)
    return found


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("name", "kind", "sizes"),
    [
        ("mirrored_1", "plain", EVEN[:5]),
        ("mirrored_2", "early", UNEVEN[:5]),
        ("mirrored_3", "debiased", UNEVEN[:5]),
        ("mirrored_8", "plain", UNEVEN[:5]),
        ("fully_sharded_8", "debiased", EVEN[:5]),
        ("layout_4x2", "early", EVEN[:5]),
        ("central_2", "plain", EVEN[:5]),
    ],
)
def test_averages_in_a_step_equal_those_of_one_device(name: str, kind: str, sizes: tuple[int, ...]):
    for many, one in zip(train(ALL[name](), kind, sizes), train(ALL["one_device"](), kind, sizes), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [EVEN[:8], UNEVEN[:8]], ids=["even", "uneven"])
@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith("island")])
def test_averages_in_every_combination(name: str, kind: str, sizes: tuple[int, ...]):
    train(ALL[name](), kind, sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_averages_of_a_pytree(kind: str):
    ema = rx.ExponentialMovingAverage(DECAY, **KINDS[kind][0])
    values = [np.random.default_rng(i).normal(size=(3, 2)).astype(np.float32) for i in range(6)]
    state = ema.init({"w": values[0], "step": jnp.int32(0)})
    update = jax.jit(ema.update)
    for i, value in enumerate(values[1:]):
        state = update(state, {"w": value, "step": jnp.int32(i + 1)})
    np.testing.assert_allclose(state.averages["w"], expected(values[0], values[1:], kind), rtol=1e-6)
    assert int(state.averages["step"]) == int(state.num_updates) == 5


def test_the_state_of_a_pytree_trains_on_replicas(mirrored):
    strategy, ema = mirrored(3), rx.ExponentialMovingAverage(0.5)
    params = {"w": jnp.ones(4)}
    state = strategy.replicate((params, ema.init(params)))

    def step(state: Any) -> Any:
        params, averages = state
        params = {"w": params["w"] + 2.0}
        return params, ema.update(averages, params)

    for _ in range(2):
        state = strategy.run(step, args=(state,))
    params, averages = strategy.local_results(state)[0]
    np.testing.assert_allclose(averages.averages["w"], 0.5 * (0.5 * 1 + 0.5 * 3) + 0.5 * 5)


def test_a_count_of_the_users_decides_about_early_averages():
    weight, count = rx.Variable(1.0), rx.Variable(0, trainable=False)
    ema = rx.ExponentialMovingAverage(0.99, num_updates=count)
    ema.create([weight])
    weight.assign(2.0)
    ema.apply([weight])
    assert float(ema.average(weight).numpy()) == pytest.approx(0.1 * 1 + 0.9 * 2)  # (1 + 0) / (10 + 0) is kept
    count.assign(90)
    weight.assign(3.0)
    ema.apply([weight])
    assert float(ema.average(weight).numpy()) == pytest.approx(0.91 * 1.9 + 0.09 * 3)


def test_averages_outside_of_a_step_follow_other_variables_too():
    a, b = rx.Variable(1.0, name="w"), rx.Variable(10.0, name="w")
    ema = rx.ExponentialMovingAverage(0.5)
    ema.apply(a)
    a.assign(3.0)
    ema.apply([a, b])
    assert [float(ema.average(each).numpy()) for each in (a, b)] == [2.0, 10.0]
    assert list(ema.averages) == ["w_average", "w_average_1"]
    assert ema.average_name(b) == "ExponentialMovingAverage/w_average_1"


def test_small_changes_of_bfloat16_are_not_lost():
    weight = rx.Variable(jnp.ones(2, jnp.bfloat16))
    ema = rx.ExponentialMovingAverage(0.999)
    ema.create([weight])
    weight.assign(jnp.full(2, 2.0, jnp.bfloat16))
    for _ in range(10):
        ema.apply([weight])
    assert ema.average(weight).dtype == jnp.float32
    np.testing.assert_allclose(ema.average(weight).numpy(), 2 - 0.999**10, rtol=1e-5)
    with ema.averaged():
        assert weight.numpy().dtype == jnp.bfloat16


def test_variables_get_their_values_back_even_after_an_error():
    weight = rx.Variable([1.0, 2.0])
    ema = rx.ExponentialMovingAverage(0.5)
    ema.create(weight)
    weight.assign([5.0, 6.0])
    ema.apply(weight)

    def evaluate() -> None:
        with ema.averaged():
            np.testing.assert_array_equal(weight.numpy(), [3.0, 4.0])
            weight.assign([0.0, 0.0])
            raise KeyError

    with pytest.raises(KeyError):
        evaluate()
    np.testing.assert_array_equal(weight.numpy(), [5.0, 6.0])
    ema.copy_to_variables()
    np.testing.assert_array_equal(weight.numpy(), [3.0, 4.0])
    np.testing.assert_array_equal(ema.average(weight).numpy(), [3.0, 4.0])


def test_a_checkpoint_keeps_averages(tmp_path: Path, mirrored):
    def made(strategy: rx.Strategy) -> tuple[rx.Variable, rx.ExponentialMovingAverage]:
        with strategy.scope():
            weight = rx.Variable([1.0, 2.0], name="weight")
            ema = rx.ExponentialMovingAverage(0.5, zero_debias=True)
        ema.create(weight)
        return weight, ema

    weight, ema = made(mirrored(2))
    ema.apply(weight)
    weight.assign([3.0, 4.0])
    ema.apply(weight)
    path = rx.Checkpoint(weight=weight, ema=ema).write(tmp_path / "first")
    again, restored = made(mirrored(3))
    rx.Checkpoint(weight=again, ema=restored).restore(path)
    for one, other in ((weight, again), (ema.average(weight), restored.average(again))):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    ema.apply(weight)
    restored.apply(again)
    np.testing.assert_array_equal(ema.average(weight).numpy(), restored.average(again).numpy())


def test_what_cannot_be_averaged_is_said():
    ema = rx.ExponentialMovingAverage(0.9)
    with pytest.raises(rx.errors.ArgumentError, match=r"between 0 and 1, such as 0.999, got 1.5"):
        rx.ExponentialMovingAverage(1.5)
    with pytest.raises(rx.errors.ArgumentError, match="`num_updates` is a number"):
        rx.ExponentialMovingAverage(0.5, num_updates="epoch")  # type: ignore[arg-type]
    with pytest.raises(rx.errors.ArgumentError, match=r"For pytrees of arrays there are `init` and `update`"):
        ema.apply([jnp.ones(2)])
    with pytest.raises(rx.errors.VariableError, match="'n' has dtype int32"):
        ema.apply([rx.Variable(1, name="n")])
    with pytest.raises(rx.errors.VariableError, match="has no average here"):
        ema.average(rx.Variable(1.0))
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        counter = rx.Variable(1.0, synchronization="on_read", aggregation="sum")
    with pytest.raises(rx.errors.VariableError, match="a component for each replica"):
        ema.apply([counter])
