"""The `experimental_` spellings of tf.distribute, kept so that code from there runs unchanged."""

from __future__ import annotations

from replicax.data import InputOptions
from replicax.typing import PyTree, PyTreeFunction


class TFSpellings:
    """Methods of `tf.distribute.Strategy` that replicax offers under shorter names."""

    local_results: PyTreeFunction
    distribute_dataset: PyTreeFunction
    distribute_datasets_from_function: PyTreeFunction
    distribute_values_from_function: PyTreeFunction

    def experimental_local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Alias of `local_results`."""
        components: tuple[PyTree, ...] = self.local_results(value)
        return components

    def experimental_distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> PyTree:
        """Alias of `distribute_dataset`."""
        return self.distribute_dataset(dataset, options, batch_size=batch_size)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: PyTreeFunction, options: InputOptions | None = None
    ) -> PyTree:
        """Alias of `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(self, value_fn: PyTreeFunction) -> PyTree:
        """Alias of `distribute_values_from_function`."""
        return self.distribute_values_from_function(value_fn)
