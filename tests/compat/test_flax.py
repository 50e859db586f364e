"""The names of flax that `compat/flax.py` uses: what they are, and that nothing stays changed."""

from __future__ import annotations

from types import MemberDescriptorType

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
import replicax.compat.flax as flax_door

nnx = pytest.importorskip("flax.nnx")


def hooks():
    owners = (nnx.Variable, nnx.Variable, nnx.pytreelib.PytreeState, nnx.Pytree, nnx.Pytree)
    names = ("_raw_value", "_trace_state", "trace_state", "_setattr", "__delattr__")
    return [vars(owner)[name] for owner, name in zip(owners, names, strict=True)]


def test_the_names_are_known():
    assert flax_door.nnx() is nnx
    assert all(isinstance(vars(nnx.Variable)[name], MemberDescriptorType) for name in ("_raw_value", "_trace_state"))
    module = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    assert {"_pytree__state", "_pytree__nodes"} <= set(vars(module))
    assert not any(name.startswith("_pytree__") for name in flax_door.attributes_of(module))


@pytest.mark.parametrize("fails", [False, True])
def test_flax_is_as_it_was_after_a_trace(fails):
    before = hooks()
    weight = nnx.Param(jnp.ones(()))

    def step():
        assert hooks() != before
        weight[...] += 1.0
        if fails:
            raise KeyError("mine")

    if fails:
        with pytest.raises(KeyError, match="mine"):
            rx.function(step)()
    else:
        rx.function(step)()
    assert hooks() == before
    assert float(weight[...]) == (1.0 if fails else 2.0)


def test_from_outside_is_what_no_trace_has_made():
    weight, module = nnx.Param(jnp.ones(())), nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    assert flax_door.is_from_outside(weight)
    assert flax_door.is_from_outside(module)
    found = []

    @jax.jit
    def traced(x):
        inner = nnx.Param(x)
        found.extend([flax_door.is_from_outside(weight), flax_door.is_from_outside(inner)])
        flax_door.move_outside(inner)
        found.append(flax_door.is_from_outside(inner))
        return x

    traced(1.0)
    assert found == [True, False, True]
    assert flax_door.is_from_outside(nnx.clone(module))


def test_attributes_are_set_and_removed():
    module = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    flax_door.set_attributes(module, {"rate": 0.25}, ["deterministic"])
    assert module.rate == 0.25
    assert "deterministic" not in vars(module)
