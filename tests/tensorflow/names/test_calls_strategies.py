"""TensorFlow's keywords of `tf.distribute` do here what they do there."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.tensorflow.names.calls import tries

_D = "tf.distribute"
_X = "tf.distribute.experimental"


@pytest.fixture
def two(mirrored):
    return mirrored(2)


# Strategies.


@tries(
    f"{_D}.MirroredStrategy",
    f"{_D}.OneDeviceStrategy",
    f"{_X}.CentralStorageStrategy",
    f"{_D}.NcclAllReduce",
    f"{_D}.HierarchicalCopyAllReduce",
    f"{_D}.ReductionToOneDevice",
    f"{_D}.CrossDeviceOps",
)
def test_strategies_and_their_ops(call):
    ops = [
        call(f"{_D}.NcclAllReduce", rx.NcclAllReduce, num_packs=2),
        call(f"{_D}.HierarchicalCopyAllReduce", rx.HierarchicalCopyAllReduce, num_packs=2),
        call(
            f"{_D}.ReductionToOneDevice",
            rx.ReductionToOneDevice,
            reduce_to_device="cpu:1",
            accumulation_fn=lambda values: sum(values[1:], values[0]),
        ),
    ]
    for op in ops:
        assert isinstance(op, rx.CrossDeviceOps)
        strategy = call(f"{_D}.MirroredStrategy", rx.MirroredStrategy, devices=["/cpu:0", "cpu:1"], cross_device_ops=op)
        parts = strategy.experimental_distribute_values_from_function(
            lambda ctx: jnp.float32(ctx.replica_id_in_sync_group + 1)
        )
        total = strategy.run(lambda x: rx.get_replica_context().all_reduce("sum", x), args=(parts,))
        assert float(total) == 3.0
    one = call(f"{_D}.OneDeviceStrategy", rx.OneDeviceStrategy, device="/cpu:3")
    assert one.run(lambda: jnp.ones(())).devices() == {jax.devices()[3]}
    central = call(
        f"{_X}.CentralStorageStrategy",
        rx.CentralStorageStrategy,
        compute_devices=["/cpu:1", "/cpu:2"],
        parameter_device="/cpu:0",
    )
    with central.scope():
        variable = rx.Variable(1.0)
    assert variable.value.devices() == {jax.devices()[0]}
    assert central.num_replicas_in_sync == 2


@tries(
    f"{_D}.MultiWorkerMirroredStrategy",
    f"{_X}.MultiWorkerMirroredStrategy",
    f"{_D}.TPUStrategy",
    f"{_X}.TPUStrategy",
    f"{_X}.CommunicationOptions",
    f"{_X}.CommunicationOptions.merge",
)
def test_strategies_of_several_workers_alone(call):
    resolver = rx.cluster_resolver.SimpleClusterResolver({})
    options = call(
        f"{_X}.CommunicationOptions",
        rx.CommunicationOptions,
        bytes_per_pack=64,
        timeout_seconds=60,
        implementation="RING",
    )
    merged = call(
        f"{_X}.CommunicationOptions.merge", options.merge, options=rx.CommunicationOptions(bytes_per_pack=128)
    )
    assert (merged.bytes_per_pack, merged.implementation) == (128, rx.CommunicationImplementation.RING)
    strategy = call(
        f"{_D}.MultiWorkerMirroredStrategy",
        rx.MultiWorkerMirroredStrategy,
        cluster_resolver=resolver,
        communication_options=options,
    )
    assert strategy.cluster_resolver is resolver
    older = call(
        f"{_X}.MultiWorkerMirroredStrategy",
        rx.MultiWorkerMirroredStrategy,
        cluster_resolver=resolver,
        communication=rx.CommunicationImplementation.AUTO,
    )
    assert older.num_replicas_in_sync == 8

    def tpus(**keywords):
        return rx.TPUStrategy(platform="cpu", **keywords)

    on_tpu = call(
        f"{_D}.TPUStrategy",
        tpus,
        tpu_cluster_resolver=resolver,
        experimental_device_assignment=None,
        experimental_spmd_xla_partitioning=False,
    )
    assert on_tpu.cluster_resolver is resolver
    assert call(f"{_X}.TPUStrategy", tpus, tpu_cluster_resolver=resolver, device_assignment=None).num_workers == 1


# Strategy.


@tries(f"{_D}.Strategy.run", f"{_D}.Strategy.reduce", f"{_D}.Strategy.gather", f"{_D}.Strategy.scope")
def test_run_reduce_and_gather(call, two, per_replica):
    values = per_replica(two, [1.0, 2.0], [3.0, 4.0])
    with call(f"{_D}.Strategy.scope", two.scope) as inside:
        assert inside is two
        result = call(
            f"{_D}.Strategy.run", two.run, fn=lambda x, by: x * by, args=(values,), kwargs={"by": 2.0}, options=None
        )
    reduced = call(f"{_D}.Strategy.reduce", two.reduce, reduce_op=rx.ReduceOp.SUM, value=result, axis=None)
    assert reduced.tolist() == [8.0, 12.0]
    assert float(call(f"{_D}.Strategy.reduce", two.reduce, reduce_op="MEAN", value=result, axis=0)) == 5.0
    assert call(f"{_D}.Strategy.gather", two.gather, value=values, axis=0).tolist() == [1.0, 2.0, 3.0, 4.0]
    # As it would be written without names.
    assert two.run(lambda x: x, (values,), None, None).num_replicas == 2
    with pytest.raises(ArgumentError, match=r"`options`.*nothing to set"):
        two.run(lambda x: x, (values,), None, object())


@tries(
    f"{_D}.Strategy.experimental_distribute_dataset",
    f"{_D}.Strategy.distribute_datasets_from_function",
    f"{_D}.Strategy.experimental_distribute_datasets_from_function",
    f"{_D}.Strategy.experimental_distribute_values_from_function",
    f"{_D}.Strategy.experimental_local_results",
    f"{_D}.InputContext",
    f"{_D}.InputContext.get_per_replica_batch_size",
    f"{_D}.InputOptions",
    f"{_X}.ValueContext",
)
def test_datasets_and_values(call, two):
    options = call(
        f"{_D}.InputOptions",
        rx.InputOptions,
        experimental_fetch_to_device=True,
        experimental_replication_mode="PER_WORKER",
        experimental_place_dataset_on_device=False,
        experimental_per_replica_buffer_size=1,
    )
    assert options == rx.InputOptions(prefetch=1) == rx.InputOptions(experimental_fetch_to_device=None, prefetch=1)
    batches = [np.arange(4.0), np.arange(4.0, 8.0)]
    dataset = call(
        f"{_D}.Strategy.experimental_distribute_dataset",
        two.experimental_distribute_dataset,
        dataset=batches,
        options=options,
    )

    def shown(nest):
        local = call(f"{_D}.Strategy.experimental_local_results", two.experimental_local_results, value=nest)
        return [component.tolist() for component in local]

    assert [shown(batch) for batch in dataset] == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]

    def dataset_fn(context):
        size = call(
            f"{_D}.InputContext.get_per_replica_batch_size", context.get_per_replica_batch_size, global_batch_size=4
        )
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
        return [np.full(size, float(i)) for i in range(4)]

    for name in ("distribute_datasets_from_function", "experimental_distribute_datasets_from_function"):
        made = call(f"{_D}.Strategy.{name}", getattr(two, name), dataset_fn=dataset_fn, options=options)
        assert [shown(batch) for batch in made] == [[[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]]
    by_hand = call(
        f"{_D}.InputContext", rx.InputContext, num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4
    )
    assert by_hand.get_per_replica_batch_size(8) == 2

    def value_fn(context):
        assert context == call(
            f"{_X}.ValueContext",
            rx.ValueContext,
            replica_id_in_sync_group=context.replica_id_in_sync_group,
            num_replicas_in_sync=2,
        )
        return jnp.float32(context.replica_id_in_sync_group)

    values = call(
        f"{_D}.Strategy.experimental_distribute_values_from_function",
        two.experimental_distribute_values_from_function,
        value_fn=value_fn,
    )
    assert shown(values) == [0.0, 1.0]


@tries(f"{_D}.StrategyExtended.update")
def test_update(call, two, per_replica):
    with two.scope():
        variable = rx.Variable(1.0)

    def update(**keywords):
        return call(f"{_D}.StrategyExtended.update", two.update, var=variable, **keywords)

    update(fn=lambda v, x, by: v.assign_add(x * by), args=(2.0,), kwargs={"by": 3.0}, group=True)
    assert float(variable) == 7.0
    each = update(fn=lambda v, x: v.assign(x), args=(4.0,), kwargs=None, group=False)
    assert [float(one) for one in each] == [4.0, 4.0]
    # As it would be written without names.
    assert len(two.update(variable, lambda v, x: v.assign(x), (5.0,), None, False)) == 2


@tries(
    f"{_D}.ReplicaContext.all_reduce",
    f"{_D}.ReplicaContext.all_gather",
    f"{_D}.ReplicaContext.merge_call",
)
@pytest.mark.parametrize("replicas", [0, 2])
def test_the_replica_context(call, mirrored, replicas):
    """Also that of the default strategy."""
    strategy = mirrored(replicas) if replicas else rx.get_strategy()
    options = rx.CommunicationOptions(bytes_per_pack=64)
    seen = []

    def step(x):
        context = rx.get_replica_context()
        assert isinstance(context, rx.ReplicaContext)
        reduce = f"{_D}.ReplicaContext.all_reduce"
        total = call(reduce, context.all_reduce, reduce_op=rx.ReduceOp.SUM, value=x, options=options)
        rows = call(f"{_D}.ReplicaContext.all_gather", context.all_gather, value=x, axis=0, options=options)

        def merge(inside, value, *, by):
            seen.append(inside is strategy)
            return inside.reduce("mean", value, axis=None) * by

        merged = call(
            f"{_D}.ReplicaContext.merge_call", context.merge_call, merge_fn=merge, args=(x,), kwargs={"by": 10.0}
        )
        return total, rows, merged

    count = itertools.count(1)
    values = strategy.experimental_distribute_values_from_function(lambda _: jnp.full(1, float(next(count))))
    total, rows, merged = strategy.run(step, args=(values,))
    assert all(seen)
    expected = ([3.0], [1.0, 2.0], [15.0]) if replicas else ([1.0], [1.0], [10.0])
    assert (total.tolist(), rows.tolist(), merged.tolist()) == expected


@tries(
    *(f"{_D}.{name}" for name in ("get_replica_context", "get_strategy", "has_strategy", "in_cross_replica_context"))
)
def test_functions(call, two):
    def asked():
        return (
            call(f"{_D}.get_replica_context", rx.get_replica_context) is None,
            call(f"{_D}.get_strategy", rx.get_strategy) is two,
            call(f"{_D}.has_strategy", rx.has_strategy),
            call(f"{_D}.in_cross_replica_context", rx.in_cross_replica_context),
        )

    found = [asked()]
    with two.scope():
        found.append(asked())
        two.run(lambda: found.append(asked()))
    assert found == [(False, False, False, False), (True, True, True, True), (False, True, True, False)]


@tries(
    f"{_D}.ReduceOp.from_variable_aggregation",
    f"{_D}.DistributedDataset",
    f"{_D}.DistributedDataset.reduce",
    f"{_D}.DistributedIterator",
    f"{_D}.DistributedIterator.get_next",
    f"{_D}.DistributedIterator.get_next_as_optional",
)
def test_distributed_datasets(call, two):
    of = f"{_D}.ReduceOp.from_variable_aggregation"
    assert call(of, rx.ReduceOp.from_variable_aggregation, aggregation=rx.VariableAggregation.SUM) is rx.ReduceOp.SUM
    assert call(of, rx.ReduceOp.from_variable_aggregation, aggregation="mean") is rx.ReduceOp.MEAN
    for other in (rx.VariableAggregation.NONE, rx.VariableAggregation.ONLY_FIRST_REPLICA):
        with pytest.raises(ValueError, match="A reduce op must be"):
            rx.ReduceOp.from_variable_aggregation(other)
    dataset = two.experimental_distribute_dataset([np.arange(4.0), np.arange(4.0, 8.0)])
    assert isinstance(dataset, rx.data.DistributedDataset)
    total = call(
        f"{_D}.DistributedDataset.reduce",
        dataset.reduce,
        initial_state=0.5,
        reduce_func=lambda state, batch: state + float(two.reduce("sum", batch, axis=0)),
    )
    assert total == 28.5
    iterator = iter(dataset)
    assert isinstance(iterator, rx.data.DistributedIterator)
    assert call(f"{_D}.DistributedIterator.get_next", iterator.get_next).num_replicas == 2
    of = f"{_D}.DistributedIterator.get_next_as_optional"
    assert call(of, iterator.get_next_as_optional).has_value()
    assert not call(of, iterator.get_next_as_optional).has_value()


@tries(
    f"{_D}.DistributedValues",
    "tf.types.experimental.distributed.Mirrored",
    "tf.types.experimental.distributed.PerReplica",
)
def test_kinds_of_values(call, two, per_replica):
    values = per_replica(two, 1.0, 2.0)
    assert isinstance(values, rx.PerReplica)
    assert isinstance(values, rx.DistributedValues)
    assert isinstance(two.replicate(1.0), rx.Mirrored)


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_options_and_functions_are_checked_in_front(mirrored, replicas):
    """Also where they would change nothing."""
    strategy = mirrored(replicas) if replicas else rx.get_strategy()
    with pytest.raises(ArgumentError, match=r"Only rx.CommunicationOptions .* got 5"):
        strategy.run(lambda x: rx.get_replica_context().all_reduce("mean", x, 5), args=(jnp.ones(2),))
    with pytest.raises(ArgumentError, match=r"Only rx.CommunicationOptions .* got 5"):
        strategy.run(lambda x: rx.get_replica_context().all_gather(x, 0, 5), args=(jnp.ones(2),))
    with pytest.raises(ArgumentError, match=r"`value_fn` must be callable, got int: 5"):
        strategy.distribute_values_from_function(5)
