"""Workers compare the arguments that each has made for itself: what they see of them, in the first call and later."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.program.host_arguments import HostArguments
from replicax.program.pytrees import flatten_inputs
from replicax.runtime.call_order import ArgumentValue
from replicax.values import PerReplica


def step(batch: Any, rate: Any, *more: Any, training: Any = True) -> None:
    pass


def seen(*args: Any, is_first: bool = True, fn: Any = step, **kwargs: Any) -> dict[str, ArgumentValue]:
    arrays, structure = flatten_inputs((args, kwargs))
    found = HostArguments.of(fn, structure, arrays)
    return {} if found is None else {each.name: each for each in found.values(arrays, is_first)}


def test_arguments_have_the_names_that_the_function_gives_them():
    batch = PerReplica(np.arange(6.0).reshape(2, 3))
    found = seen(batch, {"a": 0.5, "b": jnp.ones(2)}, np.ones((2, 3)), "adam", training=False)
    assert {name: each.shown for name, each in found.items()} == {
        "rate['a']": "0.5",
        "args[2]": "float64(2, 3) [1.0, 1.0, 1.0, 1.0, ...] (checksum 29dd1225)",
        "args[3]": "'adam'",
        "training": "False",
    }
    assert {name for name, each in found.items() if each.is_fixed} == {"args[3]", "training"}
    assert set(seen(batch, 0.5, training=1, is_first=False)) == {"rate", "training"}  # A flag is in the program itself.
    assert set(seen(1.0, fn=lambda *args: None)) == {"args[0]"}
    assert seen(batch, jnp.ones(2)) == {}


def test_modules_of_flax_are_no_numbers():
    nnx = pytest.importorskip("flax.nnx")
    assert set(seen(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), [0.5])) == {"rate[0]"}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (0.0, 0.1), (1, 2), (1j, 2j), (np.float32(1), np.float32(2)), (0.0, -0.0), (float("inf"), 1e300), (1, 1.0),
        (np.arange(3), np.arange(1, 4)), (np.zeros(3), np.zeros(4)), (np.zeros(2, bool), np.ones(2, bool)),
        (np.full(2, 1.5, jnp.bfloat16), np.full(2, 2.5, jnp.bfloat16)), (np.zeros((0, 2)), np.zeros((0, 3))),
    ],
)  # fmt: skip
def test_values_that_differ(mine: Any, theirs: Any):
    assert seen(None, mine) != seen(None, theirs)
    assert seen(None, mine) == seen(None, mine)


def test_numbers_are_compared_as_the_program_computes_with_them():
    assert seen(None, 0.1)["rate"].checksum == seen(None, np.nextafter(0.1, 1).item())["rate"].checksum
    assert seen(None, float("nan")) == seen(None, float("nan"))


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_large_array_each_call_looks_at_some_numbers_and_the_first_at_all(is_first: bool):
    mine = np.zeros((1000, 100), np.float32)
    shifted, one = mine + np.float32(0.1), mine.copy()
    one[999, 98] = 1.0
    assert seen(None, mine, is_first=is_first) != seen(None, shifted, is_first=is_first)
    assert (seen(None, mine, is_first=is_first) != seen(None, one, is_first=is_first)) == is_first


def test_an_array_that_is_filled_anew_is_looked_at_anew():
    array = np.zeros(4)
    arrays, structure = flatten_inputs(((None, array, 0.5), {}))
    own = HostArguments.of(step, structure, arrays)
    assert own is not None
    before = own.values(arrays, False)
    assert own.values(arrays, False) == before
    array[2] = 1.0
    after = own.values(arrays, False)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
    assert own.values([arrays[0], 0.25], False)[1].shown == "0.25"
