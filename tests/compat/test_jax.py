from __future__ import annotations

import ast
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from jaxlib import xla_client

from replicax.compat.jax import array_of_parts, axes_of_type, is_random_key, is_weak, refuse_as_argument, strongly_typed
from replicax.compat.jax_equations import bind, called_on_host, location, run_as_one, scan_counts
from replicax.compat.jax_primitives import stand_in
from replicax.compat.jax_processes import backends_have_started, collectives_are_gloo, connected_as
from replicax.compat.jax_tracing import (
    being_differentiated,
    note_inner_read,
    outside_traces,
    primal_of,
    trace_readers_anew,
    tracing_anew,
)
from tests.compat.guards import compat_file, needs
from tests.each import each

FILES = ("jax", "jax_equations", "jax_errors", "jax_primitives", "jax_processes", "jax_tracing")


def private_names():
    """Returns what compat uses of JAX's private modules, as `module.attribute`."""
    found = set()
    for file in FILES:
        tree = ast.parse(compat_file(file).read_text())
        modules = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("jax.")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.add(f"{modules[node.value.id]}.{node.attr}")
    return sorted(found)


def test_private_names_are_found():
    assert {"jax._src.core.trace_state_clean", "jax._src.distributed.global_state"} <= set(private_names())


def test_jax_still_has():
    each(private_names(), lambda name: needs("jax", name, lambda: pkgutil.resolve_name(name)))


def test_an_array_is_made_of_the_memory_of_each_device():
    needs("jaxlib", "xla_client.batched_device_put", lambda: xla_client.batched_device_put)
    first, second = devices = jax.devices()[:2]
    value = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(2, 3), first)
    everywhere = jax.NamedSharding(jax.make_mesh((2,), ("x",), devices=devices), jax.P())
    made = array_of_parts(value.aval, everywhere, devices, [value, np.asarray(value)])
    assert (made.sharding, made.committed, made.dtype) == (everywhere, True, np.float32)
    assert [shard.device for shard in made.addressable_shards] == [first, second]
    pointers = {shard.data.unsafe_buffer_pointer() for shard in made.addressable_shards}
    assert pointers == {value.unsafe_buffer_pointer()}
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(made), np.asarray(value) + 1)


def test_a_type_says_over_which_axes_its_values_vary():
    aval = jax.typeof(jnp.ones(2))
    needs("jax", "ShapedArray.vma or .manual_axis_type", lambda: getattr(aval, "vma", None) or aval.manual_axis_type)
    assert axes_of_type(aval) == frozenset()


def test_the_coordination_service_is_asked_by_names_that_it_has():
    service = needs("jaxlib", "_jax.DistributedRuntimeClient", lambda: _jaxlib().DistributedRuntimeClient)
    tree = ast.parse(compat_file("jax_processes").read_text())
    asked = {ast.unparse(node).rpartition(".")[2] for node in ast.walk(tree) if is_of_service(node)}
    assert "key_value_set_bytes" in asked
    for name in asked:
        needs("jaxlib", f"DistributedRuntimeClient.{name}", lambda: getattr(service, name))  # noqa: B023
    for name in ("client", "process_id", "num_processes"):
        needs("jax", f"distributed.global_state.{name}", lambda: getattr(_global_state(), name))  # noqa: B023


def is_of_service(node):
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "_service()"


def _jaxlib():
    from jax._src.lib import _jax

    return _jax


def _global_state():
    from jax._src.distributed import global_state

    return global_state


def test_this_process_is_alone_and_has_looked_for_devices():
    jax.devices()
    assert backends_have_started()
    assert connected_as() == (0, 1)
    assert collectives_are_gloo()  # What JAX takes by itself.


def test_an_equation_runs_on_other_operands():
    [equation] = jax.make_jaxpr(lambda x: x * 3)(2.0).eqns
    assert bind(equation, [5.0, 3.0], equation.params) == [15.0]
    assert "test_jax.py" in location(equation)


def test_a_program_becomes_one_call():
    program = jax.make_jaxpr(lambda x: (x + 1, x * 2))(1.0)
    made = jax.make_jaxpr(lambda x: run_as_one("both", program, [x]))(1.0)
    [call] = made.jaxpr.eqns
    assert call.params["name"] == "both"
    assert jex_core.jaxpr_as_fun(made)(4.0) == [5.0, 8.0]


def test_a_loop_says_what_it_carries():
    [equation] = jax.make_jaxpr(
        lambda x, y: jax.lax.scan(lambda carry, row: ((carry[0] * y, carry[1] + row), None), (x, x), jnp.ones(3))
    )(1.0, 2.0).eqns[-1:]
    assert scan_counts(equation.params) == (1, 2)


def test_the_host_function_of_a_call_is_named():
    program = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x))(1.0)
    assert called_on_host(program.eqns[-1]) in ("sin", "")

    def on_host(x):
        return x

    program = jax.make_jaxpr(lambda x: jax.pure_callback(on_host, jax.ShapeDtypeStruct((), np.float32), x))(1.0)
    assert called_on_host(program.eqns[-1]).endswith("on_host")


def test_an_object_is_refused_with_our_error():
    class Refused:
        pass

    class OurError(Exception):
        pass

    refuse_as_argument(Refused, lambda value: OurError(f"not {type(value).__name__}"))
    for use in (jnp.sin, jax.jit(lambda x: x)):
        with pytest.raises(OurError, match="not Refused"):
            use(Refused())


def test_weak_types_and_random_keys_are_known():
    assert is_weak(jnp.asarray(1.0))
    assert not is_weak(strongly_typed(1.0))
    assert is_random_key(jax.random.key(0))
    assert not is_random_key(jnp.ones(2))


def test_what_is_differentiated_is_found():
    seen = []

    def fn(x):
        seen.append((being_differentiated(), primal_of(x)))
        return x * 2

    value = jnp.float32(3.0)
    jax.grad(fn)(value)
    ids, primal = seen[0]
    assert primal == 3.0
    assert id(primal) in ids
    assert being_differentiated() == set()


def test_outside_of_traces_operations_are_done_at_once():
    @jax.jit
    def fn(x):
        with outside_traces():
            assert not isinstance(jnp.ones(2) + 1, jax.core.Tracer)
        return x

    fn(1.0)


def test_functions_are_traced_anew():
    count = []
    fn = jax.jit(lambda x: (count.append(1), x)[1])
    fn(1.0)
    fn(1.0)
    assert len(count) == 1
    with tracing_anew():
        fn(1.0)
    assert len(count) == 2


def test_readers_of_a_variable_are_traced_anew_until_the_context_ends():
    count, variable = [], object()
    fn = jax.jit(lambda x: (count.append(1), x)[1])
    fn(1.0)
    with tracing_anew():
        fn(1.0)
        note_inner_read(variable)
        trace_readers_anew(object())
        fn(1.0)
        assert len(count) == 2
        trace_readers_anew(variable)
        fn(1.0)
        assert len(count) == 3
    fn(1.0)
    assert len(count) == 3


def test_a_stand_in_has_its_type():
    made = jax.make_jaxpr(lambda: stand_in((2, 3), np.dtype("float32")))()
    assert made.out_avals[0].shape == (2, 3)
