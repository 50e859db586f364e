"""Cross-entropies of probabilities: TensorFlow took the logits behind them, Keras 3 on JAX takes what it is given."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.script import Script

_CLASSES = ("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")
_FUNCTIONS = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
_NAMES = {f"{module}.{name}" for module in ("tf.keras.losses", "tf.losses") for name in (*_CLASSES, *_FUNCTIONS)}
_REASON = (
    "It is given probabilities. Behind a softmax or sigmoid TensorFlow computes from the logits; here probabilities "
    "are clipped to [1e-7, 1 - 1e-7], and there is no gradient beyond. If they come so near to 0 or 1, let the model "
    "return logits, and give `from_logits=True`."
)


def notes(script: Script) -> Iterator[Finding]:
    """Yields a note for each cross-entropy that is not said to take logits."""
    for node in m.findall(script.module, m.Call()):
        call = cst.ensure_type(node, cst.Call)
        name = script.names.of(call.func)
        if name is not None and name in _NAMES and not _takes_logits(call):
            yield Finding(script.line(call), name, _REASON, "note")
        elif m.matches(call.func, m.Attribute(attr=m.Name("compile"))):
            yield from _compiled(script, call)


def _compiled(script: Script, call: cst.Call) -> Iterator[Finding]:
    """Yields notes on what `Model.compile` gets as `loss`: names, in quotes or not, alone or in a list or dict."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "loss" and not isinstance(arg.value, cst.Call):
            for node in m.findall(arg.value, m.SimpleString() | m.Attribute() | m.Name()):
                if isinstance(node, cst.SimpleString):
                    name: str | None = f"tf.keras.losses.{node.raw_value}"
                else:
                    name = script.names.of(node)
                if name is not None and name in _NAMES:
                    yield Finding(script.line(node), name, _REASON, "note")


def _takes_logits(call: cst.Call) -> bool:
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    return "from_logits" in given and not m.matches(given["from_logits"], m.Name("False"))
