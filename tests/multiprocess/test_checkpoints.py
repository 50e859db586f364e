"""Checkpoints of several real processes: saved by two, restored by one or three; SIGTERM to one of them."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import damaged_files, policies, read_metadata
from replicax.errors import CheckpointError
from tests.multiprocess.workers import ROOT, free_ports, run_workers

pytestmark = pytest.mark.multiprocess
STEPS = 12


class Trainer:
    """A small training whose state is a variable, a generator and a Keras optimizer."""

    def __init__(self, strategy: rx.Strategy):
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.ones((8, 4), np.float32))
            self.optimizer = keras.optimizers.Adam(0.1)
            self.optimizer.build([self.w])
        self.rng = np.random.default_rng(0)
        self.checkpoint = rx.Checkpoint(w=self.w, optimizer=self.optimizer, rng=self.rng)
        self.train = rx.function(self._train)

    def _step(self, x: Any) -> None:
        _, gradients = rx.value_and_grad(lambda: jnp.sum((x @ self.w.value) ** 2) / 24, [self.w])()
        self.optimizer.apply_gradients(zip(gradients, [self.w], strict=True))

    def _train(self, x: Any) -> None:
        self.strategy.run(self._step, args=(x,))

    def step(self) -> None:
        rows = self.rng.normal(size=(24, 8)).astype(np.float32)
        for (x,) in self.strategy.distribute_dataset((rows,), batch_size=24):
            self.train(x)

    def values(self) -> list[Any]:
        return [np.asarray(self.w.numpy()).tolist(), *(np.asarray(v).tolist() for v in self.optimizer.variables)]


def saver(directory: str) -> Any:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100)
    trainer = Trainer(strategy)
    with rx.CheckpointManager(directory, checkpoint=trainer.checkpoint, timeout=60) as manager:
        for step in range(1, 6):
            trainer.step()
            manager.save(step)
        manager.wait_until_finished()
        values = trainer.values()
        # One that fails in one worker fails in all, and leaves nothing.
        import replicax.checkpoint.writing as writing

        original = writing.save_files
        if strategy.worker_index == 1:
            writing.save_files = lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        manager.save(6)
        try:
            manager.wait_until_finished()
            failure = ""
        except CheckpointError as error:
            failure = str(error)
        writing.save_files = original
        manager.save(7)
    return {"values": values, "failure": failure, "steps": manager.all_steps()}


def restorer(directory: str) -> Any:
    trainer = Trainer(rx.MultiWorkerMirroredStrategy(start_timeout=100))
    manager = rx.CheckpointManager(directory, checkpoint=trainer.checkpoint)
    manager.restore(5)
    values = trainer.values()
    trainer.step()
    return {"values": values, "after": trainer.values(), "latest": manager.latest_step()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("saved")
    results = run_workers(saver, 2, 2, timeout=250, directory=str(directory))
    assert results[0]["values"] == results[1]["values"]
    return directory, results


@pytest.mark.slow
def test_two_workers_save(saved: Any):
    directory, results = saved
    for result in results:
        assert result["steps"] == [4, 5, 7]
        assert "No space left" in result["failure"]
    assert "could not be written by process 1: OSError" in results[0]["failure"]
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
    for path in directory.iterdir():
        assert damaged_files(path) == {}
        assert read_metadata(path).processes == 2


def test_one_process_restores(saved: Any):
    directory, results = saved
    trainer = Trainer(rx.OneDeviceStrategy("cpu:0"))
    rx.CheckpointManager(directory, checkpoint=trainer.checkpoint).restore(5)
    assert trainer.values() == results[0]["values"]


@pytest.mark.nightly
def test_three_workers_restore(saved: Any):
    directory, results = saved
    restored = run_workers(restorer, 3, timeout=250, directory=str(directory))
    trainer = Trainer(rx.OneDeviceStrategy("cpu:0"))
    rx.CheckpointManager(directory, checkpoint=trainer.checkpoint).restore(5)
    trainer.step()
    for result in restored:
        assert result["values"] == results[0]["values"]
        assert result["latest"] == 7
        for found, expected in zip(result["after"], trainer.values(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# SIGTERM. The workers are started here, and not by `run_workers`: they end with an exit code of their own.

_WORKER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("worker_program", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
result = getattr(module, sys.argv[2])(*sys.argv[3:5])
with open(sys.argv[5], "w") as file:
    json.dump(result, file)
"""


