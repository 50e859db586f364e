"""The equations of traced programs: running one on other operands, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import source_info_util as jax_source_info
from jax._src.source_info_util import SourceInfo as SourceInfo  # for who types equations
from jax.extend import core as jex_core, linear_util


def bind(
    equation: jex_core.JaxprEqn, inputs: Sequence[jax.typing.ArrayLike | None], params: dict[str, Any]
) -> Sequence[jax.Array]:
    """Returns the results of an equation of a traced program, on other operands or with other parameters."""
    found = equation.primitive.get_bind_params(params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # They are among the parameters today.
    # Errors and profiles go on to name the line of the user's code that it comes from. Without the names of
    # `source_info_util`: `jax.named_scope`, and errors that name our line.
    source = equation.source_info
    scopes_here = jax_source_info.current_name_stack() + source.name_stack
    with jax_source_info.user_context(source.traceback, name_stack=scopes_here):
        results = equation.primitive.bind(*functions, *inputs, **params)
    return results if equation.primitive.multiple_results else [results]


def rules_replaced(
    params: dict[str, Any], other: Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]
) -> dict[str, Any]:
    """Returns the parameters of a call with rules of its own for derivatives, with another program for each rule."""
    # Without the names: JAX's errors about types where somebody differentiates what `compat/jax_branches.py` retypes.
    return {
        name: _replaced_rule(value, other) if name in ("jvp_jaxpr_fun", "fwd_jaxpr_thunk") else value
        for name, value in params.items()
    }


def _replaced_rule(rule: Any, other: Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]) -> object:
    def replaced(*zeros: bool) -> tuple[object, ...]:
        jaxpr, consts, *rest = rule.call_wrapped(*zeros)
        program = other(jex_core.ClosedJaxpr(jaxpr, consts))
        return (program.jaxpr, program.consts, *rest)

    return linear_util.wrap_init(replaced, debug_info=rule.debug_info)


def run_as_one(name: str, program: jex_core.ClosedJaxpr, inputs: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the results of a program, which a trace notes as one call of a function of this name, as it stands."""
    # The types of the program must be those of the place: on its mesh, or on none.

    def alike(operand: jax.Array) -> float:
        return 0.0

    alike.__name__ = alike.__qualname__ = name
    [call] = jax.make_jaxpr(jax.jit(alike))(0.0).eqns
    # Parameters say of each operand and result what they say of all of them.
    params = {
        key: value * (len(program.jaxpr.outvars) if key.startswith("out_") else len(inputs))
        if isinstance(value, tuple)
        else value
        for key, value in call.params.items()
    }
    return list(bind(call, inputs, {**params, "jaxpr": program}))


def is_on_mutable_array(effect: object) -> bool:
    """Returns whether an effect of an equation is that of reading or writing a mutable array, an operand of it."""
    return hasattr(effect, "input") or hasattr(effect, "input_index")  # its name in other versions of JAX


def called_from(outer: SourceInfo, inner: SourceInfo) -> SourceInfo:
    """Returns where an equation of a called function comes from (`source_info`), with the scopes of the call."""
    return inner.replace(name_stack=outer.name_stack + inner.name_stack) if outer.name_stack.stack else inner


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constants of its loop, and how many it carries, which come next."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # JAX 0.12.
    return len(list(consts)), len(list(carry))


def location(equation: jex_core.JaxprEqn) -> str:
    """Returns where in the user's code an equation of a traced program comes from: `file:line (function)`."""
    # Without the name: nothing, and messages do without it.
    return jax_source_info.summarize(equation.source_info)


def called_on_host(equation: jex_core.JaxprEqn) -> str:
    """Returns the name of the function of the host that an equation of a traced program calls, if JAX knows it."""
    return getattr(getattr(equation.params["callback"], "callback_func", None), "__qualname__", "")


def scopes(equation: jex_core.JaxprEqn) -> str:
    """Returns the names of the scopes and transformations that an equation of a traced program comes from."""
    return str(equation.source_info.name_stack)
