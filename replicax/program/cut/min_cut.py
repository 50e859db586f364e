"""Where to split a program so that the fewest bytes are sent: a minimum vertex cut.

By the theorem of Ford and Fulkerson (1956) it follows from a maximum flow, which SciPy computes. Among cuts of the same
size the last one is taken: the worker does as much as it can. Only steps of `ParameterServerStrategy` and
`CentralStorageStrategy` are split; SciPy is imported when the first such step is compiled. JAX requires it as well
and brings it along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax.extend import core as jex_core

from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import aval_of, is_literal

_UNLIMITED = 2**30
_BYTES_PER_UNIT = 64  # Capacities are 32 bits wide.


def cheapest_cut(
    sources: Sequence[jex_core.Var], equations: Sequence[jex_core.JaxprEqn], wanted: set[jex_core.Var]
) -> list[jex_core.Var]:
    """Returns the values to send, fewest bytes in all, so that everything wanted is sent or follows from them."""
    values = list(dict.fromkeys([*sources, *(out for equation in equations for out in equation.outvars)]))
    number = {value: i for i, value in enumerate(values)}
    # Each value is two nodes, one it comes in by and one it goes out by, with an edge as wide as it is large.
    start, end = 2 * len(values), 2 * len(values) + 1
    edges = {(2 * i, 2 * i + 1): _size(value) for value, i in number.items()}
    edges |= {(start, 2 * number[value]): _UNLIMITED for value in sources}
    edges |= {(2 * number[value] + 1, end): _UNLIMITED for value in wanted}
    for equation in equations:
        for atom in equation.invars:
            if not is_literal(atom) and atom in number:  # Any other operand is known everywhere.
                edges |= {(2 * number[atom] + 1, 2 * number[out]): _UNLIMITED for out in equation.outvars}
    before_end = _reaching(end, edges)
    return [value for value, i in number.items() if 2 * i + 1 in before_end and 2 * i not in before_end]


def _reaching(end: int, edges: dict[tuple[int, int], int]) -> set[int]:
    """Returns the nodes from which more could flow to the end."""
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow
    except ImportError as error:
        raise ProgramError(
            f"SciPy cannot be imported ({error}). ParameterServerStrategy and CentralStorageStrategy split each step "
            "in two where the fewest bytes are sent, and SciPy finds that place. Install it: pip install scipy."
        ) from error

    rows, columns = np.array(list(edges), dtype=np.int32).T
    nodes = end + 1
    capacity = csr_matrix((np.array(list(edges.values()), dtype=np.int32), (rows, columns)), shape=(nodes, nodes))
    flow = maximum_flow(capacity, end - 1, end).flow
    left = capacity - flow
    left.eliminate_zeros()
    return set(breadth_first_order(left.T.tocsr(), end, return_predecessors=False).tolist())


def _size(value: jex_core.Var) -> int:
    size = math.prod(aval_of(value).shape) * getattr(aval_of(value).dtype, "itemsize", 8)
    return int(min(1 + size // _BYTES_PER_UNIT, _UNLIMITED - 1))
