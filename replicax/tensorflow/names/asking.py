"""Where users look for names of TensorFlow, PyTorch and other libraries below `replicax`."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Mapping

from replicax.contracts.advice import Row
from replicax.tensorflow.names.all_names import NAMES
from replicax.tensorflow.names.other_libraries import ELSEWHERE, LIBRARIES

# TensorFlow's modules, and where their names are below `replicax`. The longest match counts.
MODULES = {
    "tf.distribute.experimental.coordinator": "coordinator",
    "tf.distribute.coordinator": "coordinator",
    "tf.distribute.cluster_resolver": "cluster_resolver",
    "tf.distribute.experimental.rpc": "rpc",
    "tf.distribute.experimental.partitioners": "",
    "tf.distribute.experimental": "",
    "tf.distribute": "",
    "tf.experimental.dtensor": "dtensor",
    "tf.types.experimental.distributed": "",
    "tf.config": "config",
    "tf.estimator.export": "estimator",
    "tf.estimator": "estimator",
    "tf.data.experimental": "data",
    "tf.data": "data",
    "tf.nn": "",
    "tf.train": "",
    "tf": "",
}
# TensorFlow's classes whose attributes belong to another class here.
OWNERS = {
    "StrategyExtended": "Strategy",
    "function": "Function",
    "DTensorCheckpoint": "Checkpoint",
    "PerWorkerValue": "PerWorkerValues",
}


def asked_as(tf_name: str) -> str:
    """Returns where a user looks for a name of TensorFlow below `replicax`, such as `"Strategy.extended"`."""
    module = next((known for known in _LONGEST_FIRST if tf_name.startswith(known + ".")), "")
    rest = tf_name.removeprefix(module + ".")
    owner, dot, member = rest.partition(".")
    return ".".join(filter(None, (MODULES.get(module, ""), OWNERS.get(owner, owner) + dot + member if dot else owner)))


_LONGEST_FIRST = sorted(MODULES, key=len, reverse=True)


@functools.cache
def index() -> Mapping[str, tuple[str, str, Row]]:
    """Returns the library, its name and its row, for each name that users look for below `replicax`."""
    found: dict[str, tuple[str, str, Row]] = {}
    for tf_name, row in NAMES.items():
        asked = asked_as(tf_name)
        found.setdefault(asked, ("TensorFlow", tf_name, row))
        parts = asked.split(".")
        if len(parts) > 2:  # A member of a class is known without its module too.
            found.setdefault(".".join(parts[-2:]), ("TensorFlow", tf_name, row))
    for full_name, row in ELSEWHERE.items():
        library, last = LIBRARIES[full_name.partition(".")[0]], full_name.rpartition(".")[2]
        for asked in (last, f"Strategy.{last}"):  # They are known in any module, and on a strategy.
            found.setdefault(asked, (library, full_name, row))
    return found


def resolved(root: types.ModuleType, row: Row) -> object:
    """Returns the object that a row names below `replicax`, which is `root`; for an attribute of instances its type."""
    *path, last = row.here.split(".")
    owner = operator.attrgetter(".".join(path))(root) if path else root
    for base in getattr(owner, "__mro__", ()):
        annotations = inspect.get_annotations(base)
        if last in annotations:  # Only instances have it.
            return annotations[last]
        if last in vars(base):
            break
    return getattr(owner, last)
