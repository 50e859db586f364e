"""The fate of whole statements: found before the rewriting, by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import libcst as cst

from replicax.tensorflow.codemod import device_blocks, estimators, functions, gradients, leftovers, overrides, pipelines
from replicax.tensorflow.codemod.rewriter import Action
from replicax.tensorflow.codemod.script import Script

#: Each looks through a script and returns what becomes of nodes. One node belongs to one planner.
PLANNERS: tuple[Callable[[Script], Mapping[cst.CSTNode, Action]], ...] = (
    device_blocks.planned,
    functions.planned,
    gradients.planned,
    pipelines.planned,
    estimators.planned,
    overrides.planned,
    leftovers.planned,
)
#: Each returns nodes that stay TensorFlow's with all that is in them, such as functions of an input pipeline.
KEEPERS: tuple[Callable[[Script], frozenset[cst.CSTNode]], ...] = (pipelines.kept,)


def actions(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns what becomes of a script's statements, by node."""
    return {node: action for planner in PLANNERS for node, action in planner(script).items()}


def kept(script: Script) -> frozenset[cst.CSTNode]:
    """Returns the nodes that stay as they are."""
    return frozenset().union(*(keeper(script) for keeper in KEEPERS))
