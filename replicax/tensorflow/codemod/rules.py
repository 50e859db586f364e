"""The rules of a conversion: what each name of TensorFlow, and each method of its objects, is rewritten to.

A table is a dict of rules by canonical name (`"tf.reduce_sum"`), or by kind and attribute (`("tf.keras.Model",
"predict_generator")`). The tables are merged in `tables/__init__.py`. Targets are written with the short names of
`imports.MODULES`: `"rx.MirroredStrategy"`, `"keras.ops.sum"`, `"jnp.float32"`, `"np.asarray"`; the import is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import libcst as cst

from replicax.tensorflow.codemod.script import Script
from replicax.tensorflow.names import Keyword


class Rewriting(Protocol):
    """The things that a function of a `Rewrite` rule may ask for; `writer.Writer` has them."""

    script: Script

    def refuse(self, node: cst.CSTNode, name: str, reason: str) -> None:
        """Notes that something is left as it is, and marks its statement with a comment."""

    def note(self, node: cst.CSTNode, name: str, reason: str) -> None:
        """Notes what a user should know about something that was converted."""

    def replaces(self, node: cst.CSTNode) -> None:
        """Says that an expression is replaced as a whole: what was found in its parts no longer counts."""

    def target(self, name: str) -> cst.BaseExpression:
        """Returns the expression of a new name such as `"rx.function"`; its module will be imported."""
        ...

    def code(self, text: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """Returns an expression from a template such as `"jnp.sum({x})"`; modules in front of a name are imported."""
        ...

    def renamed(self, node: cst.BaseExpression, target: str) -> cst.BaseExpression:
        """Returns the new name of an expression of the script; `from ... import name` stays one where it can."""
        ...

    def arguments(self, rule: Call, shown: str, node: cst.Call, args: Iterable[cst.Arg]) -> tuple[cst.Arg, ...] | None:
        """Returns the arguments of a call under their new names, by a rule; None after a refusal."""
        ...


class Rename(NamedTuple):
    """The same thing under another name, wherever it stands; a call of it keeps its arguments."""

    target: str  # of a method only the last part
    note: str = ""  # for the findings


class Call(NamedTuple):
    """Another function with other parameters. A mention without a call is renamed only if no keyword differs."""

    target: str  # of a method only the last part
    keywords: Mapping[str, Keyword] = {}  # TensorFlow's, with another name, no meaning or no counterpart
    # TensorFlow's parameters; if given, arguments behind the first `positional` become keywords
    order: tuple[str, ...] = ()
    positional: int = 1
    note: str = ""  # for the findings


class Refuse(NamedTuple):
    """It is left as it is, with a comment and a finding."""

    reason: str  # why, and what to do: a sentence or two


class Keep(NamedTuple):
    """It stays TensorFlow's on purpose, without a finding: TensorFlow is imported for it."""

    reason: str = ""  # for readers of the table


class Code(NamedTuple):
    """An expression stands for the name, such as `"'float32'"` for `tf.float32`."""

    text: str
    note: str = ""  # for the findings


class Drop(NamedTuple):
    """A call that is a statement of its own goes: nothing has to be done in its place. Elsewhere it is refused."""

    reason: str  # why nothing has to be done: a sentence


class Rewrite(NamedTuple):
    """A function rewrites the expression."""

    # Gets the call as it was, for `script.names` and `script.kinds`, and with its parts converted. It returns None
    # after `refuse(...)`: the call is left as it is.
    call: Callable[[Rewriting, cst.Call, cst.Call], cst.BaseExpression | None]
    # For a mention that is not a call; None refuses it. For an attribute of an object it can only be a function.
    mention: Mention | None = None


Mentioning = Callable[["Rewriting", cst.BaseExpression, cst.BaseExpression], cst.BaseExpression | None]
Mention = Rename | Keep | Refuse | Code | Mentioning


Rule = Rename | Call | Refuse | Keep | Code | Drop | Rewrite
Rules = Mapping[str, Rule]
MethodRules = Mapping[tuple[str, str], Rule]
