"""Data over real processes: every row counts once, whoever reads it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
BATCH = 6
ROWS_OF_WORKERS = (7 * 2, 3 * 2, 0)


def global_rows(strategy: rx.Strategy, dataset: Any, most: int | None = None) -> list[list[int]]:
    """The rows of each step, as all replicas together have them."""

    def all_rows(rows):
        return rx.get_replica_context().all_gather(rows, axis=0)

    steps: list[list[int]] = []
    with iter(dataset) as batches:
        for batch in batches:
            steps.append(np.asarray(strategy.run(all_rows, args=(batch,))).tolist())
            if len(steps) == most:
                break
    return steps


def problem(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.sin(np.outer(rows + 1, np.arange(1, 5))).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


def keras_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])


def fitted(strategy: rx.Strategy, dataset: Any, evaluates: bool) -> dict[str, Any]:
    with strategy.scope():
        model = keras_model()
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    history = model.fit(dataset, epochs=2, verbose=0).history
    evaluated = model.evaluate(dataset, verbose=0) if evaluates else []
    return {
        "losses": [*history["loss"], *history["mae"], *np.ravel(evaluated)],
        "weights": [np.asarray(variable).tolist() for variable in model.variables],
    }


def own_steps(worker: int) -> list[np.ndarray]:
    """This worker's rows: 7, 3 and 0 batches of 2, of global batches of 6."""
    rows = 100 * worker + np.arange(ROWS_OF_WORKERS[worker])
    return np.split(rows, range(BATCH, len(rows), BATCH)) if len(rows) else []


def combined_without_run(strategy: rx.Strategy) -> list[list[Any]]:
    """What the batches themselves come to: most of them have no rows for the last worker."""

    def combine(batch):
        return strategy.reduce("sum", batch, axis=0), strategy.reduce("mean", batch, axis=0), strategy.gather(batch)

    found: list[list[Any]] = []
    for batch in strategy.distribute_dataset([np.arange(rows, dtype=np.float32) for rows in (1, 2, 3)]):
        for results in (combine(batch), rx.function(combine)(batch)):
            found.append([np.asarray(result).tolist() for result in results])
        found.append([float(strategy.reduce("sum", strategy.run(lambda _: jnp.ones(()), args=(batch,))))])
    return found


def file_source() -> rx.data.FileSource:
    rows = {"a": np.arange(11), "b": np.arange(100, 105)}
    return rx.data.FileSource(["a", "b"], lambda file: rows[file], batch_size=BATCH)


def refused(strategy: rx.Strategy, dataset: Any) -> str:
    try:
        for _ in dataset:
            pass
    except rx.errors.BatchError as error:
        return str(error)
    return "nothing"


def worker(states: str) -> dict[str, Any]:
    """Everything in one cluster: a process takes seconds to start."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    index, off = strategy.worker_index, rx.InputOptions(auto_shard_policy="off")
    own = own_steps(index)
    values: dict[str, Any] = {}
    values["drained"] = global_rows(strategy, strategy.distribute_dataset(own, off))
    values["files"] = global_rows(strategy, strategy.distribute_dataset(file_source()))
    values["function"] = global_rows(
        strategy,
        strategy.distribute_datasets_from_function(
            lambda c: [np.arange(2) + 10 * i + 100 * c.input_pipeline_id for i in range(c.input_pipeline_id)]
        ),
    )
    values["list"] = global_rows(strategy, strategy.distribute_dataset([np.arange(6), np.arange(6, 14)]))
    shuffled = np.random.default_rng(index).permutation(30)
    values["different"] = [
        refused(strategy, strategy.distribute_dataset(shuffled, batch_size=BATCH)),
        refused(strategy, strategy.distribute_dataset(np.split(shuffled, 5))),
    ]
    ended = rx.InputOptions(auto_shard_policy="off", uneven_workers="error")
    values["error"] = refused(strategy, strategy.distribute_dataset(own, ended))
    values["report"] = [
        strategy.shard_report(strategy.distribute_dataset(own, off)),
        strategy.shard_report(file_source()),
        strategy.shard_report(np.arange(14), batch_size=BATCH),
    ]
    values["without run"] = combined_without_run(strategy)
    values["spec"] = str(strategy.distribute_dataset(own, off).element_spec)
    pairs = [problem(rows) for rows in own]
    values["fit own"] = fitted(strategy, strategy.distribute_dataset(pairs, off), evaluates=True)
    alike = strategy.distribute_dataset(problem(np.arange(20)), batch_size=BATCH)
    values["fit alike"] = fitted(strategy, alike, evaluates=False)
    values["resumed"] = resume(strategy, states, {"files": 2, "arrays": 2, "generator": 1}, index)
    return values


def resume(strategy: rx.Strategy, states: str, most: dict[str, int | None], index: int) -> dict[str, list[list[int]]]:
    """Goes on where the state files say, for some steps, and writes the new states."""
    sources: dict[str, Any] = {
        "files": strategy.distribute_dataset(file_source()),
        "arrays": strategy.distribute_dataset(np.arange(29), batch_size=BATCH),
        "generator": strategy.distribute_dataset(lambda: iter(np.split(np.arange(29), [7, 14, 21]))),
    }
    seen = {}
    saved = json.loads(Path(states).read_text()) if Path(states).exists() else {}
    for name, dataset in sources.items():
        if name in saved:
            dataset.set_state(saved[name])
        seen[name] = global_rows(strategy, dataset, most[name])
        saved[name] = dataset.get_state()
    if index == 0:
        Path(f"{states}.new").write_text(json.dumps(saved))
    return seen


def resuming_worker(states: str, last: bool) -> dict[str, list[list[int]]]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    most = dict.fromkeys(("files", "arrays", "generator"), None if last else 1)
    return resume(strategy, states, most, strategy.worker_index)


def steps_of_all() -> list[np.ndarray]:
    """The global batches that the workers' own rows make."""
    rows = [np.concatenate(own_steps(w)) if own_steps(w) else np.array([], int) for w in range(3)]
    return [np.concatenate([own[i * 2 : i * 2 + 2] for own in rows]) for i in range(7)]


