"""`PerWorkerVariable`: each worker has a variable of its own, `rx.Variable(..., per_worker_variable=True)`.

A scheduled function uses the copy of the worker that runs it; other code uses the coordinator's. All copies begin with
the initial value, and so does that of a worker which replaces a lost one.
"""

from __future__ import annotations

import functools
from typing import cast

import jax
import numpy as np

from replicax.compat.keras import change_class
from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import ContextError
from replicax.parameter_server.compiling.recording import recorder
from replicax.parameter_server.scheduling.remote_values import PerWorkerValues
from replicax.variables import Variable


class PerWorkerVariable(Variable):
    """A variable of which each worker has a copy of its own, and the coordinator one more; nothing keeps them equal."""

    __slots__ = ()
    # Set by `keep_on_each_worker`.
    _replicax_first: np.ndarray
    _replicax_copies: PerWorkerValues | None

    def read_all(self) -> list[np.ndarray]:
        """Returns the workers' values, in the order of the workers; call `coordinator.join()` before."""
        return list(self._copies().fetch())

    def _copies(self) -> PerWorkerValues:
        if self._replicax_copies is None:
            coordinator = getattr(self.strategy, "coordinator", None)
            if coordinator is None:
                raise ContextError(
                    f"The workers' copies of variable {name_of(self)!r} were asked for before there was a "
                    "coordinator. Make it first: rx.coordinator.ClusterCoordinator(strategy)."
                )
            first = self._replicax_first
            self._replicax_copies = coordinator.create_per_worker_resource(lambda: first)
        return cast(PerWorkerValues, self._replicax_copies)

    def _read(self) -> jax.Array:
        if recorder() is None:
            return super()._read()
        value: jax.Array = self._copies().value
        return value

    def _store(self, raw: jax.Array) -> jax.Array:
        if recorder() is None:
            return super()._store(raw)
        self._copies().assign(raw)
        return raw


@functools.cache
def _per_worker_class(own: type) -> type:
    return PerWorkerVariable if own is Variable else type(own.__name__, (PerWorkerVariable, own), {"__slots__": ()})


def keep_on_each_worker(variable: VariableLike, value: jax.typing.ArrayLike) -> None:
    """Turns a new variable into one of which each worker has a copy, with the initial value `value`."""
    change_class(variable, _per_worker_class)
    assert isinstance(variable, PerWorkerVariable)
    variable._replicax_first, variable._replicax_copies = np.asarray(value), None
