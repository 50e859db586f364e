"""What an editor says about code that uses the library. The pages themselves are checked by `make docs-check`."""

from __future__ import annotations

import importlib.resources

import pytest

from tests.docs_types import errors_in

CODE = """
from typing import Any, assert_type

import jax
import jax.numpy as jnp

import replicax as rx

strategy = rx.MirroredStrategy()
weight = rx.Variable(1.0)


@rx.function
def add(x: int, *, y: str = "") -> float:
    return x + len(y)


@rx.function(donate_argnums=(0,))
def donates(x: int) -> float:
    return x


class Model:
    @rx.function
    def call(self, x: int) -> str:
        return str(x)


def pair(batch: jax.Array) -> tuple[dict[str, int], str]:
    return {}, ""


def loss_fn(batch: jax.Array) -> jax.Array:
    return jnp.sum(batch)


assert_type(add(1, y="a"), float)
assert_type(donates(1), float)
assert_type(Model().call(1), str)
assert_type(strategy.run(pair, args=(1,)), tuple[dict[str, int], str])
assert_type(strategy.run(loss_fn, args=(1,)), Any)
assert_type(rx.value_and_grad(loss_fn, [weight])(jnp.ones(3)), tuple[jax.Array, Any])
rx.get_replica_context().all_reduce("sum", 1)
add("one")
add(1, z=2)
Model().call("one")
rx.value_and_grad(loss_fn, [weight])("one")
rx.MiroredStrategy
strategy.extended
"""


@pytest.mark.nightly
def test_the_public_surface_has_types_that_an_editor_can_use():
    pytest.importorskip("basedpyright")
    errors = errors_in({"code": CODE})
    first_wrong = CODE.splitlines().index('add("one")') + 1
    lines = [int(error.split(":")[1]) for error in errors]
    assert sorted(set(lines)) == list(range(first_wrong, first_wrong + 6)), "\n".join(errors)


def test_the_package_says_that_it_has_types():
    assert (importlib.resources.files("replicax") / "py.typed").is_file()
