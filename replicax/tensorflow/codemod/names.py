"""Which name of TensorFlow an expression is, through imports and aliases."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst
from libcst import metadata

#: How TensorFlow's packages are called in the tables; the first match counts.
ROOTS = (
    ("tensorflow.compat.v2", "tf"),
    ("tensorflow.compat.v1.keras", "tf.keras"),
    ("tensorflow.compat.v1", "tf.compat.v1"),
    ("tensorflow.python.keras", "tf.keras"),
    ("tensorflow.v2", "tf"),
    ("tensorflow", "tf"),
    ("tf_keras", "tf.keras"),
    ("keras", "tf.keras"),
)
#: Packages that a script is converted away from: one that imports none of them is left alone.
PACKAGES = ("tensorflow", "tf_keras", "tensorflow_estimator", "tensorflow_addons")

#: Modules below `tf.compat.v1` with the same contents as those of TensorFlow 2.
SAME_IN_V1 = ("config", "data", "distribute", "dtypes", "errors", "io.gfile", "keras", "math", "saved_model")


def canonical(name: str) -> str:
    """Returns a dotted name as the tables call it.

    >>> canonical("tensorflow.keras.layers.Dense"), canonical("tensorflow.compat.v2.cast"), canonical("numpy.sum")
    ('tf.keras.layers.Dense', 'tf.cast', 'numpy.sum')
    """
    return with_prefix(name, ROOTS)


def with_prefix(name: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """Returns a dotted name whose first names are replaced by the first pair `(old, new)` that fits.

    >>> with_prefix("numpy.sum", [("numpy", "np")]), with_prefix("numpyro.sum", [("numpy", "np")])
    ('np.sum', 'numpyro.sum')
    """
    for old, new in prefixes:
        if name == old or name.startswith(old + "."):
            return new + name[len(old) :]
    return name


def _newest(name: str) -> str:
    """Returns a name without `compat`, where it means the same without.

    >>> _newest("tf.compat.v1.keras.layers.Dense"), _newest("tf.compat.v2.cast"), _newest("tf.compat.v1.metrics.mean")
    ('tf.keras.layers.Dense', 'tf.cast', 'tf.compat.v1.metrics.mean')
    """
    name = name.replace("tf.compat.v2.", "tf.", 1) if name.startswith("tf.compat.v2.") else name
    below = name.removeprefix("tf.compat.v1.")
    if below != name and any(below == each or below.startswith(each + ".") for each in SAME_IN_V1):
        return "tf." + below
    return name


def is_tensorflow(module: str) -> bool:
    """Returns whether a module belongs to TensorFlow."""
    return module.partition(".")[0] in PACKAGES


def dotted(node: cst.CSTNode) -> tuple[cst.Name, list[str]] | None:
    """Returns the first name of `a.b.c` and the others; None for any other expression."""
    rest: list[str] = []
    while isinstance(node, cst.Attribute):
        rest.append(node.attr.value)
        node = node.value
    return (node, rest[::-1]) if isinstance(node, cst.Name) else None


class Names:
    """The names of a script."""

    def __init__(self, wrapper: metadata.MetadataWrapper):
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._known: dict[cst.CSTNode, str | None] = {}

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the node around another."""
        return self._parents.get(node)

    def scope(self, node: cst.CSTNode) -> metadata.Scope | None:
        """Returns the scope that a node stands in."""
        return self._scopes.get(node)

    def of(self, node: cst.CSTNode) -> str | None:
        """Returns the name of an imported thing that an expression is, such as `"tf.keras.layers.Dense"`, or None."""
        if node not in self._known:
            self._known[node] = None  # A name that is assigned itself.
            self._known[node] = self._found(node)
        return self._known[node]

    def assignments(self, name: cst.Name) -> set[metadata.BaseAssignment]:
        """Returns the assignments, imports and definitions that a name may come from."""
        scope = self._scopes.get(name)
        return set(scope[name.value]) if scope is not None else set()

    def assigned_value(self, assignment: metadata.BaseAssignment) -> cst.BaseExpression | None:
        """Returns `value` of an assignment `name = value`; None for others, such as `a, b = value`."""
        node = getattr(assignment, "node", None)
        target = self._parents.get(node) if isinstance(node, cst.Name) else None
        if isinstance(target, cst.AnnAssign):
            return target.value
        statement = self._parents.get(target) if isinstance(target, cst.AssignTarget) else None
        return statement.value if isinstance(statement, cst.Assign) else None

    def _found(self, node: cst.CSTNode) -> str | None:
        parts = dotted(node)
        if parts is None:
            return None
        base, rest = parts
        # An alias counts as what it was assigned; a name with two meanings has none.
        found = {self._meaning(base, each) for each in self.assignments(base) if not self._is_none(each)}
        root = found.pop() if len(found) == 1 else None
        return None if root is None else _newest(".".join([root, *rest]))

    def _is_none(self, assignment: metadata.BaseAssignment) -> bool:
        """Returns whether it is `name = None`: what a script does without a module that cannot be imported."""
        value = self.assigned_value(assignment)
        return isinstance(value, cst.Name) and value.value == "None"

    def _meaning(self, base: cst.Name, assignment: metadata.BaseAssignment) -> str | None:
        if isinstance(assignment, metadata.ImportAssignment):
            names = {canonical(each.name) for each in assignment.get_qualified_names_for(base.value)}
            return names.pop() if len(names) == 1 else None
        value = self.assigned_value(assignment)
        return self.of(value) if isinstance(value, (cst.Name, cst.Attribute)) else None
