"""The part of a strategy's contract that only Keras's loops need."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from replicax.contracts.host import Host
from replicax.contracts.variable_access import VariableLike
from replicax.data import InputContext, InputOptions
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras


class KerasLoopsLike(Protocol):
    """Runs `fit` and the like in the place of Keras's loops: methods of these names."""

    @property
    def steps(self) -> object:
        """Makes the step functions: methods `train`, `test` and `predict`."""


class KerasHost(Host, Protocol):
    """A strategy that a Keras model belongs to."""

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Makes it the current strategy."""

    def check_layouts(self, variables: Sequence[VariableLike]) -> None:
        """Checks that a model's variables have the layouts that were asked for; `fit` calls it."""

    def keras_loops(self, model: keras.Model) -> KerasLoopsLike | None:
        """Returns what runs `fit` and the like for a model, by these names; None leaves them to Keras's loops."""

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read the values that this process has in a `with` block, where they differ between processes."""

    def around_loop(
        self, model: keras.Model, name: str, given: inspect.BoundArguments
    ) -> contextlib.AbstractContextManager[None] | None:
        """Returns what a loop of Keras runs in, which may change its arguments; None for nothing."""

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> PyTree:
        """Distributes the dataset that a `DatasetCreator` makes."""
