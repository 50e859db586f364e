"""Results of `run` count as one per replica under every strategy, whether or not they are proven equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ReduceError
from tests.contract.strategies import ALL


def combined(strategy, way, run, combine):
    """Combines what `run` returns: outside of a function, in the same one, or in another one than it was made in."""
    if way == "function":
        return rx.function(lambda: combine(run()))()
    return (rx.function(combine) if way == "argument" else combine)(run())


@pytest.mark.daily(20)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("way", "rows"), [("directly", 24), ("function", 5), ("argument", 5)])
def test_an_equal_result_counts_once_for_each_replica_that_ran(name, way, rows):
    strategy = ALL[name]()
    (batch,) = strategy.distribute_dataset([np.arange(rows, dtype=np.float32)])

    def step(batch):
        # One that is proven equal, and the same numbers where it is not.
        equal = jnp.array([[1, 2]], jnp.int8) + jnp.zeros((), jnp.int8)
        return equal, equal + (0 * batch[0]).astype(jnp.int8)

    def combine(results):
        return {
            "sum": strategy.reduce("sum", results),
            "mean": strategy.reduce("mean", results),
            "rows": strategy.reduce("sum", results, axis=0),
            "row mean": strategy.reduce("mean", results, axis=(0, 1)),
            "gathered": strategy.gather(results, axis=1),
        }

    found = combined(strategy, way, lambda: strategy.run(step, args=(batch,)), combine)
    for what, (equal, other) in found.items():
        np.testing.assert_array_equal(equal, other, what)
        assert equal.dtype == other.dtype, what
    replicas = len(strategy.local_results(strategy.run(lambda b: b[0], args=(batch,))))
    np.testing.assert_array_equal(found["sum"][0], [[replicas, 2 * replicas]])
    np.testing.assert_array_equal(found["gathered"][0], [[1, 2] * replicas])


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ALL)
def test_the_sum_of_a_scaled_regularisation_loss_is_the_loss(name):
    strategy = ALL[name]()

    def run():
        return strategy.run(rx.scale_regularization_loss, args=([2.5, 6.2, 5.0],))

    assert float(combined(strategy, "function", run, lambda x: strategy.reduce("sum", x))) == pytest.approx(13.7)
    assert float(combined(strategy, "directly", run, lambda x: strategy.reduce("sum", x))) == pytest.approx(13.7)


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ALL)
def test_local_results_has_an_equal_result_once_for_each_replica_that_ran(name):
    strategy = ALL[name]()
    for rows in (24, 5):
        (batch,) = strategy.distribute_dataset([np.arange(rows, dtype=np.float32)])
        equal, own = strategy.run(lambda b: (jnp.float32(3.0), jnp.sum(b)), args=(batch,))
        assert [float(x) for x in strategy.local_results(equal)] == [3.0] * len(strategy.local_results(own))
        assert all(float(x) == 3.0 for x, _ in strategy.local_results((equal, own)))


@pytest.mark.daily(14)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("axis", "inside"), [(None, False), (0, True)])
def test_what_has_been_combined_is_not_summed_again(name, axis, inside):
    strategy = ALL[name]()

    def again(how):
        result = how(strategy.run(lambda: jnp.ones(2)))
        return strategy.reduce("sum", result, axis=axis)

    for how in (lambda x: strategy.reduce("mean", x), lambda x: strategy.gather(x)):
        call = rx.function(again) if inside else again
        if strategy.num_replicas_in_sync == 1:
            assert float(jnp.sum(call(how))) == 2.0
            continue
        with pytest.raises(ReduceError, match="already"):
            call(how)


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ALL)
def test_plain_state_goes_through_run_as_arrays_and_compiles_once(name):
    strategy = ALL[name]()

    def step(state, x):
        gradient = jax.grad(lambda w: jnp.sum(w * x) / 24)(state["w"])
        return {"w": state["w"] - gradient, "steps": state["steps"] + 1}, jnp.sum(x)

    @rx.function
    def train(state, x):
        state, total = strategy.run(step, args=(state, x))
        return jax.tree_util.tree_map(lambda leaf: leaf * 1, state), strategy.reduce("sum", total)

    state = strategy.replicate({"w": jnp.ones(()), "steps": 0})
    for x in strategy.distribute_dataset([np.ones(24, np.float32)] * 3):
        state, total = train(state, x)
    assert float(total) == 24.0
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(state))
    assert float(jnp.sum(state["w"])) == pytest.approx(-2.0)
    assert int(state["steps"]) == 3
    assert train.num_programs == 1


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ALL)
def test_reducing_a_variable_gives_an_array_that_stays(name):
    strategy = ALL[name]()
    with strategy.scope():
        variable = rx.Variable(3.0)
    before = strategy.reduce("mean", variable)
    variable.assign(5.0)
    strategy.run(lambda: variable.assign_add(1.0))
    assert isinstance(before, jax.Array)
    assert float(before) == 3.0
    assert float(strategy.gather({"v": variable})["v"]) == 6.0


@pytest.mark.daily(14)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("aggregation", "inside"), [("sum", True), ("none", False)])
def test_an_on_read_variable_is_combined_from_its_components(name, aggregation, inside):
    strategy = ALL[name]()
    with strategy.scope():
        variable = rx.Variable(jnp.zeros(1), synchronization="on_read", aggregation=aggregation)
    (batch,) = strategy.distribute_dataset([np.arange(24, dtype=np.float32)])
    strategy.run(lambda b: variable.assign(jnp.sum(b)[None]), args=(batch,))

    def combine():
        return strategy.reduce("sum", variable), strategy.reduce("mean", variable), strategy.gather(variable)

    total, mean, parts = (rx.function(combine) if inside else combine)()
    assert float(total[0]) == 276.0
    assert float(mean[0]) == 276.0 / strategy.num_replicas_in_sync
    np.testing.assert_array_equal(np.ravel(strategy.local_results(variable)), parts)