def loop(directory: str, progress: str) -> Any:
    """A custom loop; worker 1 is a little slower, so that they are not at the same step."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100)
    trainer = Trainer(strategy)
    with rx.PreemptionCheckpointHandler(strategy, trainer.checkpoint, directory) as handler:
        while handler.total_run_calls < STEPS:
            Path(f"{progress}.{strategy.worker_index}").write_text(str(handler.total_run_calls))
            time.sleep(0.1 * strategy.worker_index)
            handler.run(trainer.step)
    return trainer.values()


def sharded_fit(directory: str, progress: str) -> Any:
    return fit(directory, progress, rx.FullyShardedStrategy(min_size=4, start_timeout=100))


def fit(directory: str, progress: str, strategy: Any = None) -> Any:
    strategy = strategy or rx.MultiWorkerMirroredStrategy(start_timeout=100)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 6)).astype("f4"), rng.normal(size=(48, 3)).astype("f4")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")

    class Progress(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            Path(f"{progress}.{strategy.worker_index}").write_text(str(int(self.model.optimizer.iterations.value)))
            time.sleep(0.05)

    model.fit(
        x, y, batch_size=12, epochs=3, verbose=0, validation_data=(x[:8], y[:8]), shuffle=True,
        callbacks=[Progress(), rx.keras.BackupAndRestore(directory, save_freq=2)],
    )  # fmt: skip
    return [np.asarray(v).tolist() for v in [*model.variables, *model.optimizer.variables]]


def run_until_end(
    program: Any, directory: Path, terminate: int | None, after: int = 0, timeout: float = 200
) -> tuple[list[int], list[Any], str]:
    """Runs two workers, sends one of them SIGTERM when it has come to a step; returns exit codes, results and logs."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for index in range(2):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(task), "KERAS_BACKEND": "jax"}
            command = [sys.executable, "-c", _WORKER, __file__, program.__name__, str(directory), f"{folder}/progress"]
            with open(Path(folder, f"{index}.log"), "w") as log:
                processes.append(
                    subprocess.Popen(
                        [*command, f"{folder}/{index}.json"], env=environment, cwd=ROOT, stdout=log, stderr=log
                    )
                )
        try:
            if terminate is not None:
                _wait_for(Path(f"{folder}/progress.{terminate}"), after, processes)
                processes[terminate].send_signal(signal.SIGTERM)
            codes = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        logs = "\n".join(f"--- worker {i}\n" + Path(folder, f"{i}.log").read_text() for i in range(2))
        results = [Path(folder, f"{i}.json") for i in range(2)]
        return codes, [json.loads(file.read_text()) for file in results if file.exists()], logs


def _wait_for(file: Path, step: int, processes: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        text = file.read_text() if file.exists() else ""
        if text and int(text) >= step:
            return
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    @functools.cache
    def run(program: Any) -> Any:
        codes, results, logs = run_until_end(program, tmp_path_factory.mktemp("undisturbed") / "c", None)
        assert codes == [0, 0], logs
        return results

    return run


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "worker", "after"),
    [
        pytest.param(loop, 0, 0, id="the chief in its first compilation", marks=pytest.mark.nightly),
        pytest.param(loop, 1, 4, id="another one in a step"),
        pytest.param(fit, 1, 4, id="in a callback of fit", marks=pytest.mark.nightly),
        pytest.param(sharded_fit, 1, 4, id="in a sharded fit", marks=pytest.mark.nightly),
    ],
)
def test_sigterm_to_one_worker(
    tmp_path: Path, undisturbed: Callable[[Any], Any], program: Any, worker: int, after: int
):
    directory = tmp_path / "c"
    codes, _, logs = run_until_end(program, directory, worker, after)
    assert codes == [75, 75], logs
    (path,) = (path for path in directory.iterdir() if not path.name.startswith("."))
    assert damaged_files(path) == {}
    assert read_metadata(path).processes == 2
    codes, results, logs = run_until_end(program, directory, None)
    assert codes == [0, 0], logs
    assert results == undisturbed(program)


