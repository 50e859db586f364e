"""Variables of which each worker has its own: `rx.Variable(..., per_worker_variable=True)`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from replicax.compat.keras import change_class
from replicax.errors import ContextError
from replicax.parameter_server.compiling.traced_step import recorder
from replicax.variable_access import name_of
from replicax.variables import Variable


class PerWorkerVariable(Variable):
    """A variable of which each worker has a copy of its own, and the coordinator one more; nothing keeps them equal.

    In a scheduled function it is the copy of the worker that runs the function, elsewhere the coordinator's. All begin
    with the initial value; so does the copy of a worker that takes the place of a lost one.
    """

    __slots__ = ()
    # Set by `keep_on_each_worker`.
    _replicax_first: np.ndarray
    _replicax_copies: Any

    def read_all(self) -> list[np.ndarray]:
        """Returns the workers' values, in the order of the workers; call `coordinator.join()` before.

        Raises:
            ContextError: The strategy has no coordinator yet.
        """
        return list(self._copies().fetch())

    def _copies(self) -> Any:
        if self._replicax_copies is None:
            coordinator = getattr(self.strategy, "coordinator", None)
            if coordinator is None:
                raise ContextError(
                    f"The workers' copies of variable {name_of(self)!r} were asked for before there was a "
                    "coordinator. Make it first: rx.coordinator.ClusterCoordinator(strategy)."
                )
            first = self._replicax_first
            self._replicax_copies = coordinator.create_per_worker_resource(lambda: first)
        return self._replicax_copies

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
def _class_per_worker(own: Any) -> Any:
    return PerWorkerVariable if own is Variable else type(own.__name__, (PerWorkerVariable, own), {"__slots__": ()})


def keep_on_each_worker(variable: Any, value: Any) -> None:
    """Makes a new variable one of which each worker has its own; `value` is the first one."""
    change_class(variable, _class_per_worker)
    variable._replicax_first, variable._replicax_copies = np.asarray(value), None
