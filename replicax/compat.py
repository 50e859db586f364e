"""What differs between JAX versions, and the few JAX facilities that have no finished public spelling.

Everything else in replicax uses documented JAX only. Supported: JAX 0.10, 0.11 and 0.12.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np
from jax._src import compiler as jax_compiler
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import distributed as jax_distributed
from jax._src import dtypes as jax_dtypes
from jax._src import source_info_util as jax_source_info
from jax._src import xla_bridge
from jax._src.lib import _jax as jaxlib
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec


def varying_axes(x: Any) -> frozenset[str]:
    """Returns the manual mesh axes over which `x` may differ (its "varying manual axes").

    Args:
        x: Any value that JAX can type; a Python number varies over no axis.
    """
    return axes_of_type(jax.typeof(x))


def axes_of_type(aval: Any) -> frozenset[str]:
    """Returns the manual mesh axes over which values of a type may differ."""
    axes = getattr(aval, "vma", None)
    if axes is None:
        # JAX 0.10; types of effects have neither.
        axes = aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else ()
    return frozenset(axes)


def bind(equation: Any, inputs: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """Returns the results of an equation of a traced program, on other operands or with other parameters.

    Errors and profiles go on to name the line of the user's code that it comes from.
    """
    found = equation.primitive.get_bind_params(params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # They are among the parameters today.
    source = equation.source_info
    scopes_here = jax_source_info.current_name_stack() + source.name_stack
    with jax_source_info.user_context(source.traceback, name_stack=scopes_here):
        results = equation.primitive.bind(*functions, *inputs, **params)
    return results if equation.primitive.multiple_results else [results]


def run_as_one(name: str, program: jex_core.ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Returns the results of a program: in a trace it is noted as one call of a compiled function, as it stands.

    Args:
        name: The function's name, for profiles.
        program: A program whose types are those of the place: on its mesh, or on none.
        inputs: Its operands.
    """

    def alike(*operands: Any) -> list[float]:
        return [0.0] * len(program.jaxpr.outvars)

    alike.__name__ = alike.__qualname__ = name
    [call] = jax.make_jaxpr(jax.jit(alike))(*[0.0] * len(inputs)).eqns
    return list(bind(call, inputs, {**call.params, "jaxpr": program}))


def meshless(aval: Any) -> Any:
    """Returns a type without the mesh that JAX has noted in it; its values do not vary over that."""
    return aval.update(sharding=None) if getattr(aval, "sharding", None) is not None else aval


def called_from(outer: Any, inner: Any) -> Any:
    """Returns where an equation of a called function comes from (`source_info`), named also by the scopes of the call.

    Args:
        outer: Where the call comes from.
        inner: Where the equation does.
    """
    return inner.replace(name_stack=outer.name_stack + inner.name_stack) if outer.name_stack.stack else inner


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constants of its loop, and how many it carries, which come next."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # JAX 0.12.
    return len(list(consts)), len(list(carry))


