"""Evaluating the equations of a step: flat, for one device, on whole values or on blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

import replicax.compat.jax_equations as jax_equations
from replicax.compat.jax_equations import location
from replicax.compat.jax_names import (
    CALLS,
    EQUALIZING_COLLECTIVES,
    LOCAL_WITH_AXES,
    NAME,
    PLACEMENT,
    RECOMPUTED,
    SHARD_MAP,
)
from replicax.errors import ProgramError
from replicax.program.blocks.rules import FIRST, Cut, Dimension
from replicax.program.ir.interpreter import Interpreter, bind, pass_on
from replicax.program.ir.jaxprs import is_literal, number_of
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.numbers import BLOCK_AXIS


def flat(step: Callable[..., Sequence[jax.Array]], kinds: Sequence[Any]) -> jex_core.ClosedJaxpr:
    """Returns a step as a flat program for one device: nothing in it is placed, called, or knows of replicas."""
    program = jax.make_jaxpr(step)(*kinds)
    return jax.make_jaxpr(lambda *args: _LOCAL.run(program, args))(*kinds)


def blockwise(
    equation: jex_core.JaxprEqn,
    operands: Sequence[Any],  # atoms, or values
    cut: Cut | None,
    values: dict[jex_core.Var, jax.Array],
    number: jax.Array | None = None,  # of the block
) -> Sequence[jax.Array]:
    """Returns the results of an equation, on whole values or on a block of them."""
    inputs = [value_of(atom, values) for atom in operands]
    if cut is None:
        return bind(equation, inputs)
    if cut.evaluate is not None:
        return cut.evaluate(number, *inputs)
    return bind(equation, inputs, **cut.params)


def value_of(atom: Any, values: dict[jex_core.Var, jax.Array]) -> Any:
    """Returns the value of an operand, which may be a value already."""
    if isinstance(atom, jex_core.Var):
        return values[atom]
    return number_of(atom) if is_literal(atom) else atom


def placed(value: Any, wanted: Dimension, number: jax.Array, blocks: int) -> Any:
    """Returns what a block gets of a whole value: a part along a dimension, or in the first block all, or all."""
    if wanted is None:
        return value
    value = jnp.asarray(value)
    if wanted == FIRST:
        return jnp.where(number == 0, value, jnp.zeros_like(value))
    size = value.shape[wanted] // blocks
    return jax.lax.dynamic_slice_in_dim(value, number * size, size, wanted)


# A step's one replica: what it would exchange with others stays as it is.


def _elsewhere(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
    names = (each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,)))
    if any(isinstance(name, str) and name == REPLICA_AXIS for name in names):
        raise ProgramError(
            f"numbers='bitwise' has one replica, which exchanges nothing with others, and the step calls "
            f"{equation.primitive.name} over the replicas ({location(equation)})."
        )
    return jax_equations.bind(equation, inputs, _LOCAL.retraced(equation))


def _collective(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    params = equation.params
    if "all_gather_dimension" in params and not params["tiled"]:
        return [jnp.expand_dims(each, params["all_gather_dimension"]) for each in inputs]
    return inputs


def _index(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    return [np.int32(0)]


def _mapped(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    # Without the name in some JAX: the map is refused if its mesh has several devices along any other axis.
    shape = equation.params["mesh"].shape
    manual = equation.params.get("newly_manual_axes", set(shape) - {BLOCK_AXIS})
    if any(shape[name] != 1 for name in manual):
        raise ProgramError(
            f"A step of numbers='bitwise' calls jax.shard_map over {sorted(map(str, manual))} ({location(equation)}): "
            "what it computes would depend on the number of devices. Use another strategy for it."
        )
    return _LOCAL.enter(equation, inputs)


_LOCAL = Interpreter(
    {
        **dict.fromkeys([*LOCAL_WITH_AXES, *PLACEMENT, NAME, "device_put"], pass_on),
        **dict.fromkeys([*EQUALIZING_COLLECTIVES, "reduce_scatter"], _collective),
        "axis_index": _index,
        SHARD_MAP: _mapped,
    },
    [*CALLS, *RECOMPUTED],
    _elsewhere,
    number_of,
)