def builds_in_its_first_step(directory: str) -> Any:
    """Trains three steps; and two of them again from a checkpoint, with a model and optimizer that are not built."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100)
    [batch] = strategy.distribute_dataset([np.arange(32, dtype="float32").reshape(8, 4) / 32])

    def made() -> tuple[Any, rx.Checkpoint, Any]:
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
            optimizer = keras.optimizers.Adam(0.1)

        def replica(x: Any) -> None:
            _, gradients = rx.value_and_grad(lambda: keras.ops.mean(model(x) ** 2), model.trainable_variables)()
            optimizer.apply(gradients, model.trainable_variables)

        @rx.function
        def step(batch: Any) -> None:
            strategy.run(replica, args=(batch,))

        return step, rx.Checkpoint(model=model, optimizer=optimizer), model

    step, checkpoint, model = made()
    step(batch)
    step(batch)
    checkpoint.save(f"{directory}/ckpt")
    step(batch)
    again, checkpoint, other = made()
    status = checkpoint.restore(rx.latest_checkpoint(directory))
    again(batch)
    status.assert_consumed()
    differences = [np.abs(a - b).max() for a, b in zip(model.get_weights(), other.get_weights(), strict=True)]
    return {"difference": float(max(differences)), "saves": int(checkpoint.save_counter.numpy())}


@pytest.mark.nightly
def test_what_is_not_built_continues_on_all_workers(tmp_path: Path):
    results = run_workers(builds_in_its_first_step, 2, 1, timeout=250, directory=str(tmp_path))
    assert list(results) == [{"difference": 0.0, "saves": 1}] * 2


class Told:
    """An object whose state is told in some workers only."""

    def __init__(self, fails: bool):
        self.fails = fails

    def get_state(self) -> int:
        if self.fails:
            raise OSError("the reader is closed")
        return 1

    def set_state(self, state: int) -> None:
        self.state = state


def saves_differently(directory: str) -> Any:
    """Writes what differs between two workers, and what only has another order."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100)
    index = strategy.worker_index
    with strategy.scope():
        a, b = rx.Variable(np.ones(3, np.float32)), rx.Variable(np.full((64, 4), 2, np.float32))
    ordered = rx.Checkpoint({"a": a, "b": b} if index == 0 else {"b": b, "a": a})
    path = ordered.write(f"{directory}/ordered")
    b.assign(np.zeros((64, 4)))
    ordered.restore(path)

    def failure(write: Callable[[], object]) -> str:
        try:
            write()
        except CheckpointError as error:
            return str(error)
        return ""

    failures = {
        "names": failure(lambda: rx.Checkpoint({"a": a, f"b{index}": b}).write(f"{directory}/names")),
        "folder": failure(lambda: ordered.write(f"{directory}/od_{index}")),
        "none": failure(lambda: ordered.restore(path if index == 0 else None)),
        "state": failure(lambda: rx.Checkpoint(a=a, it=Told(index == 1)).write(f"{directory}/state")),
    }
    manager = rx.CheckpointManager(f"{directory}/managed", checkpoint=ordered, max_to_keep=1, timeout=60)
    manager.save(1)
    manager.wait_until_finished()
    manager.save(2 + index)
    failures["step"] = failure(manager.wait_until_finished)
    steps = manager.all_steps()
    manager.save(9)
    manager.wait_until_finished()
    return {"b": b.numpy().tolist(), "failures": failures, "steps": steps, "later": manager.all_steps()}


@pytest.mark.nightly
def test_workers_that_save_different_things_are_told(tmp_path: Path):
    results = run_workers(saves_differently, 2, timeout=250, directory=str(tmp_path))
    for result in results:
        assert result["b"] == np.full((64, 4), 2.0).tolist()
        assert "'b0' (process 0: float32[64, 4]; process 1: nothing)" in result["failures"]["names"]
        assert f"process 0: {tmp_path}/od_0; process 1: {tmp_path}/od_1" in result["failures"]["folder"]
        assert f"process 0: {tmp_path}/ordered; process 1: None" in result["failures"]["none"]
        assert "the reader is closed" in result["failures"]["state"]
        assert "process 1: " in result["failures"]["step"]
        assert (result["steps"], result["later"]) == ([1], [9])
    assert "by process 1: OSError" in results[0]["failures"]["state"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["managed", "ordered"]


def saves_by_the_clock(directory: str) -> Any:
    """Trains at another pace in each of two workers, which save by the chief's clock and measure."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=100)
    index = strategy.worker_index
    with strategy.scope():
        w = rx.Variable(0.0)
    measured = iter(range(1000))
    manager = rx.CheckpointManager(
        directory,
        objects={"w": w},
        save_when=[policies.EverySeconds(0.5), policies.Improved(lambda: 5.0 if index else next(measured) // 20)],
        keep=[policies.Newest(1), policies.EverySteps(20)],
    )
    saved = []
    for step in range(1, 61):
        strategy.run(lambda: w.assign_add(1.0))
        time.sleep(0.05 * index)
        if manager.save(step):
            saved.append(step)
    manager.close()
    return {"saved": saved, "steps": manager.all_steps()}


@pytest.mark.nightly
def test_workers_save_at_the_same_steps_by_the_clock_and_by_a_measure(tmp_path: Path):
    first, second = run_workers(saves_by_the_clock, 2, timeout=250, directory=str(tmp_path))
    assert first == second
    assert {1, 21, 41} <= set(first["saved"])  # What is next is better.
    assert len(first["saved"]) > 4
    assert first["steps"][-1] == first["saved"][-1]
