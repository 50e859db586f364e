"""Methods of models that Keras 3 calls otherwise than Keras 2 did."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.rewriter import Action
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.writer import Writer

_STEPS = {
    "train_step": "`train_step(state, data)`, which returns `(logs, state)`",
    "test_step": "`test_step(state, data)`, which returns `(logs, state)`",
    "predict_step": "`predict_step(state, data)`, which returns `(outputs, state)`",
}
_WITH_DATA = 2


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns refusals of the steps of `fit`, `evaluate` and `predict` that a script's models define."""
    actions: dict[cst.CSTNode, Action] = {}
    for node in m.findall(script.module, m.ClassDef()):
        definition = cst.ensure_type(node, cst.ClassDef)
        kind = script.kinds.of_class(definition)
        if kind is not None and "tf.keras.Model" in tables.KINDS.family(kind):
            actions |= {each.name: _refused for each in _steps(definition)}
    return actions


def _steps(definition: cst.ClassDef) -> list[cst.FunctionDef]:
    body = [each for each in definition.body.body if isinstance(each, cst.FunctionDef)]
    return [each for each in body if each.name.value in _STEPS and len(each.params.params) == _WITH_DATA]


def _refused(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    name = cst.ensure_type(node, cst.Name).value
    writer.refuse(
        node,
        f"tf.keras.Model.{name}",
        f"Keras 3 on JAX calls {_STEPS[name]}. Write it so (keras.io: custom train_step in JAX), call "
        "the computation from a custom loop instead, or give `compile` the loss and let Keras make the step.",
    )
    return updated