def vary(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as varying over `axis_name`; free at run time. A value that varies already is returned as it is."""
    if axis_name in varying_axes(x):
        return x
    return jax.lax.pcast(x, (axis_name,), to="varying")


def strongly_typed(x: Any, dtype: Any = None) -> jax.Array:
    """Returns `x` as an array whose dtype is its own, not "weak" like that of a Python number.

    A program is specialised to that too, so state that starts weak would be compiled for twice. A NumPy array is
    copied: on a CPU JAX may go on using its memory, which its owner may change.
    """
    array = x if isinstance(x, jax.Array) and dtype is None else jax.numpy.array(x, dtype, copy=type(x) is np.ndarray)
    return jax.lax.convert_element_type(array, array.dtype) if is_weak(array) else array


def unknown_axes(error: BaseException) -> tuple[str, ...]:
    """Returns the names of axes that a collective asked for in vain, if that is what an error of JAX's is about.

    A `NameError` says so. Of a value that may differ already, JAX 0.10 asserts it without a word.
    """
    if isinstance(error, NameError):
        return tuple(re.findall(r"unbound axis name: (\w+)", str(error)))
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not isinstance(error, AssertionError) or frame.f_code is not jax_core.pvary.__code__:
        return ()
    return tuple(axis for axis in frame.f_locals["axes"] if axis not in frame.f_locals["new_axes"])


def refuse_as_argument(kind: type, error_of: Callable[[Any], Exception]) -> None:
    """Lets JAX's functions raise an error of ours when they get an object of a class, or of a subclass, for an array.

    JAX would say that `__jax_array__` is not supported there, and not what to do instead.

    Args:
        kind: The class.
        error_of: Makes the error from the object. It must be no `TypeError`, which JAX would hide.
    """

    def refuse(value: Any) -> Any:
        raise error_of(value)

    jax_core.pytype_aval_mappings[kind] = refuse
    register = getattr(jax_dtypes, "register_canonicalize_value_handler", None)
    if register is not None:
        register(kind, refuse)


def is_weak(array: jax.Array) -> bool:
    """Returns whether an array's dtype is weak; those of random keys never are."""
    return getattr(array, "weak_type", False)


def is_random_key(value: Any) -> TypeGuard[jax.Array]:
    """Returns whether `value` is an array of JAX random keys, which NumPy and files know only as `key_data`."""
    return isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def trace_state() -> Any:
    """Returns a token of the innermost JAX trace; two equal tokens mean the same trace."""
    return jex_core.get_opaque_trace_state()


def is_tracing() -> bool:
    """Returns whether the code runs inside a function that JAX traces or transforms."""
    return not jax_core.trace_state_clean()


def is_kept_by_jax() -> bool:
    """Returns whether JAX traces a function into a program: then what it finds now is used in later calls too.

    A function that is only differentiated or mapped (`jax.grad`, `jax.vmap` outside of `jax.jit`) runs anew each time.
    """
    trace = current_trace()
    while trace is not None:
        if type(trace).__name__ == "DynamicJaxprTrace":
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def outside_traces() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which operations on known values are done at once, whatever function is being traced.

    That is what `jax.ensure_compile_time_eval` is for; but where `jax.shard_map` runs op by op it keeps to its devices.
    """
    trace = current_trace()
    return jax_core.eval_context() if type(trace).__name__ == "ShardMapTrace" else jax.ensure_compile_time_eval()


def current_trace() -> Any:
    """Returns JAX's innermost trace, for `within_trace`."""
    with jex_core.take_current_trace() as trace:
        return trace


def within_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which JAX's operations belong to a trace that encloses the innermost one."""
    return jex_core.set_current_trace(trace)


def being_differentiated() -> set[int]:
    """Returns the ids of the values with respect to which the innermost trace differentiates; none if it does not.

    JAX does not keep a list of them, so this looks through all objects: some 0.05 s.
    """
    trace = current_trace()
    if type(trace).__name__ not in ("JVPTrace", "LinearizeTrace"):
        return set()
    tracers = [found for found in gc.get_objects() if isinstance(found, jax.core.Tracer) and found._trace is trace]
    return {id(tracer.primal) for tracer in tracers if hasattr(tracer, "primal")}


def primal_of(value: Any) -> Any:
    """Returns the value in a tracer that stands for it while JAX differentiates, op by op; others as they are."""
    while isinstance(value, jax.core.Tracer) and getattr(value, "primal", None) is not None:
        value = value.primal
    return value


# JAX proves equality over an axis only for its own collectives (`psum`, ...). An algorithm built from `ppermute` ends
# with equal values too, but no rule can see that: this identity states it. With `proven=False` it only retypes.
_assert_equal_p = jex_core.Primitive("replicax_assert_equal_over_axis")


@_assert_equal_p.def_impl
def _assert_equal_impl(x: jax.Array, *, axis_name: str, proven: bool) -> jax.Array:
    del axis_name, proven
    return x


@_assert_equal_p.def_abstract_eval
def _assert_equal_abstract(aval: Any, *, axis_name: str, proven: bool) -> Any:
    del proven
    if hasattr(aval, "vma"):
        return aval.update(vma=aval.vma - {axis_name})
    axis_type = aval.manual_axis_type
    return aval.update(manual_axis_type=axis_type.update(varying=axis_type.varying - {axis_name}))


mlir.register_lowering(_assert_equal_p, lambda context, x, *, axis_name, proven: [x])
batching.defvectorized(_assert_equal_p)


def _assert_equal_transpose(cotangent: Any, x: Any, *, axis_name: str, proven: bool) -> list[Any]:
    del proven
    # One value was made of equal copies: each device's copy has an equal share in it.
    return [vary(cotangent / jax.lax.axis_size(axis_name), axis_name)]


ad.deflinear2(_assert_equal_p, _assert_equal_transpose)


def assert_equal_over_axis(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as equal over `axis_name`: a promise of the caller, not checked.

    Only for values that a collective algorithm has made bitwise equal on every device of the axis.
    """
    return _assert_equal_p.bind(x, axis_name=axis_name, proven=True)


def taken_as_equal_over_axis(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as equal over `axis_name`; the search for what differs (`program/divergence.py`) looks through it."""
    return _assert_equal_p.bind(x, axis_name=axis_name, proven=False)


# What stands for a value that is not known yet. It has no lowering: a program in which it is left means nothing.
_stand_in_p = jex_core.Primitive("replicax_stand_in")


@_stand_in_p.def_abstract_eval
def _stand_in_abstract(*, aval: Any) -> Any:
    return aval


def stand_in(shape: Sequence[int], dtype: Any) -> jax.Array:
    """Returns a traced array of a shape and dtype, in the innermost trace, on the mesh of the place."""
    mesh = jax.sharding.get_abstract_mesh()
    sharding = None if mesh.empty else NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))
    return _stand_in_p.bind(aval=jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding))


