"""The makers of a Keras variable: the layer in whose `build` it is made, and the layers that build that one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax.contracts.variable_access import VariableLike

if TYPE_CHECKING:
    import keras


class _Makers:
    """The note on a variable. In another process, to which a variable may be pickled, it is empty."""

    def __init__(self, makers: Sequence[object] = ()):
        self.references = tuple(map(weakref.ref, makers))

    def __reduce__(self) -> tuple[type[_Makers], tuple[()]]:
        return _Makers, ()

    def __deepcopy__(self, memo: dict[int, object]) -> _Makers:
        return self


def note_makers(variable: keras.Variable, makers: Sequence[object]) -> None:
    """Notes the makers of a new variable on it, the innermost first."""
    variable._replicax_makers = _Makers(makers)


def makers_of(variable: VariableLike) -> list[object]:
    """Returns the makers of a variable, the innermost first: a layer and those that built it, or a metric, say."""
    # There is none for a variable that no layer made, such as an `rx.Variable`, and for one made before a strategy's
    # scope was first opened.
    note: _Makers | None = getattr(variable, "_replicax_makers", None)
    makers = (reference() for reference in note.references) if note is not None else ()
    return [maker for maker in makers if maker is not None]
