from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np

from replicax.group.membership.attempts import Attempt, pack, unpack


def test_a_sum_that_is_given_up_while_its_clique_is_made_never_begins():
    making, given_up = threading.Event(), threading.Event()
    summed = []

    class Clique:
        def total(self, parts):
            summed.append(parts)
            return parts

        def interrupt(self):
            """Has nothing to interrupt."""

    def clique():
        making.set()
        assert given_up.wait(10)
        return Clique()

    attempt = Attempt(clique, [np.ones(2)])
    assert making.wait(10)
    attempt.give_up()
    given_up.set()
    assert attempt.ended.wait(10)
    assert attempt.result is None
    assert "given up" in attempt.error
    assert summed == []


def test_arrays_of_each_dtype_travel_in_one_vector_and_come_back():
    values = [jnp.arange(n, n + size, dtype=kind) for n, size in ((1, 3), (5, 2), (9, 4)) for kind in ("f4", "i4")]
    values.append(jnp.float32(7).reshape(()))
    packing, vectors = pack(values)
    assert [vector.dtype for vector in vectors] == ["f4", "i4"]
    for mine, old in zip(unpack(packing, [2 * vector for vector in vectors], values), values, strict=True):
        assert (mine.dtype, mine.shape) == (old.dtype, old.shape)
        np.testing.assert_array_equal(mine, 2 * old)
