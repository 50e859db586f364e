"""The values of variables at one moment, for a checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

from replicax.checkpoint.encoding import SavedArray, saved_value
from replicax.contracts.variable_access import AssignableLike

_SECONDS_BETWEEN_LOOKS = 0.05


def values_of(variables: Mapping[str, AssignableLike], states: Iterable[object] = ()) -> dict[str, SavedArray]:
    """Returns the values of variables: all from before, or all from after a lost parameter server was replaced.

    They are read in the order of their names, the same in all processes: reading some of them is a computation of all.

    Args:
        variables: The variables.
        states: What is saved with them. A strategy of islands among them knows what this island's own values mean.
    """
    with contextlib.ExitStack() as stack:
        for state in states:
            if hasattr(state, "own_values"):
                stack.enter_context(state.own_values())
        return _values_at_once(variables)


def _values_at_once(variables: Mapping[str, AssignableLike]) -> dict[str, SavedArray]:
    while True:
        before = _restorations(variables)
        values = {name: saved_value(variable) for name, variable in sorted(variables.items(), key=lambda item: item[0])}
        if before == _restorations(variables) and not any(count % 2 for count in before):
            return values
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _restorations(variables: Mapping[str, AssignableLike]) -> set[int]:
    """Returns how many beginnings and ends of recoveries of servers there have been: odd during a recovery."""
    return {getattr(variable, "_replicax_restorations", 0) for variable in variables.values()}
