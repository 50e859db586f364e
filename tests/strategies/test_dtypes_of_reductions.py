"""What a reduction gives, its dtype and value, does not depend on the number of replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ReduceError

DTYPES = ("bool", "int8", "int32", "uint8", "float16", "bfloat16", "float32", "complex64")
ROWS = np.array([1, 0, 1, 1])


def _strategies():
    devices = jax.devices()
    return {
        "default": rx.get_strategy(),
        "one device": rx.OneDeviceStrategy("cpu:0"),
        "mirrored, 1": rx.MirroredStrategy(devices[:1]),
        "mirrored, 2": rx.MirroredStrategy(devices[:2]),
        "mirrored, 3, of which 2 take part": rx.MirroredStrategy(devices[:3]),
        "central storage": rx.CentralStorageStrategy(devices[:2]),
    }


def _all_reduced(op):
    return lambda x: rx.get_replica_context().all_reduce(op, x)


def _total(x):
    """Returns the replica's sum; for bools whether the first row of all is true."""
    if x.dtype == bool:
        return x[0] & (rx.get_replica_context().replica_id_in_sync_group == 0)
    return jnp.sum(x, axis=0, dtype=x.dtype)


def _one(x):
    return x[:1] | True if x.dtype == bool else x[:1] * 0 + 1


#: (strategy, per-replica rows) -> a result that is the same however the four rows are split; its dtype, None: refused.
OPS = {
    "reduce sum": (
        lambda s, x: s.reduce("sum", s.run(_total, (x,))),
        lambda d: jnp.sum(jnp.ones(1, d)).dtype,
    ),
    "reduce sum, axis": (lambda s, x: s.reduce("sum", x, axis=0), lambda d: jnp.sum(jnp.ones(1, d)).dtype),
    "reduce mean, axis": (lambda s, x: s.reduce("mean", x, axis=0), lambda d: jnp.mean(jnp.ones(1, d)).dtype),
    "reduce mean": (
        lambda s, x: s.reduce("mean", s.run(_one, (x,))),
        lambda d: jnp.mean(jnp.ones(1, d)).dtype,
    ),
    "all_reduce sum": (
        lambda s, x: s.run(lambda x: _all_reduced("sum")(_total(x)), (x,)),
        lambda d: None if d == "bool" else d,
    ),
    "all_reduce mean": (
        lambda s, x: s.run(lambda x: _all_reduced("mean")(_one(x)), (x,)),
        lambda d: None if d == "bool" else jnp.mean(jnp.ones(1, d)).dtype,
    ),
    "all_reduce mean of equal ones": (
        lambda s, x: s.run(lambda x: _all_reduced("mean")(jnp.ones((), x.dtype)), (x,)),
        lambda d: None if d == "bool" else jnp.mean(jnp.ones(1, d)).dtype,
    ),
    "all_gather": (lambda s, x: s.run(lambda x: rx.get_replica_context().all_gather(x), (x,)), lambda d: d),
    "gather": (lambda s, x: s.gather(x, axis=0), lambda d: d),
}


@pytest.mark.daily(20)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_reduction_gives_the_same_on_any_number_of_replicas(op, dtype):
    reduce, dtype_of = OPS[op]
    found, wanted = {}, dtype_of(dtype)
    for name, strategy in _strategies().items():
        (batch,) = strategy.distribute_dataset([np.asarray(jnp.asarray(ROWS, dtype))])
        if wanted is None:
            with pytest.raises(ReduceError, match=r"Only numbers can be summed, but value 0 .* is of dtype bool"):
                reduce(strategy, batch)
        else:
            found[name] = jnp.asarray(reduce(strategy, batch))
            assert found[name].dtype == wanted, name
    numbers = [np.asarray(each).astype(complex).reshape(-1).tolist() for each in found.values()]
    assert all(each == numbers[0] for each in numbers), found


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_variables_and_slices_too(dtype):
    for name, strategy in _strategies().items():
        with strategy.scope():
            total = rx.Variable(jnp.zeros((), dtype), synchronization="on_read", aggregation="sum")
        strategy.run(lambda total=total: total.assign(jnp.asarray(3, dtype)))
        assert strategy.reduce("mean", total).dtype == jnp.float32, name
        assert strategy.reduce("sum", total).dtype == dtype, name
        slices = lambda: rx.get_replica_context().all_reduce(  # noqa: E731
            "mean", rx.IndexedSlices(jnp.ones((1, 2), dtype), jnp.array([0]), (4, 2))
        )
        if name != "default":
            assert strategy.run(slices).values.dtype == jnp.float32, name