def backends_have_started() -> bool:
    """Returns whether JAX has looked for devices: then it is too late to start `jax.distributed`."""
    return xla_bridge.backends_are_initialized()


@contextlib.contextmanager
def without_preemption_service() -> Iterator[None]:
    """Keeps `jax.distributed.initialize`, called in the block, from catching SIGTERM.

    JAX catches it for its preemption service, whether or not somebody asks that: the signal would end no process any
    more. Who wants JAX's service sets `JAX_ENABLE_PREEMPTION_SERVICE` in the environment.
    """
    name = "jax_enable_preemption_service"
    if name.upper() in os.environ or not hasattr(jax.config, name):
        yield
        return
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    try:
        yield
    finally:
        jax.config.update(name, before)


def connected_as() -> tuple[int, int]:
    """Returns number and count of the processes that `jax.distributed` connects; JAX's own would start the devices."""
    state = jax_distributed.global_state
    return state.process_id, state.num_processes


def give_up_connecting() -> None:
    """Lets the process end in its own way while `jax.distributed.initialize` still waits, in a thread.

    At exit JAX would wait for the others to say goodbye with it, which were never connected.
    """
    jax_distributed.global_state.client = None


def let_collectives_listen_at(ip: str) -> None:
    """Lets XLA's collectives between CPUs (Gloo) listen at one IP address of this machine.

    By itself JAX takes what the machine's name stands for. It must be called before JAX looks for devices. Other
    collectives than Gloo (MPI) are left as they are.
    """

    def make_client() -> Any:
        connection = jax_distributed.global_state.client
        if connection is None or not collectives_are_gloo():
            return xla_bridge.make_cpu_client()
        return xla_bridge.make_cpu_client(jaxlib.make_gloo_tcp_collectives(connection, hostname=ip))

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def collectives_are_gloo() -> bool:
    """Returns whether XLA's collectives between CPUs are those of Gloo, which listen at ports of their own."""
    return bool(jax_config.cpu_collectives_implementation.value == "gloo")


