"""`DatasetCreator`: a dataset for `Model.fit` that each worker makes for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replicax.checks import call
from replicax.data.input_context import InputContext
from replicax.data.input_options import InputOptions
from replicax.errors import ArgumentError
from replicax.typing import PyTree


class DatasetCreator:
    """A function that makes the dataset of a worker, as data for `Model.fit`.

    Under a `ParameterServerStrategy` it is pickled and called on each worker, and `fit` needs `steps_per_epoch`. Under
    other strategies it is the same as `strategy.distribute_datasets_from_function(dataset_fn, input_options)`.

    Args:
        dataset_fn: Takes an `InputContext` and returns a dataset of batches: an iterable of `(x, y)` or
            `(x, y, sample_weight)`.
        input_options: How the dataset is distributed by strategies that do so.

    Raises:
        ArgumentError: `dataset_fn` cannot be called, or `input_options` have the wrong type.

    Example:
        >>> creator = DatasetCreator(lambda context: [[context.input_pipeline_id]])
        >>> creator(InputContext(num_input_pipelines=2, input_pipeline_id=1))
        [[1]]
    """

    def __init__(
        self, dataset_fn: Callable[[InputContext], Iterable[PyTree]], input_options: InputOptions | None = None
    ):
        if not callable(dataset_fn):
            raise ArgumentError(f"`dataset_fn` is a function of an rx.InputContext, got {dataset_fn!r:.100}.")
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise ArgumentError(f"`input_options` are rx.InputOptions, got {input_options!r:.100}.")
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, input_context: InputContext) -> Iterable[PyTree]:
        """Returns the dataset of one worker."""
        return call("dataset_fn", self.dataset_fn, (input_context,))
