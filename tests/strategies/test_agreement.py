"""Workers compare what they have before the chief's values take the place of theirs; threads stand for workers here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.errors import ProgramMismatchError, ValuesMismatchError
from replicax.strategies.agreement import Agreement, Described, _renumbered
from tests.cluster.fake_store import in_processes

WORKERS = ("worker:0", "worker:1", "worker:2")


def agreed(*own, what="first values of variables"):
    """What each worker gets that has the names and values `own[i]`."""

    def run(index, exchanges):
        names, values = [*own[index]], [*own[index].values()]
        return Agreement(WORKERS, exchanges.all).chiefs(what, names, values)

    return in_processes(len(own), run)


def zeros(*names, shape=(3,)):
    return dict.fromkeys(names, np.zeros(shape, np.float32))


def test_all_get_the_chiefs_values_of_any_kind():
    def own(i):
        return {
            "float": np.full((2, 3), 1.5 + i, np.float32),
            "empty": np.zeros((0, 2), np.int8),
            "scalar": 2.5 + i,
            "int": 3 + i,
            "flag": i == 0,
            "bfloat16": jnp.full((3,), 0.5 + i, jnp.bfloat16),
            "key": jax.random.key(7 + i),
        }

    for found in agreed(own(0), own(1), own(2)):
        *arrays, key = found
        for got, wanted in zip(arrays, [*own(0).values()][:-1], strict=True):
            np.testing.assert_array_equal(got, wanted)
            assert got.dtype == jax.dtypes.canonicalize_dtype(np.asarray(wanted).dtype)
        assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(7))).all()


@pytest.mark.parametrize(
    ("chiefs", "others", "says"),
    [
        (zeros("a", "b"), zeros("b", "a"), "at number 1: worker:0 has 'a' (3,) float32, worker:2 has 'b' (3,) float32"),
        (zeros("x", "a", "b"), zeros("x", "b", "a"), "at number 2: worker:0 has 'a'"),
        (zeros("a"), zeros("a", shape=(4,)), "worker:0 has 'a' (3,) float32, worker:2 has 'a' (4,) float32"),
        (zeros("a"), {"a": np.zeros(3, np.int32)}, "worker:2 has 'a' (3,) int32"),
        (zeros("a"), zeros("a", "b"), "at number 2: worker:0 has no more, worker:2 has 'b'"),
        (zeros("a", "b"), {}, "worker:2 has no more"),
        ({"k": jax.random.key(0)}, {"k": jax.random.key(0, impl="rbg")}, "key<fry>, worker:2 has 'k' () key<rbg>"),
        # Two layers, whose kernels are read in another order:
        (zeros("dense/kernel", "dense_1/kernel"), zeros("dense_1/kernel", "dense/kernel"), "has 'dense/kernel'"),
        (zeros("dense_1/k", "dense_2/k"), zeros("dense_9/k", "dense_8/k"), "worker:2 has 'dense_9/k'"),
        (zeros("a_1/k"), zeros("b_1/k"), "worker:2 has 'b_1/k'"),
    ],
)  # fmt: skip
def test_all_hear_of_a_difference(chiefs, others, says):
    for error in agreed(chiefs, chiefs, others):
        assert isinstance(error, ValuesMismatchError)
        assert says in str(error)
        assert "different first values of variables" in str(error)
        assert isinstance(error, ProgramMismatchError)  # So the process ends with 72.


@pytest.mark.parametrize(
    ("chiefs", "others"),
    [
        (["dense/kernel", "dense/bias"], ["dense_4/kernel", "dense_4/bias"]),
        (["dense_9/kernel", "dense_10/kernel"], ["dense_10/kernel", "dense_11/kernel"]),
        (["sequential_1/dense_2/kernel"], ["sequential/dense_11/kernel"]),
        (["adam/sequential_dense_1_kernel_momentum", "adam/iteration"],
         ["adam_1/sequential_4_dense_7_kernel_momentum", "adam_1/iteration"]),
        (["seed_generator_3/seed_generator_state"], ["seed_generator_12/seed_generator_state"]),
        (["block_2/k", "block_1/k"], ["block_2/k", "block_1/k"]),
        (["Variable", "Variable"], ["Variable", "Variable"]),
        (["a" * 5000 + "_" + "1" * 5000], ["a" * 5000 + "_" + "2" * 5000]),
    ],
)  # fmt: skip
def test_numbers_that_keras_has_counted_may_differ(chiefs, others):
    counted = [dict.fromkeys(names) for names in (chiefs, others)]
    for i, own in enumerate(counted):
        own.update((name, np.full(2, float(i))) for name in own)
    for found in agreed(*counted):
        assert [value.tolist() for value in found] == [[0.0, 0.0]] * len(counted[0])


def test_only_the_order_of_numbers_counts():
    numbered = _renumbered([Described(name, "()") for name in ("a_7/b", "c", "a_3/b", "a_3/b", "a/b", "a_3_1/b")])
    assert [(base, rank) for base, _, rank in numbered] == [
        ("a/b", 3), ("c", 0), ("a/b", 1), ("a/b", 1), ("a/b", 0), ("a/b", 2)
    ]  # fmt: skip


def test_a_payload_comes_from_each_worker():
    def run(index, exchanges):
        return Agreement(WORKERS, exchanges.all).alike("flags", [Described("a", "")], bytes([index]))

    assert in_processes(3, run) == [[b"\0", b"\1", b"\2"]] * 3
