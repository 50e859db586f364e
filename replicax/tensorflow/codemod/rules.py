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
    """The same thing under another name, wherever it stands; a call of it keeps its arguments.

    Attributes:
        target: The new name; for a method only its last part.
        note: Said in the findings, as a note; empty for nothing.
    """

    target: str
    note: str = ""


class Call(NamedTuple):
    """Another function with other parameters. A mention without a call is renamed only if no keyword differs.

    Attributes:
        target: The new name; for a method only its last part.
        keywords: The fate of TensorFlow's keywords that have another name, no meaning or no counterpart.
        order: TensorFlow's parameters in their order. If given, positional arguments behind the first `positional`
            become keywords, by it. If not, positional arguments stay.
        positional: How many arguments may stay positional.
        note: Said in the findings, as a note; empty for nothing.
    """

    target: str
    keywords: Mapping[str, Keyword] = {}
    order: tuple[str, ...] = ()
    positional: int = 1
    note: str = ""


class Refuse(NamedTuple):
    """It is left as it is, with a comment and a finding.

    Attributes:
        reason: Why, and what to do: a sentence or two.
    """

    reason: str


class Keep(NamedTuple):
    """It stays TensorFlow's on purpose, without a finding: TensorFlow is imported for it.

    Attributes:
        reason: For readers of the table.
    """

    reason: str = ""


class Code(NamedTuple):
    """An expression stands for the name, such as `"'float32'"` for `tf.float32`.

    Attributes:
        text: The expression.
        note: Said in the findings, as a note; empty for nothing.
    """

    text: str
    note: str = ""


class Drop(NamedTuple):
    """A call that is a statement of its own goes: nothing has to be done in its place. Elsewhere it is refused.

    Attributes:
        reason: Why nothing has to be done: a sentence.
    """

    reason: str


class Rewrite(NamedTuple):
    """A function rewrites the expression.

    Attributes:
        call: Gets the rewriting, the call as it was (for `script.names` and `script.kinds`), and the call with its
            parts converted. Returns the new expression; or None after `refuse(...)`: then it is left as it is.
        mention: What becomes of a mention that is no call; None refuses it. A function gets the rewriting and the
            mention, and answers as `call` does; for an attribute of an object there is nothing but such a function.
    """

    call: Callable[[Rewriting, cst.Call, cst.Call], cst.BaseExpression | None]
    mention: Mention | None = None


Mentioning = Callable[["Rewriting", cst.BaseExpression, cst.BaseExpression], cst.BaseExpression | None]
Mention = Rename | Keep | Refuse | Code | Mentioning


Rule = Rename | Call | Refuse | Keep | Code | Drop | Rewrite
Rules = Mapping[str, Rule]
MethodRules = Mapping[tuple[str, str], Rule]
