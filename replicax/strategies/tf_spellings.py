"""The `experimental_` spellings of tf.distribute, kept so that code from there runs unchanged."""

from __future__ import annotations

from typing import Any

from replicax.typing import PyTree


class TFSpellings:
    """Methods of `tf.distribute.Strategy` that replicax offers under shorter names."""

    def experimental_local_results(self: Any, value: Any) -> tuple[Any, ...]:
        """Alias of `local_results`."""
        return self.local_results(value)

    def experimental_distribute_dataset(
        self: Any, dataset: PyTree, options: Any = None, *, batch_size: int | None = None
    ) -> Any:
        """Alias of `distribute_dataset`."""
        return self.distribute_dataset(dataset, options, batch_size=batch_size)

    def experimental_distribute_datasets_from_function(self: Any, dataset_fn: Any, options: Any = None) -> Any:
        """Alias of `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(self: Any, value_fn: Any) -> Any:
        """Alias of `distribute_values_from_function`."""
        return self.distribute_values_from_function(value_fn)
