"""Putting back what a trial has changed: variables, the place in the data, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, has_array
from replicax.errors import ArgumentError, ContextError
from replicax.keras.random_state import Generators
from replicax.program.storing import store_values
from replicax.typing import PyTree


@runtime_checkable
class _HasPosition(Protocol):
    def get_state(self) -> PyTree:
        """Returns where it is."""

    def set_state(self, state: PyTree) -> None:
        """Goes there."""


class Restored:
    """Earlier values of variables, to be put back; while they are kept, programs cannot overwrite arrays in place."""

    def __init__(self) -> None:
        self._variables: list[VariableLike] = []
        self._values: list[PyTree] = []
        self._seen: set[int] = set()

    def add(self, variables: list[VariableLike]) -> None:
        """Remembers the values of variables that are not remembered yet."""
        for variable in variables:
            if id(variable) not in self._seen and has_array(variable):
                self._seen.add(id(variable))
                self._variables.append(variable)
                self._values.append(array_of(variable))

    def put_back(self) -> None:
        """Gives the variables their values again, all at once."""
        store_values(self._variables, self._values)


@contextlib.contextmanager
def restored(dataset: PyTree) -> Iterator[Restored]:
    """Puts variables, the dataset's position and random generators back when the `with` block ends, however it ends."""
    check_begins_anew(dataset)
    state = dataset.get_state() if isinstance(dataset, _HasPosition) else None
    generators = Generators.here()
    kept = Restored()
    try:
        yield kept
    finally:
        kept.put_back()
        generators.set()
        if state is not None:
            dataset.set_state(state)


def check_begins_anew(dataset: PyTree) -> None:
    """Checks that each pass over a dataset begins anew."""
    if hasattr(dataset, "__next__"):
        raise ArgumentError(
            f"The trial would use up rows of {dataset!r:.80}, an iterator. Pass a dataset that begins anew with each "
            "pass, or some batches as a list: list(itertools.islice(iterator, 20))."
        )


def check_model(model: Any, strategy: StrategyBase | None) -> None:
    """Checks that a Keras model was made in a strategy's scope, and is compiled."""
    if strategy is None:
        raise ArgumentError(
            f"{model!r:.100} was made outside of a strategy's scope. Make (or load) and compile it in "
            "`with strategy.scope():`."
        )
    if not getattr(model, "compiled", False):
        raise ArgumentError(f"{model!r:.100} is not compiled. Call its `compile` with an optimizer and a loss before.")


def check_synchronous(host: StrategyBase | None, call: str) -> None:
    """Checks that a strategy trains in step, and keeps no count of steps that cannot be put back."""
    if host is not None and (host.is_asynchronous or host.counts_steps or host.is_client):
        raise ContextError(
            f"{call} works with strategies that train synchronously in this process, and not with {host!r}. Look for "
            "the value under rx.MirroredStrategy, on the devices of one worker."
        )
    if host is not None and host.placement.group.may_change:
        raise ContextError(f"{call} cannot be called where workers come and go. Look for the value before, without.")
