"""Files: `tf.io.gfile` becomes the standard library's functions, for paths of the local file system."""

from __future__ import annotations

import libcst as cst

from replicax.tensorflow.codemod.rules import Refuse, Rewrite, Rewriting, Rule

_G = "tf.io.gfile"
_REMOTE = "Python's functions know local paths only: use `etils.epath` for a remote one."


def _local(shown: str, template: str, *parameters: str) -> Rewrite:
    """Returns the rule of a function on paths."""

    def written(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        places = {name: arg.value for name, arg in zip(parameters, updated.args, strict=False) if arg.keyword is None}
        named = {arg.keyword.value: arg.value for arg in updated.args if arg.keyword is not None}
        given = {**places, **named}
        if given.keys() != set(parameters) or any(arg.star for arg in updated.args):
            rewriting.refuse(node, shown, f"It is converted with the arguments {', '.join(parameters)} only.")
            return None
        if any("://" in cst.Module([]).code_for_node(each) for each in given.values()):
            rewriting.refuse(node, shown, _REMOTE)
            return None
        rewriting.note(node, shown, _REMOTE)
        return rewriting.code(template, **given)

    return Rewrite(written)


_FUNCTIONS = {
    "exists": ("os.path.exists({path})", "path"),
    "isdir": ("os.path.isdir({path})", "path"),
    "join": ("os.path.join({path}, {paths})", "path", "paths"),
    "makedirs": ("os.makedirs({path}, exist_ok=True)", "path"),
    "mkdir": ("os.mkdir({path})", "path"),
    "listdir": ("os.listdir({path})", "path"),
    "remove": ("os.remove({path})", "path"),
    "rmtree": ("shutil.rmtree({path})", "path"),
    "glob": ("glob.glob({pattern})", "pattern"),
    "rename": ("os.rename({src}, {dst})", "src", "dst"),
}

RULES: dict[str, Rule] = {
    f"{_G}.{name}": _local(f"{_G}.{name}", template, *parameters)
    for name, (template, *parameters) in _FUNCTIONS.items()
}
_SAVED_MODEL = Refuse(
    "`rx.export(function, path)` stores a compiled function with its variables, `rx.load_export(path)` loads it; "
    "`model.save(path)` with the ending `.keras` stores a Keras model."
)
PREFIXES = {"tf.saved_model": _SAVED_MODEL}