@pytest.mark.nightly
def test_three_workers_then_two_then_one(tmp_path: Path):
    states = tmp_path / "states.json"
    first, *others = run_workers(worker, 3, states=str(states))
    for index, other in enumerate(others, start=1):
        assert other == first, f"worker {index} has other values than worker 0"
    assert first["drained"] == [batch.tolist() for batch in steps_of_all()]
    assert first["function"] == [[100, 101, 200, 201], [210, 211]]
    assert first["without run"] == [
        *([0.0, 0.0, [0.0]], [0.0, 0.0, [0.0]], [1.0]),
        *([1.0, 0.5, [0.0, 1.0]], [1.0, 0.5, [0.0, 1.0]], [2.0]),
        *([3.0, 1.0, [0.0, 1.0, 2.0]], [3.0, 1.0, [0.0, 1.0, 2.0]], [3.0]),
    ]
    assert first["list"] == [list(range(6)), list(range(6, 14))]
    assert Counter(row for step in first["files"] for row in step) == Counter([*range(11), *range(100, 105)])
    assert all("worker:1" in text and "same seed" in text for text in first["different"])
    assert "worker:0: 2, worker:1: 2, worker:2: 0" in first["error"]
    assert first["report"][0].splitlines()[2] == "worker:2: 0 rows, 0 batches, overlap 0, missing unknown"
    assert first["report"][1].splitlines() == [
        "worker:0: 11 rows, 6 batches, 1 files, overlap 0, missing 0",
        "worker:1: 5 rows, 3 batches, 1 files, overlap 0, missing 0",
        "worker:2: 0 rows, 0 batches, 0 files, overlap 0, missing 0",
    ]
    assert [line.split(": ")[1] for line in first["report"][2].splitlines()] == [
        "5 rows, 3 batches, overlap 0, missing 0",
        "5 rows, 3 batches, overlap 0, missing 0",
        "4 rows, 2 batches, overlap 0, missing 0",
    ]
    check_fit(first)
    check_resumed(first["resumed"], states)


def check_fit(found: dict[str, Any]) -> None:
    alone = rx.OneDeviceStrategy("cpu:0")
    expected = {
        "fit own": alone.distribute_dataset([problem(rows) for rows in steps_of_all()]),
        "fit alike": alone.distribute_dataset(problem(np.arange(20)), batch_size=BATCH),
    }
    for name, dataset in expected.items():
        wanted = fitted(alone, dataset, evaluates=name == "fit own")
        np.testing.assert_allclose(found[name]["losses"], wanted["losses"], rtol=1e-5)
        for got, weights in zip(found[name]["weights"], wanted["weights"], strict=True):
            np.testing.assert_allclose(got, weights, rtol=1e-5, atol=1e-6)


def check_resumed(seen: dict[str, list[list[int]]], states: Path) -> None:
    """Goes on with two workers for a step, then with one to the end: each row has come once."""
    Path(f"{states}.new").rename(states)
    again = run_workers(resuming_worker, 2, states=str(states), last=False)
    assert again[0] == again[1]
    state = json.loads(Path(f"{states}.new").read_text())
    assert state["arrays"]["rows"] == 3 * BATCH
    Path(f"{states}.new").rename(states)
    last = resume(rx.MirroredStrategy(["cpu:0", "cpu:1"]), str(states), dict.fromkeys(seen), 0)
    rows = {"files": [*range(11), *range(100, 105)], "arrays": range(29), "generator": range(29)}
    for name, wanted in rows.items():
        given = [row for part in (seen, again[0], last) for step in part[name] for row in step]
        assert Counter(given) == Counter(wanted), name


def test_one_worker_reports_one_line():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    assert strategy.shard_report(np.arange(10), batch_size=4) == "worker:0: 10 rows, 3 batches, overlap 0, missing 0"
    assert strategy.shard_report(file_source()).endswith("16 rows, 3 batches, 2 files, overlap 0, missing 0")
    assert rx.get_strategy().shard_report([np.arange(3)]) == "worker:0: 3 rows, 1 batches, overlap 0, missing 0"
