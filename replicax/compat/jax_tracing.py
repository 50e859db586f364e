"""JAX's traces: whether there is one, which one it is, and how to step out of it."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Iterator

import jax
import numpy as np
from jax._src import config as jax_config, core as jax_core
from jax._src.core import Trace as Trace  # for who types traces
from jax.extend import core as jex_core

from replicax.typing import PyTree

# JAX's traces, by what becomes of an operation: it is done, noted in a program, done on several devices, or given to
# the trace around this one if its operands are known here. JAX has no other way to tell; without these names replicax
# looks at what JAX makes of an array of one number.
_AT_ONCE, _INTO_PROGRAM, _ON_DEVICES = "EvalTrace", "DynamicJaxprTrace", "ShardMapTrace"
_DIFFERENTIATE = ("JVPTrace", "LinearizeTrace")
_MAP, _MAPPED = "BatchTrace", "BatchTracer"
_PASS_CONSTANTS_ON = (*_DIFFERENTIATE, _MAP)


#: Returns whether the code runs in no function that JAX traces or transforms; `is_tracing` is its opposite.
trace_state_clean = jax_core.trace_state_clean


def trace_state() -> object:
    """Returns a token of the innermost JAX trace; two equal tokens mean the same trace."""
    return jex_core.get_opaque_trace_state()


def is_tracing() -> bool:
    """Returns whether the code runs inside a function that JAX traces or transforms."""
    # Without the name: `jax.extend.core.get_opaque_trace_state` compared with the one of a thread that traces nothing.
    return not trace_state_clean()


def restore_trace() -> None:
    """Lets operations of this thread be done at once again, where an interrupt has left JAX without a trace."""
    # JAX 0.12 takes its trace away around each operation, and an interrupt may come just before the `try` around that.
    if jax_core.trace_ctx.trace is None:
        jax_core.trace_ctx.set_trace(jax_core.eval_trace)


def constants_are_traced() -> bool:
    """Returns whether what is computed here is traced even if all operands are known, as in a constant."""
    # It is not where a function is only differentiated or mapped, nor in `jax.ensure_compile_time_eval`. JAX could be
    # asked by making an array, which takes a hundred times as long; that is what is done if the names here go.
    if trace_state_clean():
        return False
    trace = current_trace()
    while type(trace).__name__ in _PASS_CONSTANTS_ON:
        trace = getattr(trace, "parent_trace")  # noqa: B009  # Not every kind of trace has one.
    if type(trace).__name__ == _INTO_PROGRAM and jax_config.eager_constant_folding.value:
        return False
    return type(trace).__name__ != _AT_ONCE


def is_kept_by_jax() -> bool:
    """Returns whether JAX traces a function into a program: then what it finds now is used in later calls too."""
    # A function that is only differentiated or mapped (`jax.grad`, `jax.vmap` outside of `jax.jit`) runs anew each
    # time.
    trace: Trace | None = current_trace()
    while trace is not None:
        if type(trace).__name__ == _INTO_PROGRAM:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def is_on_devices() -> bool:
    """Returns whether the code runs inside `jax.shard_map`, operation by operation."""
    trace: Trace | None = current_trace()
    while trace is not None:
        if type(trace).__name__ == _ON_DEVICES:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def outside_traces() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which operations on known values are done at once, whatever function is being traced."""
    # That is what `jax.ensure_compile_time_eval` is for; but where `jax.shard_map` runs op by op it keeps to its
    # devices. Without the name of that trace: in another thread, which has no trace.
    trace = current_trace()
    return jax_core.eval_context() if type(trace).__name__ == _ON_DEVICES else jax.ensure_compile_time_eval()


def beside_traces() -> contextlib.AbstractContextManager[None]:
    """Returns a context for operations on arrays alone, none of which is traced: they are done at once."""
    # `outside_traces` also takes traced values, but does not reach what JAX puts on several devices in a replica.
    return jax_core.eval_context()


def tracing_all() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a function that is traced notes all operations, also those on known values."""
    # `jax.ensure_compile_time_eval`, in which variables get their first values, would have these done at once: also
    # while a program is compiled, of which large arrays would become constants.
    return jax_config.eager_constant_folding(False)


def current_trace() -> Trace:
    """Returns JAX's innermost trace, for `within_trace`."""
    with jex_core.take_current_trace() as trace:
        return trace


def within_trace(trace: Trace) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which JAX's operations belong to a trace that encloses the innermost one."""
    return jex_core.set_current_trace(trace)


