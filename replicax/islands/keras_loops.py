"""`Model.fit`, `evaluate` and `predict` on islands: each island runs Keras's loop over its own rows.

A round ends with each epoch, so that validation, callbacks and checkpoints see one model, and logs are of the rows of
all islands. Metrics are added up when Keras asks for their results, at the end of an epoch or of an evaluation.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import jax

import replicax.context as context
from replicax.compat.jax_tracing import is_tracing
from replicax.data.sources import is_array_pytree
from replicax.islands.batch_dealing import dealt_rows
from replicax.islands.local_variables import own_values
from replicax.keras.chief_writes import callbacks_of_worker
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_ROWS = ("x", "y", "sample_weight")


class IslandLike(Protocol):
    """A strategy of islands, as a loop asks it."""

    @property
    def num_islands(self) -> int:
        """Number of islands."""

    @property
    def island_index(self) -> int:
        """Number of this one."""

    @property
    def is_chief(self) -> bool:
        """Whether this one writes."""

    def synchronize(self) -> None:
        """Makes everything equal."""

    def add_up_metrics(self) -> None:
        """Makes metrics equal."""


def around_loop(
    strategy: IslandLike, model: keras.Model, name: str, given: inspect.BoundArguments
) -> contextlib.AbstractContextManager[None]:
    """Prepares a loop of Keras for this island."""
    if name not in ("fit", "evaluate"):
        # Predictions, and steps that are called one by one, are this island's own.
        return own_values() if name != "predict" else contextlib.nullcontext()
    if strategy.num_islands > 1:
        _deal(strategy, given)
        if not strategy.is_chief:
            given.arguments["verbose"] = 0
        given.arguments["callbacks"] = callbacks_of_worker(given.arguments.get("callbacks"), strategy.is_chief)
    return _with_results(model, strategy.synchronize if name == "fit" else strategy.add_up_metrics)


def _deal(strategy: IslandLike, given: inspect.BoundArguments) -> None:
    arguments = given.arguments
    if arguments.get("kwargs", {}).get("_use_cached_eval_dataset"):
        return  # In `fit`, which has dealt the rows.
    own = {name: _own_rows(strategy, arguments[name]) for name in _ROWS if arguments.get(name) is not None}
    if own.keys() & {"x"} and own["x"] is not arguments["x"]:
        arguments.update(own)
    validation = arguments.get("validation_data")
    if isinstance(validation, (tuple, list)):
        arguments["validation_data"] = tuple(_own_rows(strategy, each) for each in validation)


def _own_rows(strategy: IslandLike, data: PyTree) -> PyTree:
    """Returns an island's rows of arrays; a dataset is each island's own, unless the strategy has distributed it."""
    lists_of_arrays = isinstance(data, list) and all(hasattr(each, "shape") for each in jax.tree_util.tree_leaves(data))
    if data is None or not (is_array_pytree(data) or lists_of_arrays):
        return data
    return dealt_rows(data, strategy.island_index, strategy.num_islands)


@contextlib.contextmanager
def _with_results(model: keras.Model, meet: Callable[[], None]) -> Iterator[None]:
    """Calls `meet` before Keras reads the results of metrics, in the `with` block."""
    asked = model.get_metrics_result

    def get_metrics_result() -> Any:
        if context.current().frame is None and not is_tracing():  # Otherwise it is a step that asks.
            meet()
        return asked()

    own = vars(model)  # An entry here goes before the method of the class, and Keras does not track it.
    before = own.get("get_metrics_result")
    own["get_metrics_result"] = get_metrics_result
    try:
        yield
    finally:
        if before is None:
            del own["get_metrics_result"]
        else:
            own["get_metrics_result"] = before
