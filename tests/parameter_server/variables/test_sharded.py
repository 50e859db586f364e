"""Variables that are cut over servers, as the coordinator sees them."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import VariableError
from replicax.parameter_server.variables.remote import home_of
from tests.parameter_server.fakes import strategy_of

VALUES = np.arange(10 * 4, dtype=np.float32).reshape(10, 4)


@pytest.fixture
def table(fake_ray):
    """A variable of ten rows in three parts (4, 3, 3) on two servers, trained once so that it is there."""
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(3)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variable = rx.Variable(VALUES)
        coordinator.schedule(lambda: variable.assign_add(variable.value)).fetch()
        yield variable


def test_parts_are_those_of_tensorflow(table):
    assert isinstance(table, rx.ShardedVariable)
    assert isinstance(table, rx.Variable)
    assert [shard.bounds for shard in table.shards] == [(0, 4), (4, 7), (7, 10)]
    assert [shard.shape for shard in table.variables] == [(4, 4), (3, 4), (3, 4)]
    assert len({shard.server for shard in table.shards}) == 2
    np.testing.assert_array_equal(np.concatenate([shard.numpy() for shard in table.shards]), 2 * VALUES)
    np.testing.assert_array_equal(table.numpy(), 2 * VALUES)


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    "index",
    [
        0, -1, slice(2, 8), slice(None, None, -2), slice(5, 5), [1, 9, 1], np.array([8, 0]), (3, 1), (slice(1, 5), 2),
        (slice(None), None, slice(0, 2)), Ellipsis, (Ellipsis, 1), np.arange(10) % 3 == 0, (7, slice(None)),
        np.int32(6),
    ],
    ids=str,
)  # fmt: skip
def test_an_index_means_what_it_means_to_numpy(table, index):
    np.testing.assert_array_equal(table[index], (2 * VALUES)[index])


def test_only_the_rows_that_are_named_are_fetched(table, monkeypatch):
    home = home_of(table)
    monkeypatch.setattr(home, "fetch", lambda: pytest.fail("the whole variable was fetched"))
    np.testing.assert_array_equal(table[8], 2 * VALUES[8])
    np.testing.assert_array_equal(table[2:6], 2 * VALUES[2:6])
    np.testing.assert_array_equal(table.sparse_read([9, 0, 9]), 2 * VALUES[[9, 0, 9]])


def test_bad_rows_are_refused(table):
    with pytest.raises(IndexError):
        table[10]
    for rows in ([10], [-1], [[1]], [1.5]):
        with pytest.raises(VariableError, match="from 0 to 9"):
            table.sparse_read(rows)


def test_what_was_assigned_here_is_read_here(table):
    table.assign(VALUES)
    np.testing.assert_array_equal(table[3:5], VALUES[3:5])
    np.testing.assert_array_equal(table.sparse_read([2]), VALUES[[2]])


def test_variables_of_keras_are_cut_too(fake_ray):
    with strategy_of(1, 2, variable_partitioner=rx.MinSizePartitioner(64, max_shards=2)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            layer = keras.layers.Dense(8)
            layer.build((None, 6))
        coordinator.schedule(lambda: layer(np.ones((1, 6), np.float32))).fetch()
        assert isinstance(layer.kernel, rx.ShardedVariable)
        assert not isinstance(layer.bias, rx.ShardedVariable)
        np.testing.assert_array_equal(layer.kernel[4:], np.asarray(layer.kernel.value)[4:])


def test_explain_says_where_variables_are(fake_ray):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            table, counter = rx.Variable(VALUES, name="table"), rx.Variable(0, name="counter")
        assert strategy.explain([table]) == "table  (10, 4)  on no server yet  160 bytes"
        coordinator.schedule(lambda: (table.assign_add(table.value), counter.assign_add(1))).fetch()
        lines = [" ".join(line.split()) for line in strategy.explain([table, counter]).splitlines()]
        assert lines[0] in (
            "table (10, 4) ps:0 rows 0-4, ps:1 rows 5-9 160 bytes",
            "table (10, 4) ps:1 rows 0-4, ps:0 rows 5-9 160 bytes",
        )
        assert lines[1].startswith("counter () ps:")
        assert lines[2] == "total 2 variables on all servers 164 bytes"


# Changes of some entries, in a scheduled function: each server makes those of its rows.

IDS, CHANGES = np.array([1, 9, 4, 4]), np.arange(16, dtype=np.float32).reshape(4, 4)
ENTRIES = {
    "add": lambda v, ids, g: v.at[ids].add(g),
    "subtract": lambda v, ids, g: v.at[ids].add(-g),
    "set": lambda v, ids, g: v.at[ids[:3]].set(g[:3]),
    "min": lambda v, ids, g: v.at[ids].min(g),
    "max": lambda v, ids, g: v.at[ids].max(g),
    "multiply": lambda v, ids, g: v.at[ids].multiply(g),
    "divide": lambda v, ids, g: v.at[ids].divide(g + 1),
    "power": lambda v, ids, g: v.at[ids[:3]].power(2.0),
    "apply": lambda v, ids, g: v.at[ids[:3]].apply(jnp.sin),
    "a slice of rows": lambda v, ids, g: v.at[2:7].add(1.0),
    "every other row": lambda v, ids, g: v.at[::2].add(1.0),
    "one row": lambda v, ids, g: v.at[-2].set(g[0]),
    "one column": lambda v, ids, g: v.at[:, 1].add(1.0),
    "single entries": lambda v, ids, g: v.at[ids, jnp.array([0, 1, 2, 3])].add(1.0),
    "a mask known before": lambda v, ids, g: v.at[np.arange(10) % 3 == 0].add(1.0),
    "a mask of the step": lambda v, ids, g: jnp.where((jnp.arange(10) % ids[2] == 0)[:, None], v + 1, v),
    "rows out of range": lambda v, ids, g: v.at[ids + 5].add(g, mode="drop"),
    "as many changes as rows": lambda v, ids, g: v.at[jnp.tile(ids, 3)[:10]].add(jnp.tile(g, (3, 1))[:10]),
    "as many columns as rows": lambda v, ids, g: v.at[1:3, jnp.tile(ids % 4, 3)[:10]].add(1.0),
    "of rows read before": lambda v, ids, g: v.at[ids].add(g * v[ids]),
}
BY_GRADIENTS = ("add", "set", "one column", "as many changes as rows", "of rows read before")


def test_entries_of_a_variable_in_parts(fake_ray):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(3)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variables = {name: rx.Variable(VALUES, name=name) for name in ENTRIES}
            by_gradients = {name: rx.Variable(VALUES, name=f"{name}, by gradients") for name in BY_GRADIENTS}
            weights = rx.Variable(CHANGES / 2)

        def step(ids, changes):
            (gradients,) = rx.grad(lambda: jnp.sum(weights.value**2), [weights])()  # they are `changes`
            for name, change in ENTRIES.items():
                variables[name].assign(change(variables[name].value, ids, changes))
            for name, variable in by_gradients.items():
                variable.assign(ENTRIES[name](variable.value, ids, gradients))

        coordinator.schedule(step, args=(IDS, CHANGES)).fetch()
        for name, variable in [*variables.items(), *by_gradients.items()]:
            expected = ENTRIES[name](jnp.asarray(VALUES), IDS, CHANGES)
            np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6, err_msg=variable.name)


def test_scatter_methods_of_a_variable_in_parts(fake_ray):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(3)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            ours, keras_variable = rx.Variable(VALUES), keras.Variable(VALUES)
        slices = rx.IndexedSlices(CHANGES, IDS)

        def step():
            for variable in (ours, keras_variable):
                variable.scatter_add(slices)
                variable.scatter_max([0, 9], 30.0)

        coordinator.schedule(step).fetch()
        expected = jnp.asarray(VALUES).at[IDS].add(CHANGES).at[jnp.array([0, 9])].max(30.0)
        for variable in (ours, keras_variable):
            assert set(variable.device.split(", ")) == {"ps:0", "ps:1"}
            np.testing.assert_allclose(variable.numpy(), expected)
            variable.scatter_update([3], [[0.0, 1.0, 2.0, 3.0]])
            np.testing.assert_array_equal(variable[3], [0, 1, 2, 3])
            with pytest.raises(VariableError, match="index"):
                variable.scatter_update([10], 0.0)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "index", [jnp.arange(10) % 3 == 0, jnp.array([8, 0]), jnp.int32(4), (jnp.arange(10) > 5, 1)], ids=str
)
def test_an_index_may_be_of_jax(table, index, monkeypatch):
    monkeypatch.setattr(home_of(table), "fetch", lambda: pytest.fail("the whole variable was fetched"))
    known = tuple(map(np.asarray, index)) if isinstance(index, tuple) else np.asarray(index)
    np.testing.assert_array_equal(table[index], (2 * VALUES)[known])


@pytest.mark.daily(2)
@pytest.mark.parametrize("index", [10, -11, (0, 4), (slice(None), -5), np.int64(10)], ids=str)
def test_a_number_out_of_range_is_an_error_wherever_the_value_is(table, index):
    with pytest.raises(IndexError):
        table[index]
    table.assign(VALUES)  # now the coordinator has it
    with pytest.raises(IndexError):
        table[index]
    with pytest.raises(IndexError):
        rx.Variable(VALUES)[index]
    assert repr(table) == (f"<Variable 'Variable' shape=(10, 4) dtype=float32, replicas=1, device={table.device!r}>")
