"""Where the value of a variable lives, for code that assigns one from outside of a program."""

from __future__ import annotations

import jax
from jax.sharding import Sharding

import replicax.context as context
from replicax.compat.keras import is_in_stateless_scope
from replicax.contracts.strategy import owner_of
from replicax.contracts.variable_access import (
    VariableLike,
    is_per_replica_variable,
    layout_of,
    lives_elsewhere,
    set_array,
)


def home_of(variable: VariableLike) -> Sharding | None:
    """Returns where a variable's value lives between steps; None where that is unknown, or it cannot be put there."""
    if context.current().frame is not None or is_in_stateless_scope():  # inside a program
        return None
    if lives_elsewhere(variable) or is_per_replica_variable(variable):
        return None
    home: Sharding | None = layout_of(variable)
    if home is None:
        owner = owner_of(variable)
        home = None if owner is None else owner.placement.variable_sharding(variable)
    # None without a strategy. A mirrored variable of several processes may be assigned by one of them only.
    if home is None or (not home.is_fully_addressable and home.is_fully_replicated):
        return None
    return home


def set_home_value(variable: VariableLike, value: jax.Array) -> None:
    """Makes a variable hold an array that lies where `home_of` says."""
    set_array(variable, value)
