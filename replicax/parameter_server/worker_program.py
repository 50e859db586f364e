"""A worker's program, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from replicax.parameter_server.messages import Piece, WorkerProgram


class Loaded:
    """A program that can be called.

    Args:
        program: The program.

    Attributes:
        program: The program.
        wanted: For each server, the pieces that the program reads.
    """

    def __init__(self, program: WorkerProgram):
        self.program = program
        self.wanted: dict[int, tuple[Piece, ...]] = {}
        for variable in program.variables:
            for server, piece in zip(variable.servers, variable.pieces, strict=True):
                self.wanted[server] = (*self.wanted.get(server, ()), piece)
        self._compiled = compiled(program.code)

    def __call__(self, variables: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the results, and what is sent to servers."""
        results, sent = self._compiled(list(variables), list(inputs))
        return [np.asarray(result) for result in results], [np.asarray(value) for value in sent]


def compiled(code: bytes, donate: Sequence[int] = ()) -> Any:
    """Returns a program that `jax.export` has serialised, compiled for the shapes that it was made for."""
    exported = jax.export.deserialize(bytearray(code))
    args, _ = jax.tree_util.tree_unflatten(exported.in_tree, exported.in_avals)
    shapes = jax.tree_util.tree_map(lambda aval: jax.ShapeDtypeStruct(aval.shape, aval.dtype), args)
    return jax.jit(exported.call, donate_argnums=donate, keep_unused=True).lower(*shapes).compile()
