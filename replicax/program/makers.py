"""The makers of a Keras variable: the layer in whose `build` it is made, and the layers that build that one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax.variable_access import VariableLike

if TYPE_CHECKING:
    import keras


def note_makers(variable: keras.Variable, makers: Sequence[object]) -> None:
    """Notes on a new variable who makes it, the innermost first."""
    variable._replicax_makers = tuple(map(weakref.ref, makers))


def makers_of(variable: VariableLike) -> list[object]:
    """Returns who made a variable, the innermost first: a layer, the layers that built it; or an optimizer, a metric.

    Empty for a variable that no layer made, such as an `rx.Variable`, and for one made before a strategy's scope was
    first opened. Those that no longer exist are left out.
    """
    makers = (reference() for reference in getattr(variable, "_replicax_makers", ()))
    return [maker for maker in makers if maker is not None]
