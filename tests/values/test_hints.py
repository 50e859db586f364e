from __future__ import annotations

import copy
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.values import PerReplica, UnevenPerReplica

HINT = r"(?s)strategy\.reduce.*strategy\.gather.*strategy\.local_results.*strategy\.run"

USES = {
    "+": lambda x: x + 1,
    "1 +": lambda x: 1 + x,
    "array +": lambda x: jnp.ones(2) + x,
    "numpy +": lambda x: np.ones(2) + x,
    "* itself": lambda x: x * x,
    "@": lambda x: x @ x,
    "-": operator.neg,
    "<": lambda x: x < 1,
    "==": lambda x: x == 1,
    "!= array": lambda x: x != jnp.ones(2),
    "== itself": lambda x: x == PerReplica(jnp.ones(2)),
    "[0]": lambda x: x[0],
    "[0] =": lambda x: operator.setitem(x, 0, 1),
    "len": len,
    "for": list,
    "in": lambda x: 1 in x,
    "if": bool,
    "float": float,
    "int": int,
    "complex": complex,
    "round": round,
    "abs": abs,
    "format": lambda x: f"{x:.3f}",
    "list index": lambda x: [1, 2][x],
    "numpy": np.asarray,
    "np.add": lambda x: np.add(x, 1),
    "np.sum": np.sum,
    "jnp.sum": jnp.sum,
    "jnp.asarray": jnp.asarray,
    "jnp.stack": lambda x: jnp.stack([x, x]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("make", [lambda: PerReplica(jnp.ones(2)), lambda: UnevenPerReplica([1, 2.0])])
def test_a_per_replica_value_used_as_an_array_says_what_to_do(use, make):
    with pytest.raises((ArgumentError, ReplicaShapeError), match=HINT):
        use(make())


@pytest.mark.parametrize("name", ["shape", "dtype", "mean", "sum", "numpy", "item", "astype", "T"])
def test_what_only_arrays_have_is_explained(name):
    value = PerReplica(jnp.ones(2))
    assert not hasattr(value, name)
    with pytest.raises(AttributeError, match=f"(?s)'{name}'.*strategy.reduce"):
        getattr(value, name)
    with pytest.raises(AttributeError, match="'PerReplica' object has no attribute 'nothing'"):
        value.nothing  # noqa: B018


def test_it_is_told_apart_by_identity_where_nobody_means_an_array():
    a, b = PerReplica(jnp.ones(2)), PerReplica(jnp.ones(2))
    assert a != None  # noqa: E711
    assert (a == "text") is False
    assert {a: 1}[a] == 1
    assert a in [a]
    assert len({a, b}) == 2
    assert str(a) == f"{a}"


def test_it_can_be_copied_and_pickled():
    value = PerReplica(jnp.arange(2.0))
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert isinstance(other, PerReplica)
        np.testing.assert_array_equal(other.stacked, value.stacked)


# Captured by a step.

KEPT = rx.Variable(2.0)

CAPTURED = {
    "as it is": lambda x: x,
    "+": lambda x: x + 1,
    "array +": lambda x: jnp.ones(()) + x,
    "==": lambda x: (x == 1.0) * 1.0,
    "* variable": lambda x: x * KEPT,
    "variable +": lambda x: KEPT + x,
    "jnp.sum": jnp.sum,
    "method": lambda x: x.sum(),
    "attribute": lambda x: x.astype("float32") * len(x.shape),
    "index": lambda x: x[...],
    "nested function": lambda x: jax.jit(lambda: jnp.sin(x))(),
    "all_reduce": lambda x: rx.get_replica_context().all_reduce("sum", x),
    "all_gather": lambda x: rx.get_replica_context().all_gather(jnp.ones(1) * x),
    "merge_call": lambda x: rx.get_replica_context().merge_call(lambda s, y: s.reduce("sum", y), args=(x,)),
}


@pytest.mark.daily(7)
@pytest.mark.parametrize("use", CAPTURED.values(), ids=CAPTURED)
@pytest.mark.parametrize("around", [lambda f: f, rx.function], ids=["run", "function"])
def test_a_step_that_captures_it_has_its_own_component(mirrored, per_replica, use, around):
    two = mirrored(2)
    x = per_replica(two, 1.0, 3.0)
    captured = around(lambda: two.run(lambda: use(x)))()
    passed = around(lambda x: two.run(use, args=(x,)))(x)
    assert isinstance(captured, PerReplica) == isinstance(passed, PerReplica)
    np.testing.assert_array_equal(jax.tree.leaves(captured)[0], jax.tree.leaves(passed)[0])


def test_a_step_that_runs_eagerly_has_its_own_component_too(mirrored, per_replica):
    two = mirrored(2)
    x = per_replica(two, 1.0, 3.0)
    rx.config.run_eagerly(True)
    try:
        result = two.run(lambda: x + 1)
    finally:
        rx.config.run_eagerly(False)
    assert [float(value) for value in two.local_results(result)] == [2.0, 4.0]


def test_what_a_step_of_another_size_has_captured_is_refused(mirrored, per_replica):
    four, pair = mirrored(4), per_replica(mirrored(2), 1.0, 2.0)
    with pytest.raises(ReplicaShapeError, match=r"runs on 4 replicas .* with 2 components"):
        four.run(lambda: pair + 1)
    with pytest.raises(ReplicaShapeError, match=r"runs on 4 replicas .* with 2 components"):
        four.run(lambda: pair)
