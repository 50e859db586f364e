"""Objects that hold arrays, passed to programs, and random pytrees."""

from __future__ import annotations

import collections
import random
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.values.containers import flattened, holds_values
from tests.values.test_containers import (
    AttrsBatch,
    ByAttribute,
    Default,
    Frozen,
    FrozenBatch,
    Ordered,
    Plain,
    SubDict,
    SubList,
    SubTuple,
    content,
)

# Objects that are passed.


def test_a_program_is_right_for_the_arrays_that_an_object_holds(mirrored, caplog):
    two = mirrored(2)
    state = Plain(np.ones(2, np.float32))

    def step(state):
        return jnp.sum(state.state["x"][0])

    for number in (1.0, 2.0, 3.0, 3.0):
        if number != float(state.state["x"][0][0]):
            state.state["x"][0] = np.full(2, number, np.float32)
        assert float(rx.function(step)(state)) == 2 * number
        assert float(two.run(step, args=(state,))) == 2 * number
    assert caplog.text.count("compiled again each time that Plain().state['x'][0] is another one") == 1


@pytest.mark.parametrize("make", [np.full, jnp.full], ids=["numpy", "jax"])
def test_what_a_program_does_not_use_may_change(mirrored, make, per_replica):
    two, state = mirrored(2), Plain(make(2, 1.0))
    state.losses = []
    f = rx.function(lambda state, x: two.run(lambda state: jnp.sum(state.state["x"][0]) + x, args=(state,)))
    for i in range(4):
        assert float(f(state, 1.0)) == 3.0
        state.losses.append(jnp.ones(3))
        state.last, state.count = per_replica(two, 1.0 * i, 2.0), jnp.float32(i)
    assert f.num_programs == 1
    state.state["x"][0] = make(2, 5.0)
    assert float(f(state, 1.0)) == 11.0
    assert f.num_programs == 2


def test_a_per_replica_value_in_an_object_is_watched_too(mirrored, per_replica):
    two = mirrored(2)
    holder = Plain(None)
    holder.state["x"] = per_replica(two, 1.0, 2.0)
    step = lambda holder: holder.state["x"] * 2  # noqa: E731
    assert [float(x) for x in two.local_results(two.run(step, args=(holder,)))] == [2.0, 4.0]
    holder.state["x"] = per_replica(two, 3.0, 4.0)
    assert [float(x) for x in two.local_results(two.run(step, args=(holder,)))] == [6.0, 8.0]


def test_a_step_that_captures_a_batch_is_told_that_it_is_fixed(caplog):
    two = rx.MirroredStrategy(["cpu:0", "cpu:1"])  # which has said nothing yet
    (batch,) = two.distribute_dataset([np.arange(4.0, dtype=np.float32)])

    def captures(x):
        return rx.value_and_grad(lambda: jnp.sum(batch * w) + x, [w])()[0]

    def is_given(batch):
        return jnp.sum(batch)

    with two.scope():
        w = rx.Variable(1.0)
    for _ in range(2):
        assert float(two.reduce("sum", two.run(captures, args=(0.0,)))) == 6.0
    assert float(two.reduce("sum", two.run(is_given, args=(batch,)))) == 6.0
    assert caplog.text.count("captures has captured a per-replica value") == 1
    assert caplog.text.count("has captured") == 1


# Any nest.


def random_nest(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([jnp.arange(2.0), np.ones(2), rx.PerReplica(jnp.ones((2, 3))), "text", None, True, 0.5, 7])
    items = {key: random_nest(rng, depth - 1) for key in rng.sample("abcd", rng.randint(0, 3))}
    makers = [
        SubDict, Ordered, lambda items: Default(int, items), collections.UserDict, types.MappingProxyType,
        lambda items: ByAttribute(**items), lambda items: Frozen(**items), lambda items: types.SimpleNamespace(**items),
        lambda items: SubList(items.values()), lambda items: SubTuple(items.values()),
        lambda items: list(items.values()),
        lambda items: collections.deque(items.values(), maxlen=4),
        lambda items: FrozenBatch(list(items.values())),
        lambda items: AttrsBatch(tuple(items.values())), lambda items: dict(sorted(items.items())),
    ]  # fmt: skip
    return rng.choice(makers)(items)


@pytest.mark.parametrize("seed", range(10))
def test_any_nest_is_put_together_as_it_was(seed):
    rng = random.Random(seed)
    for _ in range(30):
        nest = random_nest(rng, rng.randint(1, 4))
        before = content(nest)
        leaves, structure = flattened(nest)
        assert content(jax.tree_util.tree_unflatten(structure, leaves)) == before
        assert content(nest) == before
        assert flattened(nest)[1] == structure
        assert hash(flattened(nest)[1]) == hash(structure)
        assert not any(holds_values(leaf) for leaf in leaves if not isinstance(leaf, (jax.Array, np.ndarray)))
