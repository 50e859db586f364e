"""Functions that a notebook, or a test, runs as several workers."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, RemoteWorkerError

pytestmark = pytest.mark.multiprocess


def sum_over_replicas(scale: float, *, shift: float) -> tuple[int, int, np.ndarray]:
    strategy = rx.MultiWorkerMirroredStrategy()
    each = strategy.run(lambda: scale * rx.get_replica_context().replica_id_in_sync_group + shift)
    print(f"worker {strategy.worker_index} is here")
    return strategy.worker_index, strategy.num_replicas_in_sync, np.asarray(strategy.reduce("sum", each, axis=None))


def test_results_and_output_of_all_workers_come_back(capfd: pytest.CaptureFixture[str]):
    results = rx.notebook.launch(sum_over_replicas, (10.0,), {"shift": 1.0}, workers=3, devices_per_worker=2)
    assert [(index, count, float(total)) for index, count, total in results] == [(i, 6, 156.0) for i in range(3)]
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"[worker {i}] worker {i} is here" for i in range(3)]


def test_a_function_that_is_in_no_module_travels_with_what_it_uses():
    shared = {"factor": 4}

    def product(x: int) -> int:
        return shared["factor"] * x

    assert rx.notebook.launch(product, (5,), workers=1) == [20]


class LocalError(ValueError):
    pass


def fail_on_worker_1(folder: Path) -> None:
    number = int(os.environ["JAX_PROCESS_ID"])
    (folder / f"{number}.pid").write_text(str(os.getpid()))
    if number == 1:
        deadline = time.monotonic() + 60
        while not (folder / "0.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise LocalError("no bread today")
    time.sleep(300)


def test_an_error_of_a_worker_is_raised_here_and_no_process_is_left(tmp_path: Path):
    with pytest.raises(LocalError, match="no bread today") as caught:
        rx.notebook.launch(fail_on_worker_1, (tmp_path,), workers=2, grace=0.5)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteWorkerError)
    assert cause.worker == "worker 1"
    assert 'raise LocalError("no bread today")' in cause.words
    assert not [path for path in tmp_path.iterdir() if Path("/proc", path.read_text()).exists()]


def test_a_traceback_shows_lines_that_are_in_no_file():
    import linecache

    source = "def fails():\n    raise KeyError('oh')  # this line\n"
    linecache.cache["cell 7"] = (len(source), None, source.splitlines(keepends=True), "cell 7")
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, "cell 7", "exec"), namespace)
    try:
        with pytest.raises(KeyError, match="oh") as caught:
            rx.notebook.launch(namespace["fails"], workers=1)
    finally:
        del linecache.cache["cell 7"]
    shown = re.sub(r"\n +", "\n", str(caught.value.__cause__))
    assert "File \"cell 7\", line 2, in fails\nraise KeyError('oh')  # this line" in shown


def leave(code: int) -> None:
    os._exit(code)


@pytest.mark.parametrize(("code", "message"), [(3, "worker 0 failed: exit code 3"), (0, "before the function ret")])
def test_a_worker_that_ends_without_an_error(code: int, message: str):
    with pytest.raises(RemoteWorkerError, match=message):
        rx.notebook.launch(leave, (code,), workers=1)


def variable_of_the_environment() -> str:
    return os.environ["REPLICAX_OF_A_NOTEBOOK"]


def test_a_workers_own_variables_come_before_those_of_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REPLICAX_OF_A_NOTEBOOK", "this process")
    environment = {"REPLICAX_OF_A_NOTEBOOK": "the workers"}
    assert rx.notebook.launch(variable_of_the_environment, workers=1, environment=environment) == ["the workers"]


def wait_to_be_interrupted(folder: Path) -> None:
    (folder / "up").touch()
    time.sleep(60)


def test_the_interrupt_button_is_an_interrupt(tmp_path: Path):
    def press() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "up").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        rx.notebook.launch(wait_to_be_interrupted, (tmp_path,), workers=1, grace=5.0)
    presser.join(60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": 3}, "`function` must be callable, got int: 3"),
        ({"function": print, "workers": 0}, "`workers` must be an int of at least 1, got 0"),
        ({"function": print, "devices_per_worker": 1.5}, "`devices_per_worker` must be an int"),
        ({"function": print, "grace": -1}, "`grace`"),
        ({"function": print, "args": (threading.Lock(),)}, "print cannot be sent to the workers"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str):
    with pytest.raises(ArgumentError, match=message):
        rx.notebook.launch(**arguments)
