"""Loops of Keras where workers may come and go: each worker has all callbacks, and the chief of the moment writes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from replicax.host import Host
from replicax.keras.alike import decides_alike
from replicax.keras.writers import Writers


@contextlib.contextmanager
def elastic_callbacks(given: inspect.BoundArguments, strategy: Host, trains: bool) -> Iterator[None]:
    """Prepares the callbacks of a loop, for a `with` block.

    Args:
        given: The arguments of the loop.
        strategy: The strategy.
        trains: Whether it is `fit`.
    """
    import keras

    callbacks, model = given.arguments.get("callbacks"), given.arguments["self"]
    held = getattr(callbacks, "callbacks", None)  # of a CallbackList
    if held is not None and model._replicax.loops:
        yield  # The callbacks are those of the `fit` that validates.
        return
    own = held if held is not None else [] if callbacks is None else callbacks
    own = list(own) if isinstance(own, (list, tuple)) else [own]
    has_bar = held is not None or any(isinstance(each, keras.callbacks.ProgbarLogger) for each in own)
    if given.arguments.get("verbose", "auto") != 0 and not has_bar:
        own.append(keras.callbacks.ProgbarLogger())  # Keras would add it, for all workers.
    writers = Writers(own, strategy)
    added: list[Any] = [decides_alike(strategy, writers)] if trains else []
    if callbacks is None or held is None:
        given.arguments["callbacks"] = [*own, *added]
    else:
        for callback in added:
            callback.set_model(model)
            callback.set_params(callbacks.params)
        callbacks.callbacks = [*own, *added]
    with writers.installed():
        yield
