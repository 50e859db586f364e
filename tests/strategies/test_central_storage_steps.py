"""Central storage: everything that replicas do beside training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.python_calls import calls_in
from tests.strategies.test_central_storage import BATCHES, batch_of, lives_at, model_and_optimizer, variable

# What a step costs.


def training_step(strategy, layers):
    with strategy.scope():
        variables = [rx.Variable(np.full((4, 4), 0.1, np.float32)) for _ in range(layers)]

    def replica_step(x):
        def loss_fn():
            y = x
            for each in variables:
                y = jnp.tanh(y @ each.value)
            return jnp.sum(y**2)

        loss, gradients = rx.value_and_grad(loss_fn, variables)()
        for each, gradient in zip(variables, gradients, strict=True):
            each.assign_sub(0.1 * gradient)
        return loss

    @rx.function
    def step(x):
        loss = strategy.run(replica_step, args=(x,))
        return strategy.reduce("sum", loss), strategy.reduce("mean", loss)

    (batch,) = strategy.distribute_dataset([np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)])
    return step, batch


def test_losses_are_joined_at_home_and_the_devices_do_not_wait_for_them(central):
    step, batch = training_step(central, 2)
    expected, of_one = training_step(rx.OneDeviceStrategy("cpu:0"), 2)
    for _ in range(2):
        (total, mean), (alone, _) = step(batch), expected(of_one)
        np.testing.assert_allclose([total, mean], [alone, alone / central.num_replicas_in_sync], rtol=1e-6)
        assert total.devices() == mean.devices() == {central.parameter_device}

    v = variable(central, 2.0)
    tested = rx.function(lambda x: central.reduce("sum", central.run(lambda x: v * x.sum(), args=(x,))))
    assert "all-reduce" not in tested.lower(batch).compile().as_text()


def test_a_variable_more_costs_a_step_little_of_python():
    central = rx.CentralStorageStrategy(["cpu:0", "cpu:1"])

    def calls(layers):
        step, batch = training_step(central, layers)
        for _ in range(3):
            step(batch)
        return calls_in(lambda: step(batch))

    few, many = calls(2), calls(12)
    assert many - few < 10 * 40  # JAX's own functions for putting arrays on devices take 160 for each.


# Everything else that replicas do.


def test_variables_are_assigned_without_gradients(central):
    v, steps = variable(central, 5.0), variable(central, 0)
    last = variable(central, np.zeros(3), aggregation="mean")
    other = variable(central, 2.0)

    def step(x):
        last.assign(x.sum(axis=0))
        steps.assign_add(1)
        v.assign(other.value)
        other.assign(3.0)

    replicas = central.num_replicas_in_sync
    for _ in range(2):
        central.run(step, args=batch_of(central, np.ones((replicas, 3))))
    assert (float(v.value), int(steps.value), float(other.value)) == (3.0, 2, 3.0)
    np.testing.assert_array_equal(last.numpy(), np.ones(3))
    assert all(lives_at(each, central.parameter_device) for each in (v, steps, last, other))


def test_a_step_that_reads_nothing_but_variables(central):
    v = variable(central, np.full(3, 2.0))
    assert central.run(lambda: v.assign_add(jnp.ones(3)) is None) is False
    results = central.run(lambda: v * 2)
    np.testing.assert_array_equal(results, np.full(3, 6.0))
    assert lives_at(v, central.parameter_device)


def test_on_read_variables_are_the_replicas_own(beside):
    seen = variable(beside, 0.0, synchronization="on_read", aggregation="sum")
    mean = variable(beside, 0.0, synchronization="on_read", aggregation="mean")
    v = variable(beside)

    def step(x):
        seen.assign_add(x.sum())
        mean.assign(x.sum())
        v.assign_sub(rx.grad(lambda: v * x.sum(), v)())

    for batch in ([1.0, 2.0], [3.0], [4.0, 6.0]):
        beside.run(step, args=batch_of(beside, batch))
    assert (float(seen.value), float(mean.value), float(v.value)) == (16.0, 5.0, -15.0)
    assert [component.devices() for component in beside.local_results(rx.PerReplica(seen._value))] == [
        {device} for device in beside.devices
    ]
    with beside.scope():
        rx.function(lambda: mean.assign(7.0))()
    assert float(mean.value) == 7.0


def test_partial_batches_leave_what_was_read_valid():
    strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1", "cpu:2"])
    v = variable(strategy, np.zeros(4, "float32"))

    def step(x):
        v.assign_sub(rx.grad(lambda: jnp.sum(v.value) * x.sum(), v)())

    read = [v.value]
    for n in (3, 2, 1, 3, 1):
        strategy.run(step, args=batch_of(strategy, np.ones(n)))
        read.append(v.value)
        assert lives_at(v, strategy.parameter_device)
    assert [float(value[0]) for value in read] == [0.0, -3.0, -5.0, -6.0, -9.0, -10.0]


@pytest.mark.daily(2)
def test_what_was_read_stays_valid_and_what_is_deleted_is_the_users_doing(central):
    v = variable(central, np.zeros(4, "float32"))
    x = central.replicate(np.ones(4, "float32"))

    def step(x):
        old = v.value
        v.assign_sub(rx.grad(lambda: jnp.sum(v.value * x), v, aggregation="mean")())
        return old, x

    first = v.value
    old, same = central.run(step, args=(x,))
    second = v.value
    central.run(step, args=(x,))
    assert [float(value[0]) for value in (first, old, second, v.value, same, x)] == [0.0, 0.0, -1.0, -2.0, 1.0, 1.0]
    v.assign(x)
    central.run(step, args=(x,))
    assert float(x[0]) == 1.0
    del first, old, second
    central.run(step, args=(x,))
    assert float(v.value[0]) == -1.0


def test_several_runs_in_one_function(beside):
    v, seen = variable(beside), variable(beside, 0.0)

    @rx.function
    def step(x):
        doubled = beside.run(lambda x: x * 2, args=(x,))
        beside.run(lambda x: v.assign_sub(rx.grad(lambda: v * x.sum(), v)()) is None, args=(doubled,))
        loss = beside.reduce("sum", beside.run(lambda x: v * x.sum(), args=(x,)), axis=None)
        seen.assign_add(loss)
        return loss

    batch = batch_of(beside, [1.0, 2.0])
    assert [float(step(*batch)) for _ in range(2)] == [-15.0, -33.0]
    assert (float(v.value), float(seen.value)) == (-11.0, -48.0)
    assert lives_at(v, beside.parameter_device)


def test_a_function_trains_twice(beside):
    v = variable(beside)

    @rx.function
    def twice(x):
        for _ in range(2):
            beside.run(lambda x: v.assign_sub(rx.grad(lambda: v * v * x.sum(), v)()) is None, args=(x,))

    twice(*batch_of(beside, [1.0, 2.0]))
    assert float(v.value) == 25.0  # 1 - 6 * 1 = -5, and -5 - 6 * -5 = 25


def test_a_function_outside_of_the_replicas_updates_too(central):
    v = variable(central, 2.0)

    @rx.function
    def step():
        loss, gradient = rx.value_and_grad(lambda: v * v, v)()
        v.assign_sub(0.25 * gradient * loss)
        return loss

    with central.scope():
        assert [float(step()) for _ in range(2)] == [4.0, 4.0]
    assert float(v.value) == 2.0 - 4.0 + 4.0
    assert lives_at(v, central.parameter_device)


def test_an_update_that_uses_what_replicas_make_of_variables_alone(central):
    v, rate = variable(central, np.ones(3)), variable(central, 0.25)

    @rx.function
    def step():
        def replica_step():
            scale = rx.get_replica_context().replica_id_in_sync_group * 0.0 + 1.0
            gradient = rx.grad(lambda: jnp.sum(v.value**2) * scale, v, aggregation="mean")()
            total = rx.get_replica_context().all_reduce("mean", jnp.sum(v.value) * scale)
            v.assign_sub(rate * gradient * total)
            return total

        total = central.run(replica_step)
        rate.assign(total * rate)

    step()
    np.testing.assert_allclose(v.numpy(), np.full(3, 1 - 0.25 * 2 * 3), rtol=1e-6)
    assert float(rate.value) == 0.75
    assert all(lives_at(each, central.parameter_device) for each in (v, rate))


def test_merge_call_and_update(central):
    v = variable(central, 1.0)
    result = central.update(v, lambda v, x: v.assign_add(x), args=(2.0,))
    assert float(result) == float(v.value) == 3.0

    def step(x):
        replica = rx.get_replica_context()
        total = replica.all_reduce("sum", x.sum())
        add = lambda v, x: v.assign_add(x)  # noqa: E731
        return replica.merge_call(lambda strategy, x: strategy.update(v, add, args=(x,)), args=(total,))

    replicas = central.num_replicas_in_sync
    result = central.run(step, args=batch_of(central, np.ones(replicas)))
    assert float(result) == float(v.value) == 3.0 + replicas
    assert lives_at(v, central.parameter_device)


def test_reduce_gather_and_replicate(central):
    replicas = central.num_replicas_in_sync
    rows = np.arange(replicas * 2.0).reshape(replicas, 2)
    doubled = central.run(lambda x: x * 2, args=batch_of(central, rows))
    np.testing.assert_array_equal(central.gather(doubled, axis=0), rows * 2)
    np.testing.assert_array_equal(central.reduce("mean", doubled, axis=0), rows.mean(axis=0) * 2)
    everywhere = central.replicate({"x": np.ones(3)})["x"]
    assert everywhere.devices() == set(central.devices)
    assert isinstance(everywhere, rx.Mirrored) or replicas == 1


@pytest.mark.daily(2)
def test_numbers_and_variables_can_be_combined_outside_of_steps(central):
    with central.scope():
        v, metric = rx.Variable(1.0), keras.metrics.Mean()

    @rx.function
    def step(x):
        return central.reduce("sum", central.run(lambda x: {"sum": x.sum()}, args=(x,))["sum"], axis=None)

    replicas = central.num_replicas_in_sync
    for n in (replicas, 1):
        (batch,) = batch_of(central, np.ones(n))
        loss = step(batch)
        summed = central.reduce("sum", central.run(lambda x: x.sum(), args=(batch,)), axis=None)
        metric.update_state(loss)
        v.assign_add(summed)
        assert float(v.value + loss + summed) == float(v.value) + 2 * n
        assert float(central.run(lambda x: x * v, args=(loss,))) == n * float(v.value)
    assert float(metric.result()) == (replicas + 1) / 2
    assert float(v.value) == 2.0 + replicas


def test_a_variables_value_may_be_an_argument(central):
    v = variable(central, np.ones(3))
    np.testing.assert_array_equal(central.run(lambda x: x * 2, args=(v.value,)), np.full(3, 2.0))
    held = v.value
    np.testing.assert_array_equal(central.run(lambda: held * 3), np.full(3, 3.0))


def test_input_options_are_taken(beside):
    options = rx.InputOptions(prefetch=1)
    batches = list(beside.distribute_dataset([np.ones((4, 2))] * 2, options))
    assert [batch.values[1].shape for batch in batches] == [(2, 2)] * 2
    assert [component.devices() for component in batches[0].values] == [{device} for device in beside.devices]


@pytest.mark.nightly
def test_debugging_operation_by_operation(beside):
    strategy = beside
    v, seen = variable(strategy, 3.0), variable(strategy, 0.0, synchronization="on_read", aggregation="sum")

    def step(x):
        seen.assign_add(x[0])
        loss, gradient = rx.value_and_grad(lambda: v * x[0], v)()
        v.assign_sub(gradient)
        return loss

    rx.config.run_eagerly(True)
    try:
        replicas = strategy.num_replicas_in_sync
        for n in (replicas, 1):
            loss = strategy.reduce("sum", strategy.run(step, args=batch_of(strategy, np.ones(n))), axis=None)
        assert float(loss) == float(v.value + loss - v.value) == 3.0 - replicas
    finally:
        rx.config.run_eagerly(False)
    assert (float(v.value), float(seen.value)) == (2.0 - replicas, replicas + 1.0)
    assert lives_at(v, strategy.parameter_device)


def test_prints_come_once_from_each_replica(beside, capsys):
    v = variable(beside)

    def step(x):
        gradient = rx.grad(lambda: v * x.sum(), v)()
        jax.debug.print("gradient {}", gradient)
        v.assign_sub(gradient)

    beside.run(step, args=batch_of(beside, [1.0, 2.0]))
    jax.effects_barrier()
    assert capsys.readouterr().out.splitlines() == ["gradient 3.0"] * 2


def test_gradients_summed_in_a_loop_are_cut_too(beside):
    v, m = variable(beside, np.ones(3)), variable(beside, np.zeros(3))

    def step(x):
        def one(total, row):
            return total + rx.grad(lambda: jnp.sum(v.value**2) * row, v)(), None

        total, _ = jax.lax.scan(one, jnp.zeros(3), x)
        m.assign(0.9 * m.value + total)
        v.assign_sub(0.1 * m.value)

    function = rx.function(lambda x: beside.run(step, args=(x,)))
    batch = batch_of(beside, [1.0, 2.0, 3.0, 4.0])
    arguments = jax.tree.leaves(function.lower(*batch).args_info)
    assert sorted(info.shape for info in arguments) == [(2, 2), (3,)]
    function(*batch)
    np.testing.assert_allclose(v.numpy(), np.full(3, 1 - 0.1 * 20), rtol=1e-6)


def test_a_model_is_exported_like_any_other(beside, tmp_path):
    model, _ = model_and_optimizer(beside)
    rx.export(lambda x: model(x, training=False), tmp_path / "model", BATCHES[0][0])
    loaded = rx.load_export(tmp_path / "model")
    np.testing.assert_allclose(loaded(BATCHES[0][0]), model(BATCHES[0][0]), rtol=1e-5, atol=1e-6)


@pytest.mark.daily(4)
@pytest.mark.parametrize("order", ["one after the other", "both first", "twice and clipped"])
def test_two_models_and_two_optimizers_in_a_step(central, order):
    """A GAN, in each order of its gradients and updates, against plain Keras on the whole batch."""
    rng = np.random.default_rng(0)
    rows = 4 * central.num_replicas_in_sync
    batches = [rng.normal(size=(rows, 6)).astype("float32") for _ in range(2)]

    def build():
        keras.utils.set_random_seed(0)
        models = {
            "judge": keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]),
            "maker": keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)]),
        }
        optimizers = {
            "judge": keras.optimizers.SGD(0.1, momentum=0.9),
            "maker": keras.optimizers.Adam(0.05, epsilon=1e-2),
        }
        for name, optimizer in optimizers.items():
            optimizer.build(models[name].trainable_variables)
        return models, optimizers

    def losses(call, batch):
        real, fake = call("judge", batch[:, :4]), call("judge", call("maker", batch[:, 4:]))
        judged, made = jax.nn.softplus(-real) + jax.nn.softplus(fake), jax.nn.softplus(-fake)
        return {"judge": jnp.sum(judged) / rows, "maker": jnp.sum(made) / rows}

    def made(gradient, apply, clip):
        """Makes a step of `gradient(name)`, `apply(name, gradient)` and `clip(name)`."""
        if order == "both first":
            found = {name: gradient(name) for name in ("judge", "maker")}
            for name in ("maker", "judge"):
                apply(name, found[name])
            return
        for _ in range(2 if order == "twice and clipped" else 1):
            apply("judge", gradient("judge"))
            if order == "twice and clipped":
                clip("judge")
        apply("maker", gradient("maker"))

    with central.scope():
        models, optimizers = build()

    def step(batch):
        def gradient(name):
            call = lambda name, x: models[name](x)  # noqa: E731
            return rx.grad(lambda: losses(call, batch)[name], models[name].trainable_variables)()

        def apply(name, gradients):
            optimizers[name].apply_gradients(zip(gradients, models[name].trainable_variables, strict=True))

        def clip(name):
            for each in models[name].trainable_variables:
                each.assign(jnp.clip(each.value, -0.4, 0.4))

        made(gradient, apply, clip)

    plain_models, plain_optimizers = build()
    weights = {name: [v.value for v in model.trainable_variables] for name, model in plain_models.items()}
    slots = {name: [v.value for v in optimizer.variables] for name, optimizer in plain_optimizers.items()}

    def plain_step(batch):
        def gradient(name):
            def loss(own):
                values = {**weights, name: own}
                return losses(lambda name, x: plain_models[name].stateless_call(values[name], [], x)[0], batch)[name]

            return jax.grad(loss)(weights[name])

        def apply(name, gradients):
            weights[name], slots[name] = plain_optimizers[name].stateless_apply(slots[name], gradients, weights[name])

        def clip(name):
            weights[name] = [jnp.clip(value, -0.4, 0.4) for value in weights[name]]

        made(gradient, apply, clip)

    for plain, batch in zip(batches, central.distribute_dataset(batches), strict=True):
        central.run(step, args=(batch,))
        plain_step(plain)
    for name, model in models.items():
        for ours, expected in zip(model.trainable_variables, weights[name], strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, rtol=2e-5, atol=1e-6)
        for ours, expected in zip(optimizers[name].variables, slots[name], strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, rtol=2e-5, atol=1e-6)
