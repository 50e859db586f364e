"""The kinds of variables, by how islands synchronize them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import jax.numpy as jnp

from replicax.contracts.variable_access import (
    VariableLike,
    aggregation_of,
    dtype_of,
    is_replaced_by_gradient,
    is_trained,
    name_of,
    shape_of,
    synchronization_of,
)

_STEP_COUNTER = "iteration"  # Each optimizer of Keras has a variable of this name, beside all its others.


class Kind(enum.Enum):
    """The kind of a variable: how one value is made of those that the islands have."""

    TRAINED = "trained"  # trainable, of floating or complex dtype: the outer step updates it
    MEAN = "mean"  # other state of such a dtype, like the statistics of BatchNorm, and what is declared a mean
    SLOT = "slot"  # an optimizer's state of floating dtype: kept or averaged, by the strategy's `optimizer_state`
    SUM = "sum"  # counts rows, as a metric does: the islands' parts are added up
    SEED = "seed"  # the state of a generator of random numbers: each island has its own
    OWN = "own"  # any other, trainable or not, such as a counter of steps: equal as long as the islands do the same


#: The kinds whose values differ between islands until they synchronize.
DIVERGING = (Kind.TRAINED, Kind.MEAN, Kind.SUM)


def kinds_of(variables: Sequence[VariableLike]) -> list[Kind]:
    """Returns the kind of each of a strategy's variables."""
    optimizers = _scopes_of_optimizers(variables)
    return [_kind(variable, optimizers) for variable in variables]


def _kind(variable: VariableLike, optimizers: set[str]) -> Kind:
    if is_trained(variable) and not is_replaced_by_gradient(variable):
        return Kind.TRAINED
    if _text(synchronization_of(variable)) == "on_read":
        return Kind.SUM if _text(aggregation_of(variable)) == "sum" else Kind.MEAN
    if variable.name == "seed_generator_state":
        return Kind.SEED
    if not jnp.issubdtype(dtype_of(variable), jnp.inexact):
        return Kind.OWN
    if _scope(variable) not in optimizers:
        return Kind.MEAN
    # Its numbers are settings or counts (a learning rate, a loss scale), which all islands have alike.
    return Kind.SLOT if shape_of(variable) else Kind.OWN


def _scopes_of_optimizers(variables: Iterable[VariableLike]) -> set[str]:
    return {_scope(v) for v in variables if v.name == _STEP_COUNTER and "/" in name_of(v)}


def _scope(variable: VariableLike) -> str:
    return name_of(variable).rpartition("/")[0]


def _text(setting: object) -> str:
    return str(getattr(setting, "value", setting))
