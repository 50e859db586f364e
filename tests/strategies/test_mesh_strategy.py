from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ReplicaShapeError

# local_results.


def test_a_per_replica_value_has_its_components_as_local_results(two, per_replica):
    assert [float(x) for x in two.local_results(per_replica(two, 1.0, 2.0))] == [1.0, 2.0]
    assert [x.shape for x in two.local_results(per_replica(two, [1.0], [1.0, 2.0]))] == [(1,), (2,)]


def test_a_mirrored_value_has_its_copies_as_local_results(two):
    copies = two.local_results(two.replicate(3.0))
    assert [float(copy) for copy in copies] == [3.0, 3.0]
    assert [copy.devices() for copy in copies] == [{device} for device in two.devices]


@pytest.mark.parametrize("plain", [5, "a", None, np.ones(2), (1, 2)], ids=str)
def test_a_plain_value_is_its_own_local_result(two, plain):
    (result,) = two.local_results(plain)
    assert result is plain


def test_a_nest_has_one_nest_for_each_replica(two, per_replica):
    results = two.local_results({"a": per_replica(two, 1.0, 2.0), "b": (two.replicate(3.0), 7)})
    assert jax.tree.map(float, results) == ({"a": 1.0, "b": (3.0, 7.0)}, {"a": 2.0, "b": (3.0, 7.0)})


def test_with_one_replica_every_value_is_its_own_local_result():
    value = jnp.ones(2)
    assert rx.OneDeviceStrategy("cpu:0").local_results(value) == (value,)
    assert rx.get_strategy().local_results(value) == (value,)


# replicate.


def test_replicate_puts_arrays_and_numbers_on_every_device(two):
    state = two.replicate({"w": np.ones(2), "n": 3, "flag": True, "name": "net", "none": None, "z": jnp.zeros(1)})
    assert (state["name"], state["none"]) == ("net", None)
    for name in ("w", "n", "flag", "z"):
        assert isinstance(state[name], rx.Mirrored)
        assert not state[name].weak_type


def test_replicate_takes_random_keys(two):
    key = two.replicate(jax.random.key(7))
    assert float(jax.random.uniform(key)) == float(jax.random.uniform(jax.random.key(7)))
    assert key.sharding.device_set == set(two.devices)


@pytest.mark.parametrize("strategy", ["default", "one device", "mirrored"])
@pytest.mark.parametrize("source", [np.arange(512.0, dtype="float32"), jnp.arange(512.0)], ids=["numpy", "jax"])
def test_a_replicated_value_shares_no_memory_with_its_source(two, strategy, source):
    made = {"default": rx.get_strategy(), "one device": rx.OneDeviceStrategy("cpu:0"), "mirrored": two}[strategy]
    state = made.replicate({"x": source})
    rx.function(lambda state: {"x": state["x"] + 1}, donate_argnums=(0,))(state)
    assert state["x"].is_deleted()
    np.testing.assert_array_equal(source, np.arange(512.0))


def test_state_passed_in_and_out_stays_mirrored_and_compiles_once(two, per_replica, compilations):
    def step(state, x):
        gradient = jax.grad(lambda w: (w * x).sum())(state["w"])
        return {"w": state["w"] - 0.5 * gradient, "n": state["n"] + 1}, (state["w"] * x).sum()

    state = two.replicate({"w": 1.0, "n": 0})
    x = per_replica(two, 1.0, 2.0)
    state, loss = two.run(step, args=(state, x), donate_argnums=(0,))
    with compilations() as compiled:
        state, loss = two.run(step, args=(state, x), donate_argnums=(0,))
    assert compiled == []
    assert isinstance(state["w"], rx.Mirrored)
    assert (float(state["w"]), int(state["n"])) == (1.0 - 2 * 0.5 * 3, 2)
    assert [float(x) for x in loss.values] == [-0.5, -1.0]


# distribute_values_from_function.