def being_differentiated() -> set[int]:
    """Returns the ids of the values with respect to which the innermost trace differentiates; none if it does not."""
    trace = current_trace()
    if type(trace).__name__ not in _DIFFERENTIATE:
        return set()
    # JAX keeps no list of them, so this looks through all objects: some 0.05 s. Without the attributes `_trace` and
    # `primal` nothing is found.
    tracers = [found for found in gc.get_objects() if isinstance(found, jax.core.Tracer) and found._trace is trace]
    return {id(tracer.primal) for tracer in tracers if hasattr(tracer, "primal")}


def is_batching() -> bool:
    """Returns whether the innermost transformation that is no derivative is `jax.vmap`."""
    trace: Trace | None = current_trace()
    while type(trace).__name__ in _DIFFERENTIATE:
        trace = getattr(trace, "parent_trace", None)
    return type(trace).__name__ == _MAP


def is_batched(value: PyTree) -> bool:
    """Returns whether `jax.vmap` maps a value, which may be differentiated besides."""
    return type(primal_of(value)).__name__ == _MAPPED


def primal_of(value: PyTree) -> PyTree:
    """Returns the value in a tracer that stands for it while JAX differentiates, op by op; others as they are."""
    while isinstance(value, jax.core.Tracer) and getattr(value, "primal", None) is not None:
        value = value.primal
    return value


@functools.cache
def _trace_context() -> jax_config.UserConfig:
    # The class is for who types it: what makes it, its `value` and calling it are all public.
    return jax.make_user_context(default_value=None)


class _Traces:
    """The traces that JAX keeps under one value of `_trace_context`, which this is."""

    def __init__(self) -> None:
        # The ids of the variables that a function which JAX traced on its own has read meanwhile.
        self.readers_of: set[int] = set()


class _OutsideTraces(threading.local):
    """Those of a thread outside of all `tracing_anew`."""

    def __init__(self) -> None:
        self.traces = _Traces()


_outside_traces = _OutsideTraces()


def prepare_tracing_anew() -> None:
    """Makes `tracing_anew` possible. Doing it makes JAX forget what it has traced, so it is done early."""
    _trace_context()


def tracing_anew() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which JAX traces functions under `jax.jit` that it has traced before, too."""
    # JAX's cached traces may hold the variables' values of another program, or rest on what was equal there.
    return _trace_context()(_Traces())


def _readers_of() -> set[int]:
    traces: _Traces = _trace_context().value or _outside_traces.traces
    return traces.readers_of


def note_inner_read(variable: object) -> None:
    """Notes that a function which JAX traces on its own has read a variable: its cached trace holds that value."""
    _readers_of().add(id(variable))


def trace_readers_anew(variable: object = None) -> None:
    """Makes JAX trace functions anew from here on if one that it has traced has read `variable`; None: any variable."""
    # Where nothing was read JAX keeps its traces: making them again after each assignment of an optimizer, down to
    # those of `jnp.where`, would take long.
    read = _readers_of()
    if read if variable is None else id(variable) in read:
        trace_anew_from_here()


def trace_anew_from_here() -> None:
    """Makes JAX trace functions anew from here on, until the innermost `tracing_anew` ends."""
    tracing_anew().__enter__()


@contextlib.contextmanager
def traced_apart() -> Iterator[None]:
    """Does so before and after what is done in it: there, reading a variable gives another value."""
    trace_readers_anew()
    try:
        yield
    finally:
        trace_readers_anew()


def whole_stacks() -> contextlib.AbstractContextManager[object]:
    """Has JAX note whole stacks of calls in what it lowers here; by default it keeps the innermost ten frames."""
    # Without the name: lines of users are missing in plans of models of Keras.
    return jax_config.traceback_in_locations_limit(-1)


def conversion_of(array: np.ndarray) -> np.ndarray | None:
    """Returns JAX's own copy of an array whose dtype it does not have, such as float64; None if it needs none."""
    # JAX keeps it for as long as some program has it, whatever happens to the array meanwhile.
    if array.dtype.kind not in "fciu" or (dtype := jax.dtypes.canonicalize_dtype(array.dtype)) == array.dtype:
        return None
    like = jax.ShapeDtypeStruct(array.shape, dtype)
    for kept in jax.make_jaxpr(lambda like: jax.lax.add(like, array))(like).consts:
        if isinstance(kept, np.ndarray) and kept.flags.writeable:
            return kept.view(np.ndarray)
    return None
