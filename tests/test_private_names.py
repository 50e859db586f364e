"""Private names of other libraries are used in `replicax/compat` and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import replicax.compat
from tests.private_names import (
    DOCUMENTED,
    own_names,
    private_attributes,
    private_imports,
    trees_of,
)

PACKAGE = Path(replicax.__file__).parent
COMPAT = PACKAGE / "compat"
# What Keras's variables keep their array and its type in. Classes of ours that stand in for them have the same, so that
# these are no proof of being ours.
OF_VARIABLES = {"_value", "_shape", "_dtype", "_layout", "_initializer", "_trainable"}
KNOW_VARIABLES = (
    "contracts/variable_access.py",
    "variables/",
    "dtensor/variable.py",
    "parameter_server/variables/remote.py",
)
# What a name stands for that is private in another way than by its library's choice.
OTHERS = {
    ("runtime/turns.py", "_DummyThread"): "Python has no other name for a thread that it has not started",
}


@pytest.fixture(scope="module")
def trees():
    """Of the files that are not in compat; to read them when the tests are collected would cost each worker 5 s."""
    return {path: tree for path, tree in trees_of(PACKAGE).items() if COMPAT not in path.parents}


@pytest.fixture(scope="module")
def own(trees):
    return own_names(list(trees.values()))


def offences_in(tree, path, own):
    file = path.relative_to(PACKAGE).as_posix()
    yield from private_imports(tree)
    for use in private_attributes(tree):
        ours = use.name in own if use.name not in OF_VARIABLES else file.startswith(KNOW_VARIABLES)
        # What is set on objects of others, for us to find there, says whose it is.
        if (file, use.name) in OTHERS:
            continue
        if not (ours or use.name.startswith("_replicax_") or use.name in DOCUMENTED):
            yield use


@pytest.mark.slow
def test_private_names_of_others_are_used_in_compat_only(trees, own):
    found = [
        f"{path.relative_to(PACKAGE)}:{use.line}: {use.name}"
        for path, tree in trees.items()
        for use in offences_in(tree, path, own)
    ]
    assert len(trees) > 500
    assert not found, "Private names of other libraries belong into replicax/compat:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import jax._src.core",
        "from jax._src import core",
        "from jax import _src",
        "import keras.src.trainers",
        "keras.src.backend",
        "from keras.src.trainers import trainer",
        "from keras import src",
        "import importlib; importlib.import_module('ray._private.worker')",
        "layer._flatten_layers()",
        "getattr(model, '_symbolic_build')",
        "ray.init(_temp_dir='x')",
        "variable._value",
        "setattr(variable, '_dtype', 'float32')",
    ],
)
def test_a_private_name_is_noticed(code, own):
    assert list(offences_in(ast.parse(code), PACKAGE / "new.py", own))


@pytest.mark.parametrize(
    "code",
    [
        "import jax.core",
        "self._anything",
        "pair._replace(x=1)",
        "from __future__ import annotations",
        "from keras import layers",
    ],
)
def test_a_public_name_is_not(code, own):
    assert not list(offences_in(ast.parse(code), PACKAGE / "new.py", own))
