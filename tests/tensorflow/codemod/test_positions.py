"""Each name of the tables in each place of a script: nothing is left half converted.

Random small scripts are converted. What comes out compiles, imports only what exists, has no name of TensorFlow's left
without a sentence above it, and stays the second time.
"""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Iterator

import keras  # noqa: F401 - names of it are looked up
import pytest

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.conversion import Conversion, convert, is_edit
from replicax.tensorflow.codemod.imports import MODULES
from replicax.tensorflow.codemod.names import PACKAGES, canonical
from replicax.tensorflow.codemod.tables import rows

#: Statements; `E` is a name of TensorFlow's, `C` a call of it.
PLACES = (
    "x = C",
    "C",
    "x = E",
    "x = E.other",
    "f = E\nx = f(a)",
    "x = [C, {'k': E}, (E, *C)]",
    "@E\ndef f(a):\n    return a",
    "@E()\ndef f(a):\n    return C",
    "def f(a=E, *, b=C):\n    return E",
    "def f(a: E, *b: 'E') -> E:\n    yield C",
    "class K(E):\n    part = C\n\n    def __init__(self):\n        self.x = C",
    "a = 1; x = C; b = 2",
    "x = C; y = C; z = E",
    "C; x = 1",
    "x = 1; C",
    "x = 1; C;  # why",
    "if a: x = C",
    "if a: x = 1; C; y = E",
    "if a: C\nelif C: y = C\nelse: x = E",
    "while C: x = C; break",
    "for x in C: y = C",
    "for x in range(3): C; y = 1",
    "def f(a): x = C; return x",
    "class K: part = C; other = E",
    "try: x = C\nexcept E: y = C\nfinally: z = E",
    "with C as x: y = C",
    "with C, E as x:\n    C",
    "f = lambda a: C",
    "f = lambda a=C: E",
    "x = [C for a in b if E]",
    "x = {a: C for a in C}",
    "x = (C for a in b)",
    "x = \\\n    C",
    "x = a + \\\n    C - \\\n    E",
    "x = (\n    C\n    # a comment\n    + E\n)",
    "x = f'{C} and {E!r:>{a}}'",
    "x = C if a else E",
    "x = a[E], a[C:E]",
    "x = C[0].y(E)",
    "x: E = C",
    "x += C",
    "x = y = C",
    "x, y = C, E",
    "if (x := C): pass",
    "assert C, E",
    "raise ValueError(C)",
    "print(C, key=E, *C, **C)",
    "x = not C and -C == C",
    "async def f(a):\n    await C\n    async with C as b:\n        return E",
    "match a:\n    case 1 if C:\n        x = E\n    case _: y = C",
    "del a[C]",
    "E.other = C",
    "# a comment\nx = C  # another",
    "def f(a):\n    def g(b=C):\n        return C\n    return g",
    "def f(a):\n\t'''Text.'''\n\tx = C; y = E\n\treturn x",
    "global_x = C; del a; pass",
    "x = C.numpy(); y = C.numpy",
    "E(a)(b)",
)
ARGUMENTS = (
    "",
    "a",
    "a, b",
    "a, b, c",
    "a, 1",
    "a, axis=1",
    'a, name="n"',
    "*a",
    "**a",
    'a, dtype="float64"',
    "[1], 2",
)
#: Classes whose members are attributes of their objects.
OWNERS = {*rows.OWNERS, "tf.estimator.RunConfig"}
NAMES = sorted(
    {name for name in tables.RULES if name.startswith("tf.") and name.rpartition(".")[0] not in OWNERS}
    | {f"{prefix}.some_name" for prefix in tables.PREFIXES if prefix.startswith("tf.")}
    | {"tf.some_name", "tf.python.ops.some_name", "tf.compat.v1.some_name"}
)


def import_of(name: str, way: int) -> tuple[str, str]:
    """Returns an import, and the expression that is the name then."""
    whole = "tensorflow" + name.removeprefix("tf")
    module, _, last = whole.rpartition(".")
    if way == 1:
        return f"from {module} import {last}", last
    if way == 2:
        return f"from {module} import {last} as other_{last}", f"other_{last}"
    if way == 3 and module != "tensorflow":
        return f"import {module} as {last}_module", f"{last}_module.{last}"
    if way == 4 and module != "tensorflow":
        above, _, name_of = module.rpartition(".")
        return f"from {above} import {name_of}", f"{name_of}.{last}"
    if way == 5:
        return "from common import *", name
    if way == 6:
        return f"import tensorflow as tf\n{last}_alias = {name.rpartition('.')[0]}", f"{last}_alias.{last}"
    return "import tensorflow as tf", name