def wait_at_barrier(name: str, timeout_ms: int, processes: Sequence[int]) -> None:
    """Waits until all of `processes` wait at the barrier `name` of JAX's coordination service.

    JAX's public barrier (`multihost_utils.sync_global_devices`) computes on the devices and so has no timeout.

    Args:
        name: Name of the barrier. It can be used again after it has let all pass, not after a timeout.
        timeout_ms: How long to wait, in milliseconds.
        processes: The process indices that take part, this one among them.

    Raises:
        jax.errors.JaxRuntimeError: Not all came in time, or the service is gone.
    """
    _service().wait_at_barrier(name, timeout_ms, list(processes))


def store_bytes(key: str, value: bytes) -> None:
    """Puts `value` under a new `key` into the key-value store of JAX's coordination service, which process 0 keeps.

    Raises:
        jax.errors.JaxRuntimeError: The key is taken, or the service is gone.
    """
    _service().key_value_set_bytes(key, value)


def fetch_bytes(key: str, timeout_s: float) -> bytes | None:
    """Returns what a process has stored under `key`; None if nobody has within `timeout_s` seconds.

    Raises:
        jax.errors.JaxRuntimeError: The service is gone.
    """
    return _found_in_time(_service().blocking_key_value_get_bytes, key, max(1, round(1000 * timeout_s)))


def delete_stored(key: str) -> None:
    """Removes `key`, and all keys that begin with `key/`, from the store."""
    _service().key_value_delete(key)


def publish(key: str, value: str) -> None:
    """Tells all processes a value, through the key-value store of JAX's coordination service."""
    _service().key_value_set(key, value, allow_overwrite=True)


def published(key: str, timeout_ms: int) -> str | None:
    """Returns what some process has published under `key`, or None if none has after `timeout_ms` milliseconds.

    Raises:
        jax.errors.JaxRuntimeError: The coordination service is gone.
    """
    return _found_in_time(_service().blocking_key_value_get, key, timeout_ms)


def _service() -> Any:
    client = jax_distributed.global_state.client
    assert client is not None, "jax.distributed is not initialized"
    return client


def _found_in_time(get: Callable[[str, int], Any], key: str, timeout_ms: int) -> Any:
    """Returns what `get` finds under `key`, None if the time is up before."""
    try:
        return get(key, timeout_ms)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


@functools.cache
def write_compilation_cache_from_every_process() -> None:
    """Lets each CPU process write what it compiles into JAX's compilation cache.

    JAX leaves the writing to process 0. But the programs of CPU processes are kept under different names, so that after
    a restart the others would not find theirs.
    """
    write = jax_compiler._cache_write

    @functools.wraps(write)
    def write_as_first(*args: Any, **kwargs: Any) -> None:
        # The backend is the fourth argument.
        if args[3].platform != "cpu":
            write(*args, **kwargs)
            return
        state = jax_distributed.global_state
        process_id, state.process_id = state.process_id, 0
        try:
            write(*args, **kwargs)
        finally:
            state.process_id = process_id

    jax_compiler._cache_write = write_as_first


@functools.cache
def _trace_context() -> Any:
    return jax.make_user_context(default_value=None)


def prepare_tracing_anew() -> None:
    """Makes `tracing_anew` possible. Doing it makes JAX forget what it has traced, so it is done early."""
    _trace_context()


def tracing_anew() -> Any:
    """Returns a context in which JAX traces functions under `jax.jit` that it has traced before, too.

    What it has kept of them may go by the variables' values of another program, or by what was equal there.
    """
    return _trace_context()(object())


def location(equation: Any) -> str:
    """Returns where in the user's code an equation of a traced program comes from: `file:line (function)`."""
    return jax_source_info.summarize(equation.source_info)


def called_on_host(equation: Any) -> str:
    """Returns the name of the function of the host that an equation of a traced program calls, if JAX knows it."""
    return getattr(getattr(equation.params["callback"], "callback_func", None), "__qualname__", "")


def scopes(equation: Any) -> str:
    """Returns the names of the scopes and transformations that an equation of a traced program comes from."""
    return str(equation.source_info.name_stack)
