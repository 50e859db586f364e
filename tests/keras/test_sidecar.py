"""`rx.keras.SidecarEvaluator`: each checkpoint once, in order; the best one kept; an end that is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - what it imports sets environment variables

import replicax as rx
from replicax.checkpoint.checkpoint_follower import Outcome
from replicax.errors import ArgumentError, CheckpointError

X = np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3)
Y = X.sum(1, keepdims=True)


def linear(weight: float = 0.0, strategy: rx.Strategy | None = None) -> keras.Model:
    with strategy.scope() if strategy else rx.OneDeviceStrategy("cpu:0").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    set_weight(model, weight)
    return model


def set_weight(model: keras.Model, weight: float) -> None:
    model.set_weights([np.full((3, 1), weight, np.float32), np.zeros(1, np.float32)])


def mse(weight: float) -> float:
    return float(np.mean((X.sum(1) * (weight - 1)) ** 2))


def saved(directory: Path, weights: list[float], **options: Any) -> None:
    model = linear()
    with rx.CheckpointManager(directory, objects={"model": model, "epoch": 0}, **options) as manager:
        for step, weight in enumerate(weights, 1):
            set_weight(model, weight)
            manager.save(10 * step)


def evaluator(directory: Path, **options: Any) -> rx.keras.SidecarEvaluator:
    options = {"idle_timeout_s": 0.3, "poll_interval_s": 0.05} | options
    return rx.keras.SidecarEvaluator(linear(), (X, Y), directory, **options)


def test_checkpoints_are_evaluated_once_in_order_and_the_best_is_kept(tmp_path: Path):
    weights = [0.0, 0.9, 0.5]
    saved(tmp_path / "run", weights)
    sidecar = evaluator(tmp_path / "run", best_model_path=tmp_path / "out" / "best.keras")
    why = sidecar.start()
    assert [done.step for done in sidecar.evaluations] == [10, 20, 30]
    np.testing.assert_allclose(
        [done.logs["loss"] for done in sidecar.evaluations], [mse(w) for w in weights], rtol=1e-5
    )
    assert sidecar.best is sidecar.evaluations[1]
    best = keras.saving.load_model(tmp_path / "out" / "best.keras")
    np.testing.assert_allclose(best.get_weights()[0], 0.9)
    assert why.endswith(f"no new checkpoint has come for 0.3 s; best loss: {mse(0.9):g} at step 20.")
    assert len(list((tmp_path / "run" / "evaluations" / "validation").glob("events.*"))) == 1


def test_it_ends_after_enough_evaluations_and_goes_on_there(tmp_path: Path):
    saved(tmp_path, [0.0, 0.1, 0.2])
    sidecar = evaluator(tmp_path, max_evaluations=2, idle_timeout_s=None, log_dir=tmp_path / "board")
    assert "2 checkpoint(s) have been evaluated" in sidecar.start()
    assert [done.step for done in sidecar.evaluations] == [10, 20]
    assert (tmp_path / "board" / "validation").is_dir()


def test_it_waits_for_what_comes_while_it_runs(tmp_path: Path):
    sidecar = evaluator(tmp_path / "later", max_evaluations=2, idle_timeout_s=60.0)
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(sidecar.start()))
    thread.start()
    time.sleep(0.2)
    saved(tmp_path / "later", [0.3, 0.4])
    thread.join(60)
    assert [done.step for done in sidecar.evaluations] == [10, 20]
    assert len(reasons) == 1


def test_files_of_model_checkpoint(tmp_path: Path):
    model = linear(0.2)
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(tmp_path / "epoch-{epoch:02d}.keras")),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "latest.weights.h5"), save_weights_only=True),
    ]
    model.fit(X, Y, epochs=3, verbose=0, callbacks=callbacks)
    sidecar = evaluator(tmp_path)
    sidecar.start()
    steps = {done.name: done.step for done in sidecar.evaluations}
    assert steps == {"epoch-01.keras": 1, "epoch-02.keras": 2, "epoch-03.keras": 3, "latest.weights.h5": 3}
    expected = model.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(sidecar.evaluations[-1].logs["loss"], expected[0], rtol=1e-5)
    set_weight(model, 1.0)
    model.save_weights(tmp_path / "latest.weights.h5")
    sidecar.start()
    assert [done.name for done in sidecar.evaluations[4:]] == ["latest.weights.h5"]
    assert sidecar.best is sidecar.evaluations[4]


def test_a_half_written_file_is_tried_again(tmp_path: Path):
    file = tmp_path / "1.weights.h5"
    file.write_bytes(b"\x89HDF, but not all of it")
    sidecar = evaluator(tmp_path, max_evaluations=1, idle_timeout_s=60.0, poll_interval_s=0.5)
    thread = threading.Thread(target=sidecar.start)
    thread.start()
    time.sleep(0.2)
    linear(0.5).save_weights(file)
    thread.join(60)
    assert len(sidecar.evaluations) == 1


def test_a_file_that_never_gets_whole_is_an_error(tmp_path: Path):
    (tmp_path / "bad.weights.h5").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"bad\.weights\.h5 does not hold this model's weights"):
        evaluator(tmp_path).start()


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saved(tmp_path, [0.0, 0.1])
    sidecar = evaluator(tmp_path)
    first = sidecar._watched.found()[0]
    for path in sorted(first.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    first.path.rmdir()
    assert sidecar._watched.load(first, sidecar.model) is Outcome.GONE
    assert "was deleted before it could be evaluated" in caplog.text
    sidecar.start()
    assert [done.step for done in sidecar.evaluations] == [20]


def test_a_model_by_another_name_is_an_error_and_the_name_can_be_given(tmp_path: Path):
    model = linear(0.5)
    with rx.CheckpointManager(tmp_path, objects={"net": model}) as manager:
        manager.save(1)
    with pytest.raises(CheckpointError, match=r"It holds the objects \['net'\]"):
        evaluator(tmp_path).start()
    sidecar = evaluator(tmp_path, name="net")
    sidecar.start()
    np.testing.assert_allclose(sidecar.evaluations[0].logs["loss"], mse(0.5), rtol=1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("mode", "step"), [("auto", 20), ("min", 20), ("max", 10)])
def test_which_is_best(tmp_path: Path, mode: str, step: int):
    saved(tmp_path, [0.0, 0.9, 0.5])
    sidecar = evaluator(tmp_path, monitor="mae", mode=mode)
    sidecar.start()
    assert sidecar.best is not None
    assert sidecar.best.step == step


@pytest.mark.parametrize(("monitor", "greater"), [("loss", False), ("accuracy", True), ("auc", True), ("mae", False)])
def test_accuracies_grow_and_losses_fall(tmp_path: Path, monitor: str, greater: bool):
    assert evaluator(tmp_path, monitor=monitor)._is_better(2.0, 1.0) is greater


def test_callbacks_steps_and_datasets(tmp_path: Path):
    saved(tmp_path, [0.1])
    ended: list[dict[str, float]] = []
    callback = keras.callbacks.LambdaCallback()
    callback.on_test_end = ended.append
    batches = [(X[:2], Y[:2]), (X[2:4], Y[2:4]), (X[4:], Y[4:])]

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    sidecar = rx.keras.SidecarEvaluator(
        linear(strategy=strategy), Batches(), tmp_path, steps=2, callbacks=[callback], poll_interval_s=0.05,
        max_evaluations=1,
    )  # fmt: skip
    sidecar.start()
    wanted = float(np.mean((X[:4].sum(1) * 0.9) ** 2))
    np.testing.assert_allclose(sidecar.evaluations[0].logs["loss"], wanted, rtol=1e-4)
    assert len(ended) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "`steps` must be an int of at least 1, or None"),
        ({"max_evaluations": True}, "`max_evaluations` must be an int of at least 1, or None"),
        ({"poll_interval_s": 0}, "`poll_interval_s` must be a positive number of seconds"),
        ({"idle_timeout_s": -1.0}, "`idle_timeout_s` must be a positive number of seconds"),
        ({"mode": "least"}, "`mode` is 'min', 'max' or 'auto'"),
        ({"best_model_path": "model"}, "`best_model_path` ends with"),
        ({"data": iter([])}, "`data` is read again"),
    ],
)
def test_mistakes(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        rx.keras.SidecarEvaluator(**{"model": None, "data": (X, Y), "checkpoint_dir": tmp_path} | options)


def test_an_unknown_monitor_is_told_with_those_there_are(tmp_path: Path):
    saved(tmp_path, [0.1])
    with pytest.raises(ArgumentError, match=r"`monitor` is one of \['loss', 'mae'\], got 'val_loss'"):
        evaluator(tmp_path, monitor="val_loss").start()


PROGRAM = """
import sys
from pathlib import Path
import replicax as rx
strategy = rx.MultiWorkerMirroredStrategy()
sys.path.insert(0, ".")
from tests.keras.test_sidecar import X, Y, linear
sidecar = rx.keras.SidecarEvaluator(linear(strategy=strategy), (X, Y), sys.argv[1], max_evaluations=1)
sidecar.start()
print(strategy.num_workers, strategy.is_chief, strategy.cluster.task, sidecar.evaluations[0].step)
"""


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_an_evaluator_is_a_cluster_of_its_own(tmp_path: Path):
    """It is told of two workers, which are not there, and waits for neither."""
    saved(tmp_path, [0.1])
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    environment = {
        **os.environ,
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=Path(__file__).parent.parent.parent, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "True", "evaluator:0", "10"], done.stderr
