"""Lists of devices that only `tf.config` uses: they go with it.

`rx.config.set_virtual_devices` must come before JAX makes its devices, and listing them makes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.rewriter import Action, removed
from replicax.tensorflow.codemod.script import Script

_LISTS = ("list_physical_devices", "list_logical_devices")
_SETTINGS = ("set_logical_device_configuration", "set_virtual_device_configuration", "set_memory_growth")


def planned(script: Script) -> Mapping[cst.CSTNode, Action]:
    """Returns the assignments of lists of devices that nothing else uses: they are removed."""
    finder = _Lists(script)
    script.module.visit(finder)
    return dict.fromkeys(finder.found, removed)


class _Lists(cst.CSTVisitor):
    def __init__(self, script: Script):
        self._script = script
        self.found: list[cst.CSTNode] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if len(node.targets) != 1 or not isinstance(target, cst.Name) or not self._is_call(node.value, _LISTS):
            return
        mentions = [
            each for each in m.findall(self._script.module, m.Name(target.value)) if self._is_read(each, target)
        ]
        if mentions and all(self._is_setting(each) for each in mentions):
            self.found.append(node)

    def _is_call(self, node: cst.CSTNode, names: tuple[str, ...]) -> bool:
        name = self._script.names.of(node.func) if isinstance(node, cst.Call) else None
        return name is not None and name.startswith("tf.config.") and name.rpartition(".")[2] in names

    def _is_read(self, node: cst.CSTNode, target: cst.Name) -> bool:
        name = cst.ensure_type(node, cst.Name)
        return name is not target and any(
            getattr(each, "node", None) is target for each in self._script.names.assignments(name)
        )

    def _is_setting(self, node: cst.CSTNode) -> bool:
        parent: cst.CSTNode | None = node
        while parent is not None and not isinstance(parent, (cst.Call, cst.BaseSuite)):
            parent = self._script.names.parent(parent)
        return parent is not None and self._is_call(parent, _SETTINGS)
