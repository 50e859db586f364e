"""The kinds of objects that expressions give: a strategy, a model, a tensor. A small inference, without execution.

A kind is a canonical name of a class (`"tf.distribute.Strategy"`). The inference follows assignments, attributes of
`self`, functions of the script, and TensorFlow's functions by the tables. Where a name has two kinds, or comes from
outside, the kind is None: then nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst
from libcst import matchers as m, metadata

from replicax.tensorflow.codemod.names import Names

LITERALS = ((cst.Integer, "int"), (cst.Float, "float"), (cst.List, "list"), (cst.Tuple, "tuple"), (cst.Dict, "dict"))


class KindTables:
    """The knowledge of the tables about kinds."""

    def __init__(self, results: Mapping[str, str], members: Mapping[tuple[str, str], str], bases: Mapping[str, str]):
        # `results`: the kind of a call by canonical name, mostly the class or a base; a key ending in "." is a prefix.
        # `members`: the kind of an attribute or a method's result by kind and name. `bases`: the class above each.
        self._results, self._members, self._bases = results, members, bases
        self._prefixes = sorted((key for key in results if key.endswith(".")), key=len, reverse=True)

    def result(self, name: str) -> str | None:
        """Returns the kind of what a call of a canonical name gives."""
        if name in self._results:
            return self._results[name]
        return next((self._results[prefix] for prefix in self._prefixes if name.startswith(prefix)), None)

    def member(self, kind: str, attribute: str) -> str | None:
        """Returns the kind of an attribute, or of what a method of this name gives."""
        return next(
            (self._members[each, attribute] for each in self.family(kind) if (each, attribute) in self._members), None
        )

    def family(self, kind: str) -> Iterable[str]:
        """Yields a kind and those above it."""
        known: str | None = kind
        while known is not None:
            yield known
            known = self._bases.get(known)


class Kinds:
    """The kinds of a script's expressions."""

    def __init__(self, wrapper: metadata.MetadataWrapper, names: Names, tables: KindTables):
        self._names, self._tables = names, tables
        self._known: dict[cst.CSTNode, str | None] = {}
        self._asked: set[metadata.BaseAssignment] = set()
        self._classed: set[cst.CSTNode] = set()  # that `class_of` is at
        self._facts = _Facts(names)
        wrapper.module.visit(self._facts)

    def of(self, node: cst.CSTNode) -> str | None:
        """Returns the kind of an expression; None if it is unknown."""
        if node not in self._known:
            self._known[node] = None
            self._known[node] = self._found(node)
        return self._known[node]

    def is_a(self, node: cst.CSTNode, kind: str) -> bool:
        """Returns whether an expression is known to be of a kind, or of one below it."""
        found = self.of(node)
        return found is not None and kind in self._tables.family(found)

    def family(self, node: cst.CSTNode) -> tuple[str, ...]:
        """Returns the kind of an expression and those above it; empty if it is unknown."""
        found = self.of(node)
        return () if found is None else tuple(self._tables.family(found))

    def _found(self, node: cst.CSTNode) -> str | None:
        if isinstance(node, cst.Call):
            return self._of_call(node)
        if isinstance(node, cst.Name):
            return self._of_name(node)
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node)
        if isinstance(node, cst.IfExp):
            return self._same([self.of(node.body), self.of(node.orelse)])
        if isinstance(node, cst.BinaryOperation):
            return self._of_operands(node.left, node.right)
        if isinstance(node, cst.Comparison):
            return self._of_operands(node.left, *(each.comparator for each in node.comparisons))
        if isinstance(node, cst.UnaryOperation):
            return self._of_operands(node.expression)
        if isinstance(node, cst.Subscript):
            kind = self.of(node.value)
            return "tf.Tensor" if kind in ("tf.Tensor", "tf.Variable") else None
        return next((kind for literal, kind in LITERALS if isinstance(node, literal)), None)

    def _of_operands(self, *operands: cst.CSTNode) -> str | None:
        kinds = {self.of(each) for each in operands}
        return "tf.Tensor" if kinds & {"tf.Tensor", "tf.Variable"} else None

    def _of_call(self, node: cst.Call) -> str | None:
        name = self._names.of(node.func)
        if name is not None:
            return self._tables.result(name)
        if isinstance(node.func, cst.Attribute):
            owner = self.of(node.func.value)
            if owner is not None:
                found = self._tables.member(owner, node.func.attr.value)
                if found is not None:
                    return found
        elif isinstance(node.func, cst.Name) and node.func.value == "iter" and node.args:
            owner = self.of(node.args[0].value)
            return self._tables.member(owner, "__iter__") if owner else None
        elif isinstance(node.func, cst.Name) and node.func.value == "next" and node.args:
            owner = self.of(node.args[0].value)
            return self._tables.member(owner, "__next__") if owner else None
        elif isinstance(node.func, cst.Name):
            definition = self.definition(node.func)
            if isinstance(definition, cst.FunctionDef):
                return self._same([self.of(each) for each in self._facts.returns.get(definition, [])])
            if isinstance(definition, cst.ClassDef):
                return self.of_class(definition)
        else:
            called = self.of(node.func)  # Such as `loss_object(y, predictions)`.
            return self._tables.member(called, "__call__") if called else None
        called = self.of(node.func)
        return self._tables.member(called, "__call__") if called else None

    def definition(self, name: cst.Name) -> cst.CSTNode | None:
        """Returns the one function or class of the script that a name is."""
        nodes = {getattr(each, "node", None) for each in self._names.assignments(name)}
        found = nodes.pop() if len(nodes) == 1 else None
        return found if isinstance(found, (cst.FunctionDef, cst.ClassDef)) else None

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Returns the class of the script that an expression is known to be an object of."""
        values: Iterable[cst.CSTNode | None] = ()
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            definition = self.definition(node.func)
            if isinstance(definition, cst.ClassDef):
                return definition
            if isinstance(definition, cst.FunctionDef):
                values = self._facts.returns.get(definition, ())
        elif isinstance(node, cst.Name):
            values = [self._names.assigned_value(each) for each in self._names.assignments(node)]
        elif m.matches(node, m.Attribute(value=m.Name("self"))):
            name = cst.ensure_type(node, cst.Attribute).attr.value
            values = self._facts.attributes.get((self._enclosing_class(node), name), ())
        if any(value is node for value in values) or node in self._classed:
            return None
        self._classed.add(node)
        found = {None if value is None else self.class_of(value) for value in values}
        self._classed.remove(node)
        return found.pop() if len(found) == 1 else None

    def leaves_to_base(self, definition: cst.ClassDef, method: str, *bases: str) -> bool:
        """Returns whether a class of the script has a method from one of these bases, by their canonical names."""
        body = definition.body.body
        if any(isinstance(each, cst.FunctionDef) and each.name.value == method for each in body):
            return False
        if len(definition.bases) != 1:
            return False
        base = definition.bases[0].value
        if self._names.of(base) in bases:
            return True
        inner = self.definition(base) if isinstance(base, cst.Name) else None
        return (
            isinstance(inner, cst.ClassDef) and inner is not definition and self.leaves_to_base(inner, method, *bases)
        )

    def method(self, node: cst.Attribute) -> cst.FunctionDef | None:
        """Returns the method that `self.name` is, if the class around defines it."""
        owner = self._enclosing_class(node)
        body = owner.body.body if owner is not None else ()
        named = [each for each in body if isinstance(each, cst.FunctionDef) and each.name.value == node.attr.value]
        return named[0] if len(named) == 1 else None

    def of_class(self, definition: cst.ClassDef) -> str | None:
        """Returns the kind of a class's objects: by its bases."""
        for base in definition.bases:
            name = self._names.of(base.value)
            if name is not None:
                return self._tables.result(name) or name
            inner = self.definition(base.value) if isinstance(base.value, cst.Name) else None
            if isinstance(inner, cst.ClassDef) and inner is not definition:
                return self.of_class(inner)
        return None

    def _of_name(self, node: cst.Name) -> str | None:
        name = self._names.of(node)
        if name is not None:
            return None
        if node.value == "self":
            owner = self._enclosing_class(node)
            return self.of_class(owner) if owner is not None else None
        latest = self._latest(node)
        if latest:
            return self._same([self._of_assignment(each) for each in latest])
        found: list[str | None] = []
        for each in self._names.assignments(node) - self._asked:  # `ds = ds.batch(2)` has the kind of the other ones.
            self._asked.add(each)
            found.append(self._of_assignment(each))
            self._asked.remove(each)
        return self._same(found)

    def _latest(self, node: cst.Name) -> list[metadata.BaseAssignment]:
        """Returns the assignments above a name that it may come from; none if that cannot be told."""
        above = {id(each): each for each in self._names.assignments(node)}
        inside = {key: self._around(getattr(each, "node", None)) for key, each in above.items()}
        found: dict[int, metadata.BaseAssignment] = {}
        statement: cst.CSTNode | None = node
        while statement is not None and not isinstance(statement, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            if isinstance(statement, (cst.For, cst.While)):  # Its end assigns what its beginning reads.
                found.update({key: above[key] for key, outer in inside.items() if statement in outer})
            block = self._names.parent(statement)
            if isinstance(block, (cst.IndentedBlock, cst.Module)):
                place = next(at for at, each in enumerate(block.body) if each is statement)
                for before in reversed(block.body[:place]):
                    here = {key: above[key] for key, outer in inside.items() if before in outer}
                    found.update(here)
                    if here and isinstance(before, (cst.SimpleStatementLine, cst.With)):
                        return list(found.values())
            statement = block
        return []

    def _around(self, node: cst.CSTNode | None) -> set[cst.CSTNode]:
        found: set[cst.CSTNode] = set()
        while node is not None:
            found.add(node)
            node = self._names.parent(node)
        return found

    def _of_assignment(self, assignment: metadata.BaseAssignment) -> str | None:
        value = self._names.assigned_value(assignment)
        if value is not None:
            return self.of(value)
        node = getattr(assignment, "node", None)
        parent = self._names.parent(node) if node is not None else None
        if isinstance(parent, cst.AsName):
            item = self._names.parent(parent)
            return self.of(item.item) if isinstance(item, cst.WithItem) else None
        if isinstance(parent, cst.For) and parent.target is node:
            owner = self.of(parent.iter)
            return self._tables.member(owner, "__next__") if owner else None
        if isinstance(parent, cst.AugAssign):
            return self.of(parent.value)
        if isinstance(node, cst.Param) or isinstance(parent, cst.Param):
            return self._of_parameter(node if isinstance(node, cst.Param) else parent)
        return None

    def _of_parameter(self, node: cst.CSTNode | None) -> str | None:
        if not isinstance(node, cst.Param):
            return None
        if node.annotation is not None:
            name = self._names.of(node.annotation.annotation)
            if name is not None:
                return self._tables.result(name) or name
        given = self._facts.arguments(node)
        return self._same([self.of(each) for each in given]) if given else None

    def _of_attribute(self, node: cst.Attribute) -> str | None:
        if m.matches(node.value, m.Name("self")):
            owner = self._enclosing_class(node)
            values = self._facts.attributes.get((owner, node.attr.value), []) if owner is not None else []
            if values:
                return self._same([self.of(each) for each in values])
        kind = self.of(node.value)
        return self._tables.member(kind, node.attr.value) if kind is not None else None

    def _enclosing_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        parent = self._names.parent(node)
        while parent is not None and not isinstance(parent, cst.ClassDef):
            parent = self._names.parent(parent)
        return parent

    @staticmethod
    def _same(kinds: Iterable[str | None]) -> str | None:
        found = set(kinds)
        return found.pop() if len(found) == 1 else None


class _Facts(cst.CSTVisitor):
    """The assignments to `self` in a script, what its functions return, and what they are called with."""

    def __init__(self, names: Names):
        self._names = names
        self._functions: list[cst.FunctionDef] = []
        self._classes: list[cst.ClassDef] = []
        self._calls: dict[cst.FunctionDef, list[cst.Call]] = {}
        self.returns: dict[cst.FunctionDef, list[cst.CSTNode]] = {}
        self.attributes: dict[tuple[cst.ClassDef | None, str], list[cst.CSTNode]] = {}

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions.pop()

    def visit_Return(self, node: cst.Return) -> None:
        if self._functions and node.value is not None:
            self.returns.setdefault(self._functions[-1], []).append(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if self._classes and m.matches(target.target, m.Attribute(value=m.Name("self"))):
                name = cst.ensure_type(target.target, cst.Attribute).attr.value
                self.attributes.setdefault((self._classes[-1], name), []).append(node.value)

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Name):
            for assignment in self._names.assignments(node.func):
                definition = getattr(assignment, "node", None)
                if isinstance(definition, cst.FunctionDef):
                    self._calls.setdefault(definition, []).append(node)

    def arguments(self, param: cst.Param) -> list[cst.CSTNode]:
        """Returns what calls in the script give for a parameter of a function; empty if any cannot be told."""
        parameters = self._names.parent(param)
        function = self._names.parent(parameters) if parameters is not None else None
        if not isinstance(function, cst.FunctionDef) or not isinstance(parameters, cst.Parameters):
            return []
        place = next((at for at, each in enumerate(parameters.params) if each is param), None)
        given: list[cst.CSTNode] = []
        for call in self._calls.get(function, []):
            if any(arg.star for arg in call.args):
                return []
            found = [
                arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == param.name.value
            ]
            if not found and place is not None and place < len(call.args) and call.args[place].keyword is None:
                found = [call.args[place].value]
            if not found and param.default is None:
                return []
            given += found
        return given
