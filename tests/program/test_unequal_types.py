from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def rows(two, per_replica):
    return per_replica(two, [1.0, 2.0], [3.0, 4.0])


def constant(rows):
    return jnp.float32(0.0)


def of_the_data(rows):
    return jnp.zeros_like(rows[0])


def own(rows):
    return jax.lax.pcast(0.0, ("replica",), to="varying")


def cond(rows, start):
    return jax.lax.cond(rows[0] > 2.0, lambda: rows[0], lambda: start)


def keras_while_loop(rows, start):
    return keras.ops.while_loop(lambda c: c < 9.0, lambda c: (c + rows.sum(),), (start,))[0]


PROGRAMS = {
    "scan": lambda rows, start: jax.lax.scan(lambda c, row: (c + row, None), start, rows)[0],
    "fori_loop": lambda rows, start: jax.lax.fori_loop(0, 2, lambda i, c: c + rows[i], start),
    "while_loop": lambda rows, start: jax.lax.while_loop(lambda c: c < 9.0, lambda c: c + rows.sum(), start),
    "cond": cond,
    "switch": lambda rows, start: jax.lax.switch(rows[0].astype(int) % 2, [lambda: rows[0], lambda: start]),
    "cotangent": lambda rows, start: jax.vjp(lambda w: (w * rows).sum(), jnp.float32(2.0))[1](start + 1.0)[0],
    "keras scan": lambda rows, start: keras.ops.scan(lambda c, row: (c + row, c), start, rows)[0],
    "keras fori_loop": lambda rows, start: keras.ops.fori_loop(0, 2, lambda i, c: c + rows[i], start),
    "keras while_loop": keras_while_loop,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_constant_beside_a_replicas_own_value_is_told_in_plain_words(two, rows, program):
    with pytest.raises((TypeError, ValueError)) as caught:
        two.run(lambda rows: program(rows, constant(rows)), args=(rows,))
    [note] = [note for note in caught.value.__notes__ if "jnp.zeros_like" in note]
    assert 'jax.lax.pcast(value, ("replica",), to="varying")' in note
    assert "jnp.full_like(own, value)" in note


LOOPS = [name for name in PROGRAMS if "scan" in name or "loop" in name]
CURES = [(name, of_the_data) for name in PROGRAMS] + [(name, own) for name in LOOPS]


@pytest.mark.parametrize(("name", "start"), CURES)
def test_the_cures_run_on_several_replicas_and_on_one(two, rows, name, start):
    def step(rows):
        return PROGRAMS[name](rows, start(rows))

    result = two.run(step, args=(rows,))
    alone = rx.OneDeviceStrategy("cpu:0")
    expected = [float(alone.run(step, args=(np.asarray(own),))) for own in two.local_results(rows)]
    found = [float(value) for value in two.local_results(result)]
    assert found == (expected if isinstance(result, rx.PerReplica) else [sum(expected)] * 2)


@pytest.mark.parametrize("other", [lambda x: x + "a", lambda x: jnp.dot(x, jnp.ones(3)), lambda x: int("a")])
def test_other_errors_get_no_such_note(two, rows, other):
    with pytest.raises((TypeError, ValueError)) as caught:
        two.run(other, args=(rows,))
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "strategy.run" in note]