def script(rng: random.Random, names: list[str]) -> str:
    imports, body = [], []
    for name in {name.rpartition(".")[2]: name for name in names}.values():
        line, expression = import_of(name, rng.randrange(14))
        place = rng.choice(PLACES)
        call = f"{expression}({rng.choice(ARGUMENTS)})"
        imports += [line] if line not in imports else []
        body.append("".join({"E": expression, "C": call}.get(part, part) for part in parts_of(place)))
    return "\n".join([*imports, "a = b = c = x = y = z = f = 1", *body]) + "\n"


def parts_of(place: str) -> Iterator[str]:
    """Yields the marks in a statement, and what is between them."""
    word = ""
    for at, letter in enumerate(place):
        beside = place[at - 1 : at] + place[at + 1 : at + 2]
        if letter in "EC" and not any(each.isalnum() or each == "_" for each in beside):
            yield word
            yield letter
            word = ""
        else:
            word += letter
    yield word


def faults(text: str) -> list[str]:
    """Returns what is wrong with the conversion of a script."""
    found = convert(text)
    try:
        tree = ast.parse(found.after)
        compile(found.after, "<converted>", "exec")
    except SyntaxError as error:
        return [f"it does not compile: {error}"]
    wrong = [] if convert(found.after).after == found.after else ["it changes when it is converted again"]
    wrong += [f"{name} does not exist" for name in sorted(chains(tree)) if not exists(name)]
    wrong += unexplained(found, tree)
    return wrong


def chains(tree: ast.AST) -> set[str]:
    """Returns the names of the libraries that a script takes, such as `keras.ops.sum`, by their whole names."""
    found = set()
    whole = {name: line.split()[1] for name, line in MODULES.items()}
    bound = {
        alias.asname or alias.name: isinstance(node, ast.Import)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("keras", "replicax", "jax"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            first, _, rest = text.partition(".")
            if first in MODULES and bound.get(first, True) and "other" not in rest and "(" not in rest:
                found.add(f"{whole[first]}.{rest}" if first in bound else f"{first}, which is not imported,")
    return found


def exists(name: str) -> bool:
    first, *parts = name.split(".")
    if " " in name:
        return False
    value = importlib.import_module(first)
    for at, part in enumerate(parts):
        if not hasattr(value, part):
            try:
                value = importlib.import_module(".".join([first, *parts[: at + 1]]))
            except ImportError:
                return part == "numpy" or "numpy()" in name
        else:
            value = getattr(value, part)
    return True


def unexplained(found: Conversion, tree: ast.AST) -> list[str]:
    """Returns the names of TensorFlow's that are left in a script without a sentence above their statement."""
    lines = found.after.splitlines()
    wrong = []
    for each in found.findings:
        if is_edit(each) and each.comment() not in {line.strip() for line in lines}:
            wrong.append(f"no comment {each.comment()}")
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (module or alias.name).partition(".")[0] in PACKAGES:
                    bound[alias.asname or alias.name.partition(".")[0]] = canonical(module + alias.name)
    keeps_pipelines = any("tf.data" in each.name for each in found.edits)  # all, as one of them says
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id in bound or node.id == "tf"):
            above = above_of(tree, node.lineno)
            is_of_data = bound.get(node.id, "").startswith("tf.data") or "tf.data" in lines[node.lineno - 1]
            kept = keeps_pipelines and is_of_data
            if not kept and not any(line.strip().startswith("# replicax: ") for line in lines[above - 2 : above - 1]):
                wrong.append(f"line {node.lineno}: {node.id} is left, and nothing says why")
    return wrong


def above_of(tree: ast.AST, line: int) -> int:
    """Returns the first line of the innermost statement that has a line, decorators included."""
    best = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            if first <= line <= (node.end_lineno or line) and (best is None or first >= best):
                best = first
    return best or line


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.nightly] if seed > 5 else []) for seed in range(60)]
)
def test_no_name_is_left_half_converted(seed):
    rng = random.Random(seed)
    text = script(rng, rng.sample(NAMES, 12))
    assert faults(text) == [], text
