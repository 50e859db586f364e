from __future__ import annotations

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.errors import DeviceError


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
