"""What users may rely on: the public names, their documentation, and imports that cost and start nothing."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import itertools
import operator
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicax as rx
from replicax.moved import RENAMED
from tests.each import each
from tests.tensorflow.names.calls import load_program

ROOT = Path(__file__).resolve().parent.parent
GOLDEN_NAMES = Path(__file__).parent / "golden" / "public_names.txt"
# Without the old import paths, which warn.
MODULES = [
    "replicax",
    *(
        module.name
        for module in pkgutil.walk_packages(rx.__path__[:1], "replicax.")
        if not module.name.startswith("replicax.moved.") and module.name != "replicax.checkpoint.tensorflow"
    ),
]


def room_of(module: str) -> str:
    """Returns the file or the folder that a module is in: `keras` has replicax.keras and all below it."""
    return f"{module}.".split(".")[1] or "replicax"


ROOMS = {room: list(modules) for room, modules in itertools.groupby(MODULES, room_of)}

# The modules that a topic's names are nested in; the rule stands at the head of docs/api/index.md.
TOPICS = [
    "checkpoint.policies",
    "checkpoint.tensorflow",
    "cluster_resolver",
    "collectives",
    "config",
    "coordinator",
    "data",
    "dtensor",
    "estimator",
    "exporting",
    "health",
    "keras",
    "lax",
    "ledger",
    "notebook",
    "plots",
    "testing",
    "trackers",
    "tuning",
    "weights",
]
FOLDERS = {
    "checkpoint.tensorflow": "tensorflow.checkpoints",
    "cluster_resolver": "cluster",
    "coordinator": "parameter_server.namespace",
    "health": "group.health",
    "lax": "program.loops.loops",
    "ledger": "tools.ledger",
    "notebook": "tools.notebook",
    "plots": "tools.plots",
    "trackers": "tools.trackers",
    "tuning": "tools.tuning",
}
# On the API pages are their members only.
MODULES_WITHOUT_WORDS = ["collectives", "dtensor", "exporting", "keras", "lax", "tuning", "weights"]
# Classes on top of Keras's are made when they are first asked for. The API page shows what says their words.
MADE_WHEN_ASKED_FOR = {
    "BackupAndRestore": "keras.backup._BackupAndRestore",
    "BatchNormalization": "keras.batch_normalization._Synchronized",
    "DistributedEmbedding": "tables.layer.TablesLayer",
    "ReplicaDigest": "keras.replica_digest._ReplicaDigest",
    "TensorBoard": "keras.tensorboard._TensorBoard",
}

# Keras itself is a dependency, but only the adapter's own folder may need it to load.
HEAVY = ("keras", "tensorflow", "torch", "ray", "sklearn", "matplotlib")
MAY_IMPORT_KERAS = "replicax.keras"
# These stand above the public names and use them as any user would.
MAY_USE_THE_FRONT_DOOR = ("replicax.cli", "replicax.testing")


def test_public_names_change_only_on_purpose():
    """After a change on purpose, write the names, a line each, to the golden file."""
    assert [name for name, _ in public_names()] == GOLDEN_NAMES.read_text().split()


def test_every_public_name_exists_once():
    assert len(set(rx.__all__)) == len(rx.__all__)
    assert [name for name in rx.__all__ if not hasattr(rx, name)] == []


def public_names() -> Iterator[tuple[str, object]]:
    for name in sorted({*rx.__all__, *rx._MODULE_OF}):
        yield name, getattr(rx, name)
    for topic in TOPICS:
        module = importlib.import_module(f"replicax.{FOLDERS.get(topic, topic)}")
        for name in sorted(module.__all__):
            yield f"{topic}.{name}", getattr(module, name)


def public_members() -> Iterator[tuple[str, object]]:
    for name, value in public_names():
        yield name, value
        if inspect.isclass(value) and value.__module__.startswith("replicax"):
            for member_name in vars(value):
                if not member_name.startswith("_"):
                    yield f"{name}.{member_name}", getattr(value, member_name)


def test_every_public_name_is_documented():
    """A method that fills in a contract may leave the words to the contract: `getdoc` looks there."""
    undocumented = [
        name
        for name, value in public_members()
        if (callable(value) or isinstance(value, property) or inspect.ismodule(value)) and not inspect.getdoc(value)
    ]
    assert undocumented == []


def test_every_public_name_is_on_a_page_of_the_api():
    page = [word for path in sorted((ROOT / "docs" / "api").glob("*.md")) for word in path.read_text().split()]
    missing = [name for name, _ in public_names() if not name.startswith("__") and shown_as(name) not in page]
    # Modules stand for their members, which are there; the last is another name of default_mesh.
    assert missing == [*MODULES_WITHOUT_WORDS, "dtensor.run_on"]


def test_the_api_pages_say_what_the_docstrings_say():
    """After a change of a docstring or a signature: `python docs/api_text.py`."""
    pages = load_program("api_text")
    old = [
        page.name
        for page in sorted((ROOT / "docs" / "api").glob("*.md"))
        if pages.rewritten(page.read_text()) != page.read_text()
    ]
    assert old == [], f"These pages are older than the docstrings: {old}. Run: python docs/api_text.py"


def test_the_site_gets_the_directives_without_what_is_written_below_them():
    text = "### `rx.function`\n\nCompiles.\n<!-- end -->\n"
    written = f"# A\n\n<!-- ::: replicax.x -->\n\n<!-- ::: replicax.function -->\n{text}\nB\n"
    assert load_program("api_text").on_page_markdown(written) == "# A\n\n::: replicax.x\n\n::: replicax.function\n\nB\n"


def shown_as(name: str) -> str:
    """Returns what the API page calls a name: one that is flat and nested stands there once, as it is flat."""
    if name in FOLDERS and name != "cluster_resolver":
        return f"replicax.{FOLDERS[name]}"
    topic, _, last = name.rpartition(".")
    if topic == "keras" and last in MADE_WHEN_ASKED_FOR:
        return f"replicax.{MADE_WHEN_ASKED_FOR[last]}"
    if last in rx.__all__ or last in rx._MODULE_OF:
        return f"replicax.{last}"
    return f"replicax.{FOLDERS.get(topic, topic)}.{last}" if topic else f"replicax.{last}"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_works_for_a_release_and_tells_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=rf"^rx\.{old} is now rx\.{new}\. The old name works in this release"):
        assert getattr(rx, old) is operator.attrgetter(new)(rx)
    assert old not in rx.__all__


NAME_IN_TEXT = re.compile(r"\brx\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def test_docstrings_and_messages_name_what_exists_under_its_new_name():
    used = {
        (name, str(path.relative_to(ROOT)))
        for path in sorted((ROOT / "replicax").rglob("*.py"))
        for name in NAME_IN_TEXT.findall(path.read_text())
    }
    assert len(used) > 300
    assert [(name, path) for name, path in sorted(used) if not is_current(name)] == []


def is_current(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            operator.attrgetter(name)(rx)
        except (AttributeError, DeprecationWarning):
            return False
    return True


def test_an_old_and_an_unknown_name_are_not_current():
    assert [is_current(name) for name in ("FileSource", "Variable.there_is_none", "data.FileSource")] == [
        False,
        False,
        True,
    ]


# The string that a docstring begins goes on after a quote, a line break and a quote.
JOINED = re.compile(r'"""[^"]*"\s*\n\s*"[^"]')


