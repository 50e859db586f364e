from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, DeviceError


@pytest.mark.parametrize("arguments", [{}, {"devices": None}, {"devices": []}])
def test_by_default_every_device_is_a_replica(arguments):
    strategy = rx.MirroredStrategy(**arguments)
    assert strategy.num_replicas_in_sync == 8
    assert strategy.devices == tuple(jax.devices())


def test_replicas_follow_the_order_of_the_devices():
    strategy = rx.MirroredStrategy(["cpu:5", "/gpu:0".replace("gpu", "cpu"), jax.devices()[2]])
    assert [device.id for device in strategy.devices] == [5, 0, 2]
    value = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert [(int(x), next(iter(x.devices())).id) for x in value.values] == [(0, 5), (1, 0), (2, 2)]


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:0"], ["cpu:0", "cpu:8"], ["potato"]])
def test_bad_devices_are_refused(devices):
    with pytest.raises(DeviceError):
        rx.MirroredStrategy(devices)


def test_idle_replicas_are_told_once_for_each_number_of_rows(caplog):
    """A loop that samples a memory makes a dataset of each batch."""
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    for rows in (3, 3, 2, 5, 3):
        list(strategy.distribute_dataset([np.zeros(rows)]))
    told = [message for message in caplog.messages if "are idle" in message]
    assert [message.split()[4] for message in told] == ["3", "5"]


@pytest.mark.parametrize(
    "ops", [None, rx.NcclAllReduce(), rx.HierarchicalCopyAllReduce(), rx.ReductionToOneDevice(), rx.RingAllReduce()]
)
def test_gradients_are_combined_by_the_strategys_cross_device_ops(per_replica, ops):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"], cross_device_ops=ops)
    with strategy.scope():
        a, b = rx.Variable(np.arange(5.0)), rx.Variable(2.0)

    def step(x):
        gradients = rx.grad(lambda: (a * x).sum() * b, [a, b])()
        a.assign_sub(gradients[0])
        return gradients

    gradients = strategy.run(step, args=(per_replica(strategy, 1.0, 2.0, 3.0),))
    np.testing.assert_allclose(gradients[0], np.full(5, 12.0))
    np.testing.assert_allclose(gradients[1], 60.0)
    copies = strategy.local_results(a.value)
    assert len({np.asarray(copy).tobytes() for copy in copies}) == 1


def test_an_algorithm_that_counts_its_calls_sees_all_gradients_at_once(two, per_replica):
    calls = []

    class Counting(rx.NcclAllReduce):
        def all_reduce(self, op, values, **kwargs):
            calls.append((op, len(values)))
            return super().all_reduce(op, values, **kwargs)

    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=Counting())
    with strategy.scope():
        variables = [rx.Variable(float(i)) for i in range(3)]
    unused = rx.Variable(1.0)
    strategy.run(
        lambda x: rx.grad(lambda: sum(v * x for v in variables), [*variables, unused], aggregation="mean")(),
        args=(per_replica(strategy, 1.0, 2.0),),
    )
    assert set(calls) == {(rx.ReduceOp.MEAN, 3)}


@pytest.mark.parametrize("shard_update", [True, False])
def test_fit_cuts_large_optimizer_state_unless_told_not_to(shard_update):
    strategy = rx.MirroredStrategy(shard_update=shard_update)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(3)])
        model.compile("adam", "mse")
    x, y = np.ones((16, 64), "float32"), np.ones((16, 3), "float32")
    model.fit(x, y, verbose=0)
    kernel, small = model.layers[0].kernel, model.layers[1].kernel
    slots = {v.path.rsplit("/", 1)[-1]: v for v in model.optimizer.variables}
    of_kernel = next(v for name, v in slots.items() if name.endswith("kernel_momentum") and v.shape == kernel.shape)
    of_small = next(v for name, v in slots.items() if name.endswith("kernel_momentum") and v.shape == small.shape)
    rows = of_kernel.value.addressable_shards[0].data.shape[0]
    assert rows == (8 if shard_update else 64)
    assert isinstance(of_small.value, rx.Mirrored)
    assert isinstance(kernel.value, rx.Mirrored)


def test_a_custom_loop_goes_on_from_where_fit_left_its_optimizer():
    def trained(strategy):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
            model.compile("adam", "mse")
        x, y = np.ones((16, 64), "float32"), np.ones((16, 64), "float32")
        model.fit(x, y, verbose=0)

        def step(x, y):
            def loss_fn():
                return rx.compute_average_loss((model(x) - y) ** 2, global_batch_size=16)

            gradients = rx.grad(loss_fn, model.trainable_variables)()
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for batch in strategy.distribute_dataset([(x, y)]):
            strategy.run(step, args=batch)
        return model.get_weights()

    for ours, expected in zip(trained(rx.MirroredStrategy()), trained(rx.OneDeviceStrategy("cpu:0")), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", ["yes", 1])
def test_shard_update_is_a_bool(value):
    with pytest.raises(ArgumentError, match=f"`shard_update` must be True, False or None, got {value!r}"):
        rx.MirroredStrategy(1, shard_update=value)
