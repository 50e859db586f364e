"""The tables of rules, merged: by canonical name, by kind and attribute, and the kinds of objects.

A new table is a file beside this one with any of these, added to `TABLES`; a later table overrides an earlier one.

- `RULES` by canonical name; `PREFIXES`: a name and all below it: the new name, a refusal, or `Keep`.
- `METHODS` by kind and attribute; `UNKNOWN_METHODS` by attribute alone, for names that nothing else has.
- `RESULTS`, `MEMBERS` and `BASES`, for `kinds.KindTables`.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterable
from types import ModuleType

from replicax.tensorflow.codemod.kinds import KindTables
from replicax.tensorflow.codemod.rules import MethodRules, Refuse, Rename, Rule, Rules
from replicax.tensorflow.codemod.tables import (
    absent,
    config,
    datasets,
    distribute,
    estimators,
    files,
    keras_api,
    random_ops,
    rows,
    tensors,
)

TABLES: tuple[ModuleType, ...] = (
    *(absent, rows, tensors, random_ops, datasets, distribute, keras_api, files, config, estimators),
)


def _merged(attribute: str) -> dict[object, object]:
    return {key: value for table in TABLES for key, value in getattr(table, attribute, {}).items()}


RULES: Rules = _merged("RULES")  # type: ignore[assignment]
PREFIXES: dict[str, str | Rule] = _merged("PREFIXES")  # type: ignore[assignment]
METHODS: MethodRules = _merged("METHODS")  # type: ignore[assignment]
UNKNOWN_METHODS: Rules = _merged("UNKNOWN_METHODS")  # type: ignore[assignment]
KINDS = KindTables(_merged("RESULTS"), _merged("MEMBERS"), _merged("BASES"))  # type: ignore[arg-type]

#: Names with another meaning below `tf.compat.v1` than in TensorFlow 2.
OTHERS_IN_V1 = (
    *("tf.Variable", "tf.gradients", "tf.initializers.", "tf.layers.", "tf.losses."),
    *("tf.metrics.", "tf.nn.", "tf.summary.", "tf.train."),
)
_UNKNOWN = Refuse("replicax does not know what becomes of it: look in keras.ops and jax.numpy for its counterpart.")
_PRIVATE = Refuse("It is private to TensorFlow: take the public name in `tf` that it serves, and convert again.")
_V1 = Refuse("It belongs to TensorFlow 1's sessions and graphs; write the script for TensorFlow 2 first.")


def lookup(name: str) -> Rule:
    """Returns the rule for a canonical name: its own, that of its nearest prefix, or a refusal."""
    rule = RULES.get(name)
    if rule is not None:
        return rule
    if (stable := RULES.get(name.replace(".experimental.", ".", 1))) is not None:
        return stable
    by_prefix = _by_prefix(name)
    if by_prefix is None and name.startswith("tf.compat.v1."):
        newer = name.replace("tf.compat.v1.", "tf.", 1)
        return _V1 if newer.startswith(OTHERS_IN_V1) else RULES.get(newer, _V1)
    if isinstance(by_prefix, Rename) and not is_in_keras(by_prefix.target):
        # Files of Keras's own, as in `tensorflow.python.keras.layers.core`: the name is that of the module above.
        above, _, last = name.rpartition(".")
        if is_in_keras(by_prefix.target.rpartition(".")[0]):
            return _gone(by_prefix.target)
        return lookup(f"{above.rpartition('.')[0]}.{last}")
    return by_prefix or (_PRIVATE if name.startswith("tf.python.") else _UNKNOWN)


def _gone(target: str) -> Refuse:
    return Refuse(f"Keras 3 has no {target}: look for its counterpart on keras.io.")


@functools.cache
def is_in_keras(target: str) -> bool:
    """Returns whether Keras has a public name, without an import of Keras; parts of a class or function count as there.

    >>> is_in_keras("keras.layers.Dense"), is_in_keras("keras.layers.core.Dense")
    (True, False)
    """
    first, *parts = target.split(".")
    found = importlib.util.find_spec("keras") if first == "keras" else None
    folder = pathlib.Path(found.origin).parent if found is not None and found.origin else None
    for part in parts:
        if folder is None:
            return True  # Another package, or no Keras to look at.
        if not (folder / part / "__init__.py").is_file():
            names = (folder / "__init__.py").read_text(encoding="utf-8")
            return re.search(rf"\bas {re.escape(part)}\b", names) is not None
        folder /= part
    return True


def _by_prefix(name: str) -> Rule | None:
    prefix = name
    while prefix:
        if prefix in PREFIXES:
            found = PREFIXES[prefix]
            return Rename(found + name[len(prefix) :]) if isinstance(found, str) else found
        prefix = prefix.rpartition(".")[0]
    return None


def member(family: Iterable[str], attribute: str) -> Rule | None:
    """Returns the rule for an attribute of an object, by its kind and those above it; None if it stays as it is."""
    found = next((METHODS[kind, attribute] for kind in family if (kind, attribute) in METHODS), None)
    return found or UNKNOWN_METHODS.get(attribute)
