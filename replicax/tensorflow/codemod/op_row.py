"""The shape of a row: a call of TensorFlow, and the expression of Keras 3 that gives the same numbers."""

from __future__ import annotations

from typing import NamedTuple


class OpRow(NamedTuple):
    """One function of TensorFlow and its translation.

    Attributes:
        signature: The function with its parameters in TensorFlow's order and with TensorFlow's defaults, such as
            ``"argmax(input, axis=0)"``; the name is written without the leading ``tf.``. A ``*`` before the last
            parameter stands for any number of positional arguments.
        template: The expression that replaces the call. A parameter's name stands for the argument. A keyword
            argument ``keyword=parameter`` is left out where the call leaves the parameter out.
        always: Parameters whose default is written out where the call leaves them out, since the defaults differ.
        adapt: For a parameter, the name of the function in ``codemod.adapting`` that translates its argument.
        note: How the result may differ, which the report says once; empty where it does not.
        ignored: Parameters that may have any value, since the note says what becomes of them.

    Example:
        >>> row = OpRow("expand_dims(input, axis)", "keras.ops.expand_dims(input, axis)")
        >>> row.name
        'tf.expand_dims'
    """

    signature: str
    template: str
    always: tuple[str, ...] = ()
    adapt: tuple[tuple[str, str], ...] = ()
    note: str = ""
    ignored: tuple[str, ...] = ()

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
