from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def rows(two, per_replica):
    return per_replica(two, [1.0, 2.0], [3.0, 4.0])


def derivative(rows, cotangent):
    return jax.vjp(lambda w: (w * rows).sum(), jnp.float32(2.0))[1](cotangent)[0]


def test_a_constant_cotangent_of_a_replicas_own_value_is_told_in_plain_words(two, rows):
    with pytest.raises((TypeError, ValueError)) as caught:
        two.run(lambda rows: derivative(rows, jnp.float32(1.0)), args=(rows,))
    [note] = [note for note in caught.value.__notes__ if "jnp.zeros_like" in note]
    assert "jnp.full_like(own, value)" in note


def test_the_cure_runs_on_several_replicas_and_on_one(two, rows):
    def step(rows):
        return derivative(rows, jnp.ones_like(rows[0]))

    alone = rx.OneDeviceStrategy("cpu:0")
    expected = sum(float(alone.run(step, args=(np.asarray(own),))) for own in two.local_results(rows))
    assert [float(value) for value in two.local_results(two.run(step, args=(rows,)))] == [expected] * 2


@pytest.mark.parametrize("other", [lambda x: x + "a", lambda x: jnp.dot(x, jnp.ones(3)), lambda x: int("a")])
def test_other_errors_get_no_such_note(two, rows, other):
    with pytest.raises((TypeError, ValueError)) as caught:
        two.run(other, args=(rows,))
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "strategy.run" in note]
