"""Progress, printing and trackers in jobs of several processes: once for the job, written by its chief."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from tests.comforts import elastic_job, reading
from tests.multiprocess.workers import run_workers

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def worker(folder: str) -> dict[str, Any]:
    """Trains in a custom loop and in `fit`, and returns what this worker has printed and seen."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    dataset = strategy.distribute_dataset((X, Y), batch_size=8)
    losses, printed = [], io.StringIO()

    def mean_of_squares(batch: Any) -> Any:
        return rx.compute_average_loss((batch[1] ** 2)[:, 0])

    with contextlib.redirect_stdout(printed), rx.trackers.CSV(Path(folder) / "loop.csv") as tracker:
        rx.print("begins")
        tracker.log_hyperparameters({"batch_size": 8})
        bar = rx.progress(dataset, description="pass")
        for step, batch in enumerate(bar):
            loss = strategy.reduce("sum", strategy.run(mean_of_squares, args=(batch,)), axis=None)
            bar.show(loss=loss)
            tracker.log({"loss": loss}, step)
            losses.append(float(loss))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    fitted = rx.trackers.CSV(Path(folder) / "fit.csv")
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[fitted.callback()]).history["loss"]
    fitted.close()
    return {"printed": printed.getvalue(), "losses": losses, "history": history}


@pytest.mark.multiprocess
def test_two_workers_print_once_and_write_one_table(tmp_path: Path):
    first, second = run_workers(worker, 2, 1, 100, folder=str(tmp_path))
    assert second["printed"] == ""
    began, passed = first["printed"].splitlines()
    assert began == "begins"
    assert passed.startswith("pass: 3 steps in ")
    assert "rows/s, loss " in passed
    assert first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], [(Y[i : i + 8] ** 2).mean() for i in (0, 8, 16)], rtol=1e-6)
    assert reading.table(tmp_path / "loop.csv") == {"loss": list(enumerate(first["losses"]))}
    found = reading.table(tmp_path / "fit.csv")
    assert [step for step, _ in found["loss"]] == [0, 1]
    np.testing.assert_allclose([value for _, value in found["loss"]], first["history"], rtol=1e-6)
    names = ["fit.csv", "loop.csv", "loop.hyperparameters.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.fixture
def parameter_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[rx.ParameterServerStrategy]:
    """A strategy whose worker and server live in this process."""
    from tests.parameter_server import fakes

    jax.devices()  # Or a server would choose the number of XLA's threads for this process.
    platforms = jax.config.jax_platforms
    with fakes.fake_ray(monkeypatch), fakes.strategy_of() as strategy:
        yield strategy
    jax.config.update("jax_platforms", platforms)  # A server takes the CPU.


def test_the_coordinator_of_parameter_servers_writes(
    parameter_servers: rx.ParameterServerStrategy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    strategy = parameter_servers
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    tracker = rx.trackers.CSV(tmp_path / "log.csv")
    fitted = model.fit(X, Y, batch_size=8, epochs=2, steps_per_epoch=3, verbose=0, callbacks=[tracker.callback()])
    tracker.close()
    rx.print("trained")
    assert capsys.readouterr().out == "trained\n"
    found = reading.table(tmp_path / "log.csv")["loss"]
    assert [step for step, _ in found] == [0, 1]
    np.testing.assert_allclose([value for _, value in found], fitted.history["loss"], rtol=1e-6)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.nightly
def test_a_table_has_all_steps_where_the_chief_is_lost_and_comes_again(tmp_path: Path):
    (tmp_path / "log.csv").write_text("step,loss\n100,1.0\n")  # of an earlier job
    with rx.testing.ElasticJob(elastic_job.__file__, tmp_path, workers=elastic_job.WORKERS) as job:
        assert job.wait(300) == 0, job.output
    found = reading.table(tmp_path / "log.csv")["loss"]
    assert found == [(step, float(step**2)) for step in range(1, elastic_job.STEPS + 1)]
