"""The shape of a row: a call of TensorFlow, and the expression of Keras 3 that gives the same numbers."""

from __future__ import annotations

from typing import NamedTuple


class OpRow(NamedTuple):
    """One function of TensorFlow and its translation.

    Example:
        >>> row = OpRow("expand_dims(input, axis)", "keras.ops.expand_dims(input, axis)")
        >>> row.name
        'tf.expand_dims'
    """

    signature: str  # as TensorFlow has it, without "tf."; a `*` before the last parameter: any number of arguments
    template: str  # parameters stand for arguments; `keyword=parameter` is left out where the call leaves it out
    always: tuple[str, ...] = ()  # whose default is written out, since the defaults differ
    adapt: tuple[tuple[str, str], ...] = ()  # a parameter, and the function in `adapting` that translates its argument
    note: str = ""  # how the result may differ, reported once
    ignored: tuple[str, ...] = ()  # parameters with any value: the note says what becomes of them

    @property
    def name(self) -> str:
        """The qualified name, such as ``"tf.math.divide_no_nan"``."""
        return "tf." + self.signature.split("(")[0]


def renamed(names: str, module: str = "", arguments: str = "x") -> list[OpRow]:
    """Returns rows of functions of the same arguments; `names` are ``tensorflow:keras`` pairs, or one name for both."""
    rows = []
    for pair in names.split():
        source, _, target = pair.partition(":")
        rows.append(OpRow(f"{module}{source}({arguments})", f"keras.ops.{target or source}({arguments})"))
    return rows
