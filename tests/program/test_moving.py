"""Equations that were traced inside `shard_map` run outside of it, as one call, and keep the user's lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from jax.sharding import PartitionSpec

from replicax.compat.jax_equations import location, scopes
from replicax.program.ir.moving import Moved, evaluate_as_one
from replicax.runtime import REPLICA_AXIS, replica_mesh


def traced_in_a_map(fn, *args):
    """Returns the program of `fn` as it is traced on the mesh of two replicas, with calls as they are."""
    found = []

    def body(*args):
        found[:] = [jax.make_jaxpr(fn)(*args)]
        return args

    mesh = replica_mesh(jax.devices()[:2])
    specs = tuple(PartitionSpec() for _ in args)
    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs), *args)
    return found[0]


def moved(program):
    jaxpr = program.jaxpr
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    return Moved("moved", jaxpr, jaxpr.eqns, inputs, jaxpr.outvars)


@jax.jit
def scaled(x, by):
    return x * by + jnp.where(x > 1, x, 0.5)


def step(x, count):
    with jax.named_scope("update"):
        x = scaled(x, 2.0)
    return x / jnp.sqrt(count + 1), jnp.power(0.9, count), x.astype(jnp.bfloat16), scaled(x, 3.0)


ARGS = jnp.ones(3) * 1.5, jnp.int32(2)


def test_the_results_and_their_types_are_those_of_the_function():
    program = moved(traced_in_a_map(step, *ARGS))
    results = jax.jit(lambda x, count: program([x, count]))(*ARGS)
    for found, expected in zip(results, jax.jit(step)(*ARGS), strict=True):
        assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
        np.testing.assert_array_equal(found, expected)


def test_it_is_one_call_without_calls_in_it_and_without_a_mesh():
    program = moved(traced_in_a_map(step, *ARGS))
    outside = jax.make_jaxpr(lambda x, count: program([x, count]))(*ARGS)
    [call] = outside.eqns
    assert call.params["name"] == "moved"
    inner = call.params["jaxpr"].jaxpr
    assert not [e for e in inner.eqns if list(jex_core.jaxprs_in_params(e.params))]
    atoms = [atom for e in inner.eqns for atom in [*e.invars, *e.outvars]]
    assert len(atoms) > 10
    assert all(atom.aval.sharding.mesh.empty for atom in atoms)
    assert all(e.ctx.cur_abstract_mesh is None or e.ctx.cur_abstract_mesh.empty for e in inner.eqns)


def test_it_runs_on_any_device():
    program = moved(traced_in_a_map(step, *ARGS))
    there = jax.device_put(ARGS, jax.devices()[5])
    results = jax.jit(lambda x, count: program([x, count]))(*there)
    assert {d for result in results for d in result.devices()} == {jax.devices()[5]}


def test_each_equation_keeps_its_line_and_its_scopes():
    program = moved(traced_in_a_map(step, *ARGS))
    [call] = jax.make_jaxpr(lambda x, count: program([x, count]))(*ARGS).eqns
    equations = call.params["jaxpr"].eqns
    [root] = [e for e in equations if e.primitive.name == "sqrt"]
    assert "test_moving.py" in location(root)
    assert "(step)" in location(root)
    products = [e for e in equations if e.primitive.name == "mul"]
    assert ["update" in scopes(e) for e in products] == [True, False]


def test_it_can_be_differentiated_and_mapped():
    program = moved(traced_in_a_map(lambda x: jnp.sum(jnp.sin(x) * 2.0), jnp.ones(3)))

    def loss(x):
        return program([x])[0]

    x = jnp.linspace(0.0, 1.0, 3)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 2 * np.cos(x), rtol=1e-6)
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.jit(jax.vmap(loss))(rows), np.sum(2 * np.sin(rows), axis=1), rtol=1e-6)


@pytest.mark.parametrize("inputs", [0, 1])
def test_what_needs_nothing_and_what_is_taken_as_it_is(inputs):
    fn = (lambda: jnp.zeros(2) + 1.0) if inputs == 0 else (lambda x: x + 1.0)
    args = [jnp.zeros(2)] * inputs
    program = moved(traced_in_a_map(fn, *args))
    np.testing.assert_array_equal(jax.jit(lambda *args: program(args))(*args)[0], [1.0, 1.0])


def over_two_replicas(fn, count, *args):
    """Returns what two replicas compute whose equations run as one call, and the equations of their program."""
    found = []

    def body(*args):
        program = jax.make_jaxpr(fn)(*args)
        values = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, *args], strict=True))
        traced = jax.make_jaxpr(lambda: evaluated(program, values))()
        found[:] = traced.eqns
        return evaluated(program, values)

    def evaluated(program, values):
        values = dict(values)
        evaluate_as_one(program.jaxpr, program.jaxpr.eqns, values, program.jaxpr.outvars)
        return [values[atom] for atom in program.jaxpr.outvars]

    own, all_alike = PartitionSpec(REPLICA_AXIS), PartitionSpec()
    mapped = jax.shard_map(body, mesh=replica_mesh(jax.devices()[:2]), in_specs=own, out_specs=[all_alike] * count)
    return jax.jit(mapped)(*args), found


def test_sums_over_the_replicas_are_made_in_one_call():
    constant = jnp.arange(2.0)
    (total, same), [call] = over_two_replicas(
        lambda x: [jax.lax.psum(x * constant, REPLICA_AXIS), constant + 1], 2, jnp.arange(8.0).reshape(4, 2)
    )
    np.testing.assert_array_equal(total, [[0.0, 6.0], [0.0, 10.0]])
    np.testing.assert_array_equal(same, [1.0, 2.0])
    assert call.params["name"] == "on_replicas"


def test_what_stores_in_mutable_arrays_is_evaluated_by_itself():
    def stored(x):
        memory = jax.new_ref(jax.lax.psum(x, REPLICA_AXIS))
        memory[...] = memory[...] * 2
        return [memory[...]]

    [found], equations = over_two_replicas(stored, 1, jnp.ones(4))
    np.testing.assert_array_equal(found, [4.0, 4.0])
    assert len(equations) > 1
