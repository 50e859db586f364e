"""The parts of Keras that rematerialize, for which it exports no name. Read in Keras 3.12 to 3.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras


def replace_remat(remat: Callable[[Callable[..., PyTree]], Callable[..., PyTree]]) -> None:
    """Replaces the function of Keras's backend that `keras.remat` and `keras.RematScope` call."""
    # Without the module: layers with statistics or seeds cannot be rematerialized in `fit`.
    from keras.src.backend.jax import core

    core.remat = remat


def innermost_scope() -> object | None:
    """Returns the innermost `keras.StatelessScope`, or None. Without the attribute: there is none."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("stateless_scope")


@functools.cache
def _inner_scope_class() -> Any:
    import keras

    class InnerScope(keras.StatelessScope):
        """Reads variables as the scope around it has them, and keeps what is assigned."""

        def __init__(self) -> None:
            self._around: Any = innermost_scope()
            super().__init__(collect_losses=getattr(self._around, "collect_losses", False))
            self._assigned: dict[int, Any] = {}

        def get_current_value(self, variable: keras.Variable) -> Any:
            own = super().get_current_value(variable)
            return own if own is not None or self._around is None else self._around.get_current_value(variable)

        def add_update(self, update: tuple[keras.Variable, Any]) -> None:
            self._assigned[id(update[0])] = update[0]
            super().add_update(update)

        def assigned(self) -> tuple[list[keras.Variable], list[Any]]:
            """Returns the variables that were assigned, and their values."""
            found = list(self._assigned.values())
            return found, [super(InnerScope, self).get_current_value(variable) for variable in found]

    return InnerScope


def scope_within() -> Any:
    """Returns a `keras.StatelessScope` inside of the innermost one, with a method `assigned`."""
    return _inner_scope_class()()
