from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import DeviceError


@pytest.mark.parametrize("name", ["cpu:3", "/device:CPU:3"])
def test_variables_and_results_live_on_the_device(name):
    strategy = rx.OneDeviceStrategy(name)
    device = jax.devices()[3]
    with strategy.scope():
        v = rx.Variable(1.0)
    result = strategy.run(lambda x: v.assign_add(x), args=(jnp.float32(2.0),))
    assert v.value.devices() == result.devices() == {device}
    assert strategy.replicate(1.0).devices() == {device}
    assert strategy.devices == (device,)
    assert strategy.num_replicas_in_sync == 1


def test_a_device_that_does_not_exist_is_an_error():
    with pytest.raises(DeviceError, match="cpu:99"):
        rx.OneDeviceStrategy("cpu:99")


def test_the_replica_is_alone():
    def fn(x):
        replica = rx.get_replica_context()
        return (
            replica.replica_id_in_sync_group,
            replica.all_reduce("sum", x),
            replica.all_reduce("mean", x),
            replica.all_gather(x, axis=0),
        )

    number, total, mean, gathered = rx.OneDeviceStrategy("cpu:1").run(fn, args=(np.arange(3.0),))
    assert int(number) == 0
    for value in (total, mean, gathered):
        np.testing.assert_array_equal(value, np.arange(3.0))


def test_batches_come_whole_and_bare():
    strategy = rx.OneDeviceStrategy("cpu:2")
    batches = list(strategy.distribute_dataset([np.arange(3.0), np.arange(1.0)]))
    assert [batch.shape for batch in batches] == [(3,), (1,)]
    assert batches[0].devices() == {jax.devices()[2]}
