"""Files of models and weights: Keras 3 wants the endings `.keras` and `.weights.h5`, where Keras 2 took any path."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.adapting import Unconvertible, is_literal, literal
from replicax.tensorflow.codemod.rules import Rewriting
from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.codemod.tensors import refusing

MODEL, WEIGHTS = ".keras", ".weights.h5"
NOTE = "Keras 3 writes models to files that end in `.keras`, and weights to files that end in `.weights.h5`."
_SAVING = ("save", "save_weights")


def tail(script: Script, node: cst.BaseExpression) -> str | None:
    """Returns a string that a path ends with; None if it is not known."""
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    if isinstance(node, cst.FormattedString) and node.parts:
        last = node.parts[-1]
        return last.value if isinstance(last, cst.FormattedStringText) else ""
    if isinstance(node, cst.BinaryOperation):
        return tail(script, node.right) if isinstance(node.operator, cst.Add) else None
    if isinstance(node, cst.Call):
        joined = script.names.of(node.func) == "os.path.join" and node.args
        return tail(script, node.args[-1].value) if joined else None
    if isinstance(node, cst.Name):
        assignments = script.names.assignments(node)
        values = [script.names.assigned_value(each) for each in assignments]
        return tail(script, values[0]) if len(values) == 1 and values[0] is not None else None
    return None


def ending(
    rewriting: Rewriting, path: cst.BaseExpression, updated: cst.BaseExpression, wanted: str
) -> cst.BaseExpression:
    """Returns a path with the ending that Keras 3 wants."""
    known = tail(rewriting.script, path)
    if known is not None and known.endswith((MODEL, ".h5", ".hdf5") if wanted == MODEL else (WEIGHTS,)):
        return updated
    if isinstance(updated, cst.SimpleString) and not updated.prefix:
        return cst.SimpleString(f"{updated.quote}{updated.raw_value.rstrip('/')}{wanted}{updated.quote}")
    quoted = cst.SimpleString(f'"{wanted}"')
    if known is None:
        cut = '{path}.removesuffix("/").removesuffix({end}) + {end}'
    else:
        cut = '{path}.rstrip("/") + {end}' if known.endswith("/") else "{path} + {end}"
    return rewriting.code(cut, path=updated, end=quoted)


def saved_paths(script: Script) -> set[str]:
    """Returns the paths that a script saves models or weights to, as it writes them."""
    found = set()
    for each in m.findall(script.module, m.Call(func=m.Attribute(attr=m.OneOf(*map(m.Name, _SAVING))))):
        call = cst.ensure_type(each, cst.Call)
        path = next((arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "filepath"), None)
        if path is not None:
            found.add(cst.Module([]).code_for_node(path))
    return found


def _path(call: cst.Call) -> int:
    places = [
        place
        for place, arg in enumerate(call.args)
        if (arg.keyword is None and place == 0) or (arg.keyword is not None and arg.keyword.value == "filepath")
    ]
    if not places or any(arg.star for arg in call.args):
        raise Unconvertible("its path is not among the arguments that stand here")
    return places[0]


def _without(call: cst.Call, names: frozenset[str]) -> cst.Call:
    args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in names]
    if args:
        args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=args)


def _replaced(rewriting: Rewriting, node: cst.Call, updated: cst.Call, wanted: str) -> cst.Call:
    place = _path(node)
    path = ending(rewriting, node.args[place].value, updated.args[place].value, wanted)
    if path is not updated.args[place].value:
        rewriting.note(node, "filepath", NOTE)
    args = list(updated.args)
    args[place] = args[place].with_changes(value=path)
    return updated.with_changes(args=args)


@refusing
def save(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`model.save(path)`: a file `.keras`; HDF5 stays HDF5."""
    _refuse(node, "signatures", "a signature is written by `rx.export(function, path)`")
    _refuse(node, "options", "TensorFlow's options for saving have no counterpart")
    form = next(
        (arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "save_format"), None
    )
    if form is not None and (not is_literal(form) or literal(form) in ("h5", "hdf5")):
        raise Unconvertible("the format follows from the path's ending in Keras 3: give it `.keras` or `.h5`")
    dropped = frozenset({"save_format", "save_traces"})
    return _without(_replaced(rewriting, node, updated, MODEL), dropped)


@refusing
def save_weights(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`model.save_weights(path)`: a file `.weights.h5`."""
    return _without(_replaced(rewriting, node, updated, WEIGHTS), frozenset({"save_format", "options"}))


@refusing
def load_weights(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`model.load_weights(path)`: from a file that the script has written, or the newest of those that it has."""
    _refuse(node, "by_name", "give `skip_mismatch=` or match layers by hand")
    path = node.args[_path(node)].value
    if isinstance(path, cst.Call) and rewriting.script.names.of(path.func) in _LATEST:
        folder = path.args[0].value
        newest = rewriting.code(
            'max(glob.glob(os.path.join({folder}, "*.weights.h5")), key=os.path.getmtime)', folder=folder
        )
        args = [updated.args[0].with_changes(value=newest), *updated.args[1:]]
        return updated.with_changes(args=args)
    known = tail(rewriting.script, path)
    written = cst.Module([]).code_for_node(path) in saved_paths(rewriting.script)
    if written:
        return _replaced(rewriting, node, updated, WEIGHTS)
    if known is not None and not known.endswith((".h5", ".hdf5", MODEL)):
        raise Unconvertible("it is a checkpoint of TensorFlow: `rx.Checkpoint(model).restore(path)` reads those")
    return updated


_LATEST = ("tf.train.latest_checkpoint", "tf.compat.v1.train.latest_checkpoint")


def load_model(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`load_model(path)`: of a file that the script has written; a SavedModel is none that Keras 3 loads."""
    return _load_model(rewriting, node, updated)


@refusing
def _load_model(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    place = _path(node)
    path = node.args[place].value
    known = tail(rewriting.script, path)
    written = saved_paths(rewriting.script)
    func = rewriting.renamed(node.func, "keras.models.load_model")
    result = updated.with_changes(func=func)
    if cst.Module([]).code_for_node(path) in written or (written and known is not None):
        result = cst.ensure_type(_replaced(rewriting, node, result, MODEL), cst.Call)
    elif known is not None and not known.endswith((MODEL, ".h5", ".hdf5")):
        raise Unconvertible(
            "it is a SavedModel: build the model, and `rx.Checkpoint(model).restore(path)` reads its weights"
        )
    return _without(result, frozenset({"options"}))


@refusing
def model_checkpoint(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`ModelCheckpoint`: with the ending for models or weights."""
    _refuse(node, "period", "give `save_freq`")
    only = [arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "save_weights_only"]
    if only and not isinstance(literal_bool(only[0]), bool):
        raise Unconvertible("whether it saves weights only decides about the file's ending")
    wanted = WEIGHTS if only and literal_bool(only[0]) else MODEL
    func = rewriting.renamed(node.func, "keras.callbacks.ModelCheckpoint")
    return _without(_replaced(rewriting, node, updated.with_changes(func=func), wanted), frozenset({"options"}))


def literal_bool(node: cst.BaseExpression) -> object:
    """Returns the value of a literal; None for anything else."""
    return literal(node) if is_literal(node) else None


def _refuse(node: cst.Call, keyword: str, reason: str) -> None:
    given = [arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == keyword]
    if given and not (is_literal(given[0]) and not literal(given[0])):
        raise Unconvertible(f"`{keyword}`: {reason}")
