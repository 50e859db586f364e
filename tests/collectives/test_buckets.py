from __future__ import annotations

import jax.numpy as jnp

from replicax.collectives.buckets import in_turn, last_first
from replicax.runtime.packing import Packing


def test_packs_leave_in_the_order_in_which_a_backward_pass_finishes_them():
    packing = last_first(Packing(packs=((0,), (2,), (1, 3)), shapes=((2,), (3,), (4,), (5,))))
    assert packing.packs == ((2,), (1, 3), (0,))
    values = [jnp.full(shape, float(shape[0])) for shape in packing.shapes]
    for value, back in zip(values, packing.unpack(packing.pack(values)), strict=True):
        assert (value == back).all()


def test_sums_in_turn_keep_their_order_and_values():
    sums = in_turn([jnp.ones(1), jnp.ones(2), jnp.ones(3)], lambda buffer: 2 * buffer)
    assert [each.tolist() for each in sums] == [[2.0], [2.0, 2.0], [2.0, 2.0, 2.0]]
    assert in_turn([], lambda buffer: buffer) == []
