"""Imports of TensorFlow whose use cannot be told: they are findings, so that nothing stays unsaid."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.imports import MODULES, bindings, of_tensorflow
from replicax.tensorflow.codemod.names import is_tensorflow
from replicax.tensorflow.codemod.rewriter import Action
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.writer import Binding, Writer

_STARS = m.ImportFrom(names=m.ImportStar())
_STAR = "It is not known which names `*` brings: import them by their names."
_UPON = (
    "It is built on TensorFlow, and what it does with it is not known here: find its counterpart for Keras 3 or "
    "JAX. `replicax run` starts the processes of a training."
)
#: Packages that give data: their pipelines are kept like those of tf.data.
_OF_DATA = ("tensorflow_datasets", "tensorflow_io", "tensorflow_data_validation", "tensorflow_transform")
#: Packages upon TensorFlow whose names do not say it.
_OTHERS = ("horovod", "sparkdl", "tf_agents", "tf_slim")
_TAKEN = (
    "The script has this name for something else, and its converted parts for {}: give it another name, and convert "
    "again."
)
_UNTOLD = "It is still used, in a way that is not understood: under a name with two meanings, for instance."


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns the star imports of TensorFlow's modules, and the imports of packages upon it: they are refused."""
    stars = [cst.ensure_type(each, cst.ImportFrom) for each in m.findall(script.module, _STARS)]
    refused: dict[cst.CSTNode, Action] = {}
    refused.update({each: _refusal(name, _STAR) for each in stars if is_tensorflow(name := _module(each))})
    for node in m.findall(script.module, m.Import() | m.ImportFrom()):
        upon = next((name for name in _modules(node) if _is_upon_tensorflow(name)), None)
        if upon is not None:
            refused[node] = _refusal(upon, _UPON)
    return refused


def unexplained(script: Script, module: cst.Module, explained: Collection[Binding]) -> Mapping[cst.CSTNode, Action]:
    """Returns refusals for imports of TensorFlow that a converted script still has."""
    left = set(of_tensorflow(module)) - set(explained)
    return {
        node: _refusal(binding.meaning, _UNTOLD)
        for node in m.findall(script.module, m.Import() | m.ImportFrom())
        if isinstance(node, (cst.Import, cst.ImportFrom))
        for _, binding in bindings(node)
        if binding in left
    }


def taken(script: Script, modules: Collection[str]) -> Mapping[cst.CSTNode, Action]:
    """Returns refusals for names of a script's own that are the short names of modules, too."""
    found: dict[str, cst.CSTNode] = {}
    for node in m.findall(script.module, m.OneOf(*(m.Name(short) for short in modules))) if modules else ():
        name = cst.ensure_type(node, cst.Name)
        whole, meaning = MODULES[name.value].split()[1], script.names.of(name) or ""
        if script.names.assignments(name) and meaning != whole and not meaning.startswith("tf."):
            found.setdefault(name.value, name)
    return {node: _refusal(short, _TAKEN.format(MODULES[short].split()[1])) for short, node in found.items()}


def _is_upon_tensorflow(module: str) -> bool:
    """Returns whether a module is of another package that is built on TensorFlow."""
    package = module.partition(".")[0]
    upon = "tensorflow" in package or package in _OTHERS
    return upon and package not in _OF_DATA and not is_tensorflow(module)


def _modules(node: cst.CSTNode) -> list[str]:
    """Returns the modules that an import names."""
    if isinstance(node, cst.ImportFrom):
        return [_module(node)]
    return [alias.evaluated_name for alias in cst.ensure_type(node, cst.Import).names]


def _module(node: cst.ImportFrom) -> str:
    return "" if node.relative or node.module is None else cst.Module([]).code_for_node(node.module)


def _refusal(name: str, reason: str) -> Action:
    def refused(writer: Writer, node: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        writer.refuse(node, name, reason)
        return updated

    return refused