def test_values_come_from_one_call_for_each_replica(two):
    calls = []

    def value_fn(replica):
        calls.append((replica.replica_id_in_sync_group, replica.num_replicas_in_sync))
        return {"id": np.float32(replica.replica_id_in_sync_group), "name": f"r{calls[-1][0]}"}

    value = two.distribute_values_from_function(value_fn)
    assert calls == [(0, 2), (1, 2)]
    assert isinstance(value["id"], rx.PerReplica)
    assert [float(x) for x in value["id"].values] == [0.0, 1.0]
    assert value["name"].values == ("r0", "r1")


@pytest.mark.parametrize("strategy", [rx.get_strategy, lambda: rx.OneDeviceStrategy("cpu:1")])
def test_with_one_replica_the_value_comes_bare(strategy):
    value = strategy().distribute_values_from_function(
        lambda replica: 3.0 + replica.replica_id_in_sync_group + 10 * replica.num_replicas_in_sync
    )
    assert float(value) == 13.0
    assert not isinstance(value, rx.PerReplica)


@pytest.mark.parametrize("component", [1, 1.5, True, np.float16(2), jnp.ones(2, "bfloat16"), np.ones(3)], ids=repr)
def test_components_keep_their_dtype(two, component):
    value = two.distribute_values_from_function(lambda _: component)
    assert isinstance(value, rx.PerReplica)
    assert [x.dtype for x in value.values] == [jnp.asarray(component).dtype] * 2


# Making one.


def test_a_strategy_prints_its_devices(two):
    assert repr(two) == "MirroredStrategy([cpu:0, cpu:1])"
    assert repr(rx.OneDeviceStrategy("cpu:3")) == "OneDeviceStrategy([cpu:3])"


def test_the_cross_device_ops_must_be_one(two):
    with pytest.raises(ArgumentError, match="CrossDeviceOps"):
        rx.MirroredStrategy(["cpu:0"], cross_device_ops="nccl")


def test_the_experimental_spellings_of_tensorflow_work(two, per_replica):
    value = two.experimental_distribute_values_from_function(lambda replica: replica.replica_id_in_sync_group)
    assert [int(x) for x in two.experimental_local_results(value)] == [0, 1]
    (batch,) = two.experimental_distribute_dataset(np.arange(4.0), batch_size=4)
    assert float(two.reduce("sum", batch, axis=0)) == 6.0
    (batch,) = two.experimental_distribute_datasets_from_function(lambda context: [np.ones(1), np.ones(1)])
    assert float(two.reduce("sum", batch, axis=0)) == 2.0


# Values that are made inside of a program.


@pytest.mark.parametrize("count", [1, 2, 3])
def test_values_from_a_function_may_be_made_inside_a_program(mirrored, count):
    strategy = mirrored(count)
    asked = []

    @rx.function
    def f(x):
        def value_fn(context):
            asked.append(context.replica_id_in_sync_group)
            return {"x": x * context.replica_id_in_sync_group, "size": context.num_replicas_in_sync}

        made = strategy.distribute_values_from_function(value_fn)
        return made, strategy.run(lambda value: value["x"] + 1.0, args=(made,))

    for _ in range(2):
        made, ran = f(jnp.asarray([1.0, 2.0]))
    assert asked == list(range(count))
    for i, (own, more) in enumerate(zip(strategy.local_results(made), strategy.local_results(ran), strict=True)):
        assert own["x"].tolist() == [float(i), 2.0 * i]
        assert int(own["size"]) == count
        assert more.tolist() == [i + 1.0, 2.0 * i + 1.0]
        assert count == 1 or own["x"].devices() == {strategy.devices[i]}


def test_values_made_inside_a_program_have_one_shape_and_structure(mirrored):
    two = mirrored(2)

    def made(value_fn):
        return rx.function(lambda x: two.distribute_values_from_function(lambda c: value_fn(x, c)))(jnp.ones(3))

    with pytest.raises(ReplicaShapeError, match=r"\(1,\) float32, \(2,\) float32"):
        made(lambda x, context: x[: context.replica_id_in_sync_group + 1])
    with pytest.raises(ArgumentError, match="same structure"):
        made(lambda x, context: [x] * (context.replica_id_in_sync_group + 1))
    with pytest.raises(ContextError, match="distribute_values_from_function was called inside"):
        two.run(lambda: two.distribute_values_from_function(lambda context: 1.0))
