"""Programs without placement: the same computation without a mesh, for any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLS, PLACEMENT, RECOMPUTED, SHARD_MAP
from replicax.errors import ExportError
from replicax.program.ir.interpreter import Interpreter, bind, pass_on


def without_placement(program: jex_core.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """Returns a function that computes what `program` does, without its instructions about devices."""

    def portable(*args: jax.Array) -> list[jax.Array]:
        return _PORTABLE.run(program, args)

    return portable


def _refuse(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> NoReturn:
    raise ExportError("The function runs jax.shard_map (strategy.run does), which is for a certain number of devices.")


def _bind(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
    return bind(equation, inputs, **_PORTABLE.retraced(equation))


_PORTABLE = Interpreter(
    {**dict.fromkeys([*PLACEMENT, "device_put"], pass_on), SHARD_MAP: _refuse},
    enters=[*CALLS, *RECOMPUTED],  # An exported program is not differentiated.
    other=_bind,
)
