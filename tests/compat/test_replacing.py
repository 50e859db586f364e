"""JAX's names are its own outside of replicas: whoever else uses JAX finds it as its authors made it."""

import threading
import types

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.compat.replacing import Name, Replaced

NAMES = {
    jax: ("vjp", "closure_convert"),
    jax.lax: ("scan", "while_loop", "fori_loop", "cond", "switch", "psum", "pmean", "pmax", "all_gather"),
}


def of_jax():
    return {(owner.__name__, name): getattr(owner, name) for owner, names in NAMES.items() for name in names}


def test_jax_is_its_own_before_and_after_a_step_and_when_one_fails():
    before, within = of_jax(), {}
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def step(fails):
        within.update(of_jax())
        if fails:
            raise RuntimeError("by the user")
        return jax.lax.psum(jax.lax.axis_index("replica"), "replica")

    strategy.run(step, args=(False,))
    assert of_jax() == before
    with pytest.raises(RuntimeError, match="by the user"):
        strategy.run(step, args=(True,))
    assert of_jax() == before
    assert not any(within[name] is before[name] for name in before)


def test_so_it_is_where_random_numbers_are_drawn_by_rows():
    names = ("bits", "gamma", "choice", "permutation")
    before = [getattr(jax.random, name) for name in names]
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], random_numbers="per_row")
    batch = next(iter(strategy.distribute_dataset(jnp.arange(4.0), batch_size=4)))
    strategy.run(lambda x: x + jax.random.gamma(jax.random.key(0), 1.0, x.shape), args=(batch,))
    assert [getattr(jax.random, name) for name in names] == before


@pytest.fixture
def library():
    return types.SimpleNamespace(double=lambda x: 2 * x)


def replaced(library):
    return Replaced(lambda: [Name(library, "double", lambda original: lambda x: -original(x))])


def test_a_name_is_replaced_until_the_last_who_asked_has_left(library):
    original, ours = library.double, replaced(library)
    inside, leave = threading.Event(), threading.Event()

    def ask():
        with ours():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=ask)
    thread.start()
    assert inside.wait(10)
    with ours():
        assert library.double(1) == -2
    assert library.double(1) == -2  # the thread is inside still
    leave.set()
    thread.join(10)
    assert library.double is original


def test_what_somebody_else_has_put_there_stays(library):
    ours = replaced(library)
    with ours():
        pass
    library.double = lambda x: 20 * x
    with ours():
        assert library.double(1) == -20
    assert library.double(1) == 20
    with ours():
        library.double = lambda x: 7 * x
    assert library.double(1) == 7


def test_a_key_of_a_dict_is_replaced_too():
    rules = {"rule": 1}
    with Replaced(lambda: [Name(rules, "rule", lambda rule: rule + 1)])():
        assert rules == {"rule": 2}
    assert rules == {"rule": 1}