def test_a_docstring_has_no_quotes_of_strings_that_were_joined():
    files = [path for folder in ("replicax", "pytest_replicax", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if JOINED.search(path.read_text())] == []


def test_such_quotes_are_found():
    assert JOINED.search('"""Returns what it does "\n    "not know."""')
    assert not JOINED.search('"""Returns it."""\n    "so"')


# What a loop of steps does not need. A start of the interpreter waits for all that is imported.
NOT_AT_FIRST = (
    "replicax.checkpoint",
    "replicax.parameter_server.namespace",
    "replicax.dtensor",
    "replicax.estimator",
    "replicax.exporting",
    "replicax.keras.backup",
    "replicax.keras.models",
    "replicax.keras.sidecar",
    "replicax.keras.tensorboard",
    "replicax.layouts",
    "replicax.parameter_server",
    "replicax.program.gradients.accumulation",
    "replicax.program.loops.loops",
    "replicax.ray_cluster",
    "replicax.job.elsewhere.session",
    "replicax.strategies.fully_sharded",
    "replicax.strategies.layout",
    "replicax.tables",
    "replicax.testing",
    "replicax.weights",
    "flax",
    "keras",
    "orbax",
    "tensorstore",
    "ray",
)
MODULES_OF_A_FIRST_STEP = 282
FIRST_STEP = """
import sys
import jax
import numpy as np
import replicax as rx

strategy = rx.MirroredStrategy()

@rx.function
def step(params, batch):
    def replica_step(params, batch):
        return params - jax.grad(lambda p: ((batch @ p) ** 2).mean())(params)
    return strategy.run(replica_step, args=(params, batch))

(batch,) = strategy.distribute_dataset([np.ones((4, 2), "float32")])
step(strategy.replicate(np.ones(2, "float32")), batch)
ours = ("replicax", "flax", "keras", "orbax", "ray", "tensorstore")
print(*(name for name in sys.modules if name.split(".")[0] in ours))
"""


def test_a_first_step_imports_what_it_needs_and_no_more():
    """A new module on the way to a step is a reason to raise the number; one of `NOT_AT_FIRST` is a slow start."""
    done = subprocess.run([sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [name for name in NOT_AT_FIRST if name in loaded] == []
    assert len(loaded) <= MODULES_OF_A_FIRST_STEP


def test_what_is_loaded_later_is_listed_and_stays():
    """A fresh interpreter knows all public names before any of them is loaded, and loads each once."""
    code = """
import replicax as rx
assert set(rx.__all__) <= set(dir(rx)), set(rx.__all__) - set(dir(rx))
before = set(vars(rx))
from replicax import *
assert not set(rx.__all__) - set(vars(rx))
assert rx.CheckpointManager is rx.checkpoint.CheckpointManager is CheckpointManager
print(*sorted(set(rx.__all__) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"CheckpointManager", "ParameterServerStrategy", "dtensor", "estimator", "testing"} <= {*done.stdout.split()}


# `replicax` is imported in a fork of a process that has loaded JAX and nothing else. It comes first whichever module is
# imported, and much of the rest with it; each of the others is imported in a fork of a process that has it.
IMPORT_EACH_ALONE = """
import os, sys, threading
import jax
from jax._src import xla_bridge

def faults(module, forbidden):
    environment, threads = dict(os.environ), threading.active_count()
    __import__(module)
    if xla_bridge.backends_are_initialized():
        yield "starts a JAX backend"
    if threading.active_count() != threads:
        yield "starts a thread"
    yield from (f"imports {name}" for name in forbidden if name in sys.modules)
    yield from (f"changes {name}" for name, _ in environment.items() ^ os.environ.items())

for line in sys.stdin.read().splitlines():
    module, *forbidden = line.split()
    if module in sys.modules:
        continue
    child = os.fork()
    if not child:
        try:
            found = list(faults(module, forbidden))
        except BaseException as error:
            found = [f"cannot be imported: {error!r}"]
        print(*(f"{module} {fault}" for fault in found), sep="\\n", end="\\n" if found else "", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    if module == "replicax":
        import replicax
print("done")
"""


@pytest.mark.nightly
def test_each_module_imports_alone_and_starts_nothing():
    forbidden = {
        module: [name for name in HEAVY if not (name == "keras" and module.startswith(MAY_IMPORT_KERAS))]
        for module in MODULES
    }
    assert next(iter(forbidden)) == "replicax"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_EACH_ALONE],
        input="\n".join(" ".join([module, *names]) for module, names in forbidden.items()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["done"], done.stdout + done.stderr


# The example of `check_strategy` checks all rules.
@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=[pytest.mark.slow] if room == "testing" else []) for room in ROOMS]
)
def test_docstring_examples_run(room: str):
    names = {"rx": rx, **{name: getattr(rx, name) for name in {*rx.__all__, *rx._MODULE_OF} - {"print"}}}

    def check(module: str) -> None:
        tested = importlib.import_module(module)
        results = doctest.testmod(
            tested,
            extraglobs={name: value for name, value in names.items() if name not in vars(tested)},
            optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
        )
        assert results.failed == 0, f"{results.failed} of {results.attempted} examples failed; see the captured output"

    each(ROOMS[room], check)


def test_every_module_is_in_one_room():
    assert [module for modules in ROOMS.values() for module in modules] == MODULES


def test_no_module_comes_in_by_the_front_door():
    """Inside the package names come from the file that defines them: `from replicax import name` makes loops."""
    each(
        [module for module in MODULES if module != "replicax" and not module.startswith(MAY_USE_THE_FRONT_DOOR)],
        lambda module: no_names_of_the_front_door(Path(importlib.util.find_spec(module).origin).read_text()),
    )


def no_names_of_the_front_door(source: str) -> None:
    front_door = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "replicax":
            names = [alias.name for alias in node.names]
            front_door += [name for name in names if f"replicax.{name}" not in MODULES]
        elif isinstance(node, ast.Import):
            front_door += [alias.name for alias in node.names if alias.name == "replicax"]
    assert front_door == []


def test_every_public_class_and_function_has_an_example():
    from tests.examples_of_names import names_without_example

    assert names_without_example() == []
