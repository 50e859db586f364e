"""Every public name is called with nonsense: the error is ours, with the value and the way out, or a table says why."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator

import keras  # noqa: F401 - the names of rx.keras load it
import numpy as np
import pytest

import replicax as rx
from replicax.checks import checked
from replicax.errors import ArgumentError
from tests.test_public_api import public_names


class Thing:
    def __repr__(self) -> str:
        return "<a thing>"


NONSENSE = {
    "an object": Thing(),
    "None": None,
    "NaN": math.nan,
    "-inf": -math.inf,
    "-1": -1,
    "a huge int": 10**30,
    "3.5": 3.5,
    "True": True,
    "1j": 1j,
    "no text": "",
    "a text": "nonsense",
    "bytes": b"x",
    "no list": [],
    "a list": [Thing()],
    "no dict": {},
    "a set": {1},
    "a tuple": ((),),
    "objects": np.array([Thing()]),
    "a function": lambda: 3,
    "a class": Thing,
}
STARTS = "starts processes or servers; its arguments are tried in its own tests"
MADE = "replicax makes it; a user only reads it"
JAX = "has the words of the function of jax.lax that it stands for"
NOT_TRIED = {
    "tuning.BatchSize": MADE,
    "IndexedSlices": "a tuple, which is looked at where it is used",
    "MultiWorkerMirroredStrategy": STARTS,
    "ParameterServerStrategy": STARTS,
    "ReplicaContext": MADE,
    "Server": STARTS,
    "TPUStrategy": STARTS,
    "Variable": "takes what jnp.asarray takes, and has its words where a number is too large",
    "checkpoint.tensorflow.Node": MADE,
    "checkpoint.tensorflow.ObjectGraph": MADE,
    "checkpoint.tensorflow.SavedTensor": MADE,
    "checkpoint.tensorflow.Slot": MADE,
    "checkpoint.tensorflow.TensorFlowCheckpoint": MADE,
    "checkpoint.tensorflow.TensorInfo": MADE,
    "cluster_resolver.ClusterResolver": "abstract",
    "cluster_resolver.Detection": MADE,
    "cluster_resolver.GCEClusterResolver": "its packages are not installed",
    "cluster_resolver.KubernetesClusterResolver": "its packages are not installed",
    "coordinator.ClusterCoordinator": STARTS,
    "coordinator.PerWorkerDataset": MADE,
    "coordinator.PerWorkerIterator": MADE,
    "coordinator.PerWorkerValues": MADE,
    "coordinator.RemoteValue": MADE,
    "coordinator.Stats": MADE,
    "data.DistributedDataset": MADE,
    "data.DistributedDatasetFromFunction": MADE,
    "data.DistributedIterator": MADE,
    "data.Optional": "takes any value",
    "dtensor.CommunicationReport": MADE,
    "dtensor.MeshDimension": "a tuple, which is looked at where it is used",
    "dtensor.default_mesh": "a context manager, which looks at the mesh when it is entered",
    "dtensor.fetch_layout": "asks whether any object has a layout",
    "dtensor.initialize_accelerator_system": STARTS,
    "dtensor.is_dtensor": "asks about any object",
    "dtensor.run_on": "a context manager, which looks at the mesh when it is entered",
    "estimator.HookContext": MADE,
    "lax.fori_loop": JAX,
    "keras.BatchNormalization": "has the words of Keras's layer",
    "notebook.launch": STARTS,
    "plots.Period": MADE,
    "print": "prints any object",
    "lax.scan": JAX,
    "set_strategy": "changes the strategy of the process; tried in tests/test_context.py",
    "testing.Cluster": STARTS,
    "testing.ElasticJob": STARTS,
    "testing.free_ports": "gives as many as the system has",
    "testing.local_cluster": STARTS,
    "testing.run_workers": STARTS,
    "trackers.MLflow": STARTS,
    "trackers.WandB": STARTS,
    "lax.while_loop": JAX,
}
EMPTY = ("None", "''", "[]", "{}")


def tried() -> dict[str, Callable[..., object]]:
    """Returns the names to call; modules, errors and what takes no arguments are none."""
    found = {}
    for name, value in public_names():
        if not callable(value) or name in NOT_TRIED or (inspect.isclass(value) and issubclass(value, BaseException)):
            continue
        if any(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters_of(value)):
            found[name] = value
    return found


def parameters_of(value: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(value).parameters.values())


def faults_of(call: Callable[[], object], shown: str) -> str | None:
    """Returns what is wrong with the error of a call, if it raises one."""
    try:
        call()
    except Exception as error:
        text = str(error)
        if not isinstance(error, rx.ReplicaxError) or not isinstance(error, (TypeError, ValueError)):
            return f"{type(error).__name__} is not ours: {text:.200}"
        if len(text.splitlines()) > 3:
            return f"more than three lines: {text:.300}"
        # The value (or of what it is made), what it is taken for, or the name of the argument whose fault it is.
        parts = (
            shown.strip("'")[:20],
            "got",
            "Got",
            " no ",
            "not ",
            "Not a",
            "must",
            "<a thing>",
            "()",
            "objects",
            "`",
        )
        if shown not in EMPTY and not any(part in text for part in parts):
            return f"the value {shown:.30} is not in it: {text:.200}"
    return None


TRIED = tried()


def test_the_table_has_public_names_only():
    assert set(NOT_TRIED) <= {name for name, _ in public_names()}
    assert len(TRIED) > 130


@pytest.mark.parametrize("name", TRIED)
def test_nonsense_is_answered_in_our_words(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named, found = TRIED[name], {}
    required = [parameter for parameter in parameters_of(named) if parameter.default is parameter.empty]
    by_name = [parameter.name for parameter in required if parameter.kind is parameter.KEYWORD_ONLY]
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    alone = [each for each in required if each.name not in by_name and each.kind not in stars]
    before = rx.get_strategy()
    for kind, value in (*NONSENSE.items(), ("another strategy", rx.MirroredStrategy(["cpu:0"]))):
        arguments = [value] * max(len(alone), 0 if by_name else 1)
        fault = faults_of(lambda: named(*arguments, **dict.fromkeys(by_name, value)), repr(value))  # noqa: B023
        if fault is not None:
            found[kind] = fault
    rx.config.run_eagerly(False)
    assert rx.get_strategy() is before
    assert found == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda: rx.PerReplica(3),
        lambda: rx.InputContext(-1, 0, 0),
        lambda: rx.InputContext(2, 2, 1),
        lambda: rx.ValueContext(1, 1),
        lambda: rx.testing.Cluster(0),
        lambda: rx.ReduceOp("max"),
        lambda: rx.AutoShardPolicy("none"),
        lambda: rx.VariableAggregation(None),
        lambda: rx.dtensor.stateless_uniform((-1,), 0),
        lambda: rx.keras.clip_by_norm("no", 1.0),
        lambda: rx.compute_average_loss(["no"]),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(rx.ReplicaxError, match=r"got|is no") as caught:
        call()
    assert isinstance(caught.value, (TypeError, ValueError))


def test_arguments_are_compared_with_annotations():
    @checked
    def named(words: list[str] | None, rate: float = 1.0, *, many: bool = False, path: Missing | int = 3) -> str:  # noqa: F821
        return f"{words} {rate} {many} {path}"

    assert named([], 2, many=np.bool_(True), path="taken as it comes") == "[] 2 True taken as it comes"
    assert named(None) == "None 1.0 False 3"
    for arguments in ((3,), (None, "1"), (None, math.nan)):
        with pytest.raises(
            ArgumentError, match=r"`(words|rate)` of named must be (a list or None|a number), got .*See help\(named\)"
        ):
            named(*arguments)
    with pytest.raises(ArgumentError, match="`many` of named must be True or False, got 3"):
        named(None, many=3)
    with pytest.raises(TypeError, match="missing 1 required"):
        named()


def methods(folder) -> Iterator[tuple[str, Callable[..., object], int]]:
    """Yields methods of objects, and how many arguments each must have."""
    variable = rx.Variable(np.ones(3, np.float32))
    for op in ("add", "sub", "update", "max", "min"):
        yield f"scatter_nd_{op}", getattr(variable, f"scatter_nd_{op}"), 2
    manager = rx.CheckpointManager(rx.Checkpoint(w=variable), folder, max_to_keep=2)
    yield "path", manager.path, 1
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    yield "options", lambda each: strategy.distribute_dataset([np.ones(2)], options=each), 1
    yield "restore", manager.restore, 1


def test_nonsense_for_methods_is_answered_in_our_words(tmp_path):
    found = {}
    for name, method, count in methods(tmp_path):
        for kind, value in NONSENSE.items():
            fault = faults_of(lambda: method(*[value] * count), repr(value))  # noqa: B023
            if fault is not None:
                found[name, kind] = fault
    assert found == {}
