"""What processes tell each other about a save; here they are threads with a dictionary for JAX's key-value store."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import Contents, writing
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.same_contents import document_of
from replicax.checkpoint.writing import Save
from replicax.errors import CheckpointError
from replicax.keras.chief_writes import write_together
from tests.cluster.fake_store import FakeStore


@pytest.fixture
def processes():
    """Calls a function in two "processes" at once, each with its coordination; returns what they return or raise."""
    store = FakeStore()

    def coordination_of(process):
        made = Coordination("Saving", 30.0, process=process, count=2, store=store)
        made._number = 0
        return made

    def run(function):
        def one(process):
            try:
                return function(process, coordination_of(process))
            except CheckpointError as error:
                return error

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, range(2)))

    return run


def write_in_place(path, contents, coordination, appear_s=60.0):
    save = Save(coordination, f"The checkpoint {path} could not be written", appear_s)
    save.agree(lambda: (path, document_of(contents.arrays, contents.state, contents.step)))
    return save.write(lambda: contents)


def test_processes_with_different_directories_are_told_whose_differ(processes, tmp_path):
    contents = Contents({"w": jnp.ones(2)})
    results = processes(lambda process, together: write_in_place(tmp_path / str(process) / "a", contents, together))
    for error in results:
        assert isinstance(error, CheckpointError)
        assert f"process 0: {tmp_path}/0/a; process 1: {tmp_path}/1/a" in str(error)
        assert "a place that all of them see" in str(error)
    assert not list(tmp_path.iterdir())


def test_what_another_process_has_written_elsewhere_is_named(processes, tmp_path, monkeypatch):
    """As on two machines that have a folder of this name each."""
    own = writing.save_files
    monkeypatch.setattr(
        writing, "save_files", lambda *args: own(*args) if args[2] else {"state-00001.json": (2, "0" * 64)}
    )
    contents = Contents({"w": jnp.ones(2)})
    first, second = processes(lambda process, together: write_in_place(tmp_path / "c", contents, together, 0.05))
    assert "process 0 does not see state-00001.json, which other processes have written" in str(first)
    assert "file system that all of them share" in str(second)
    assert not list(tmp_path.iterdir())


def test_the_same_directory_is_written_to(processes, tmp_path):
    assert processes(lambda process, coordination: coordination.check_same("directory", str(tmp_path))) == [None, None]


def test_a_model_is_on_disk_when_the_call_returns_on_any_worker(processes, tmp_path, monkeypatch):
    file = tmp_path / "model.keras"

    def write():
        time.sleep(0.2)
        file.write_text("weights")
        return "written"

    def save(process, coordination):
        monkeypatch.setattr(
            "replicax.checkpoint.coordination.Coordination", lambda *_, **__: own[threading.get_ident()]
        )
        own[threading.get_ident()] = coordination
        result = write_together(file, write, is_chief=process == 0)
        return result, file.exists()

    own: dict[int, Coordination] = {}
    assert processes(save) == [("written", True), (None, True)]


def test_a_model_that_cannot_be_written_is_an_error_on_all_workers(processes, monkeypatch):
    own: dict[int, Coordination] = {}

    def write():
        raise OSError("the disk is full")

    def save(process, coordination):
        monkeypatch.setattr(
            "replicax.checkpoint.coordination.Coordination", lambda *_, **__: own[threading.get_ident()]
        )
        own[threading.get_ident()] = coordination
        return write_together("model.keras", write, is_chief=process == 0)

    first, second = processes(save)
    assert "could not be saved to model.keras: the disk is full" in str(first)
    assert "could not be saved to model.keras by process 0: OSError: the disk is full" in str(second)


def test_only_the_last_part_of_the_directory_differs(processes, tmp_path):
    contents = Contents({"w": jnp.ones(2)})
    for error in processes(lambda process, together: write_in_place(tmp_path / f"at-{process}", contents, together)):
        assert f"process 0: {tmp_path}/at-0; process 1: {tmp_path}/at-1" in str(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Contents({"b": np.ones(3, np.float32)}), "'a' (process 0: float32[2]; process 1: nothing)"),
        (
            Contents({"a": np.ones(2, np.float32), "b": np.ones(4, np.float32)}),
            "'b' (process 0: float32[3]; process 1: float32[4])",
        ),
        (
            Contents({"a": np.ones(2, np.int32), "b": np.ones(3, np.float32)}),
            "'a' (process 0: float32[2]; process 1: int32[2])",
        ),
        (
            Contents({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, {"n": {"value": 1}}),
            "'n' (process 0: nothing; process 1: a value or state)",
        ),
        (
            Contents({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, step=2),
            "the step (process 0: None; process 1: 2)",
        ),
    ],
)
def test_processes_that_save_different_things_are_told_who_has_what(processes, tmp_path, other, difference):
    own = Contents({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})
    path = tmp_path / "c"
    results = processes(lambda process, together: write_in_place(path, other if process else own, together))
    for error in results:
        assert isinstance(error, CheckpointError)
        assert f"these differ: {difference}. Nothing was written." in str(error)
    assert not list(tmp_path.iterdir())


def test_the_order_of_names_does_not_change_their_folders():
    one, other = np.ones(1), np.ones(2)
    assert writing.folders_of({"b": one, "a": other}) == writing.folders_of({"a": other, "b": one})


class Failing:
    """An object whose state cannot be told in one process."""

    def __init__(self, fails: bool):
        self.fails = fails

    def get_state(self) -> int:
        if self.fails:
            raise OSError("the reader is closed")
        return 1

    def set_state(self, state: int) -> None:
        pass


@pytest.fixture
def as_processes(processes, monkeypatch):
    """Calls a function of the process in two "processes", in which checkpoints are made as usual."""
    own: dict[int, Coordination] = {}

    def run(function):
        for module in ("checkpoint", "manager", "saving", "writing"):
            monkeypatch.setattr(
                f"replicax.checkpoint.{module}.Coordination", lambda *_, **__: own[threading.get_ident()]
            )

        def one(process, coordination):
            own[threading.get_ident()] = coordination
            return function(process)

        return processes(one)

    return run


def test_a_state_that_cannot_be_told_in_one_process_is_an_error_in_all(as_processes, tmp_path):
    first, second = as_processes(lambda process: rx.Checkpoint(it=Failing(process == 1)).write(tmp_path / "c"))
    assert "could not be written by process 1: OSError: the reader is closed" in str(first)
    assert "could not be written: the reader is closed" in str(second)
    assert not list(tmp_path.iterdir())


def test_a_bad_argument_in_one_process_is_an_error_in_all(as_processes, tmp_path):
    def write(process):
        return rx.Checkpoint(w=np.ones(2)).write(tmp_path / "c", **({"v": np.ones(2)} if process else {}))

    first, second = as_processes(write)
    assert "could not be written by process 1: CheckpointError: The checkpoint has no objects ['v']" in str(first)
    assert "has no objects ['v']" in str(second)


def test_save_with_a_failing_state_in_one_process_counts_in_none(as_processes, tmp_path):
    checkpoints = [rx.Checkpoint(it=Failing(False)), rx.Checkpoint(it=Failing(True))]
    first, second = as_processes(lambda process: checkpoints[process].save(tmp_path / "c"))
    assert "by process 1: OSError" in str(first)
    assert isinstance(second, CheckpointError)
    assert [int(each.save_counter.numpy()) for each in checkpoints] == [0, 0]


def managers_after_two_saves(directory, objects):
    manager = rx.CheckpointManager(directory, objects=objects(0), max_to_keep=2, async_=False)
    manager.save(1)
    manager.save(2)
    return [manager, rx.CheckpointManager(directory, objects=objects(1), max_to_keep=2, async_=False)]


def test_a_manager_whose_processes_differ_keeps_what_it_has(as_processes, tmp_path):
    managers = managers_after_two_saves(tmp_path, lambda process: {"vw"[process]: np.ones(2, np.float32)})
    for error in as_processes(lambda process: managers[process].save(3)):
        assert "'v' (process 0: float32[2]; process 1: nothing)" in str(error)
    assert managers[0].all_steps() == [1, 2]


def test_a_manager_compares_the_steps(as_processes, tmp_path):
    managers = managers_after_two_saves(tmp_path, lambda process: {"w": np.ones(2)})
    for error in as_processes(lambda process: managers[process].save(3 + process)):
        assert f"process 0: {tmp_path}/00000003; process 1: {tmp_path}/00000004" in str(error)
    assert managers[0].all_steps() == [1, 2]


def test_a_manager_tells_the_others_what_failed_here(as_processes, tmp_path):
    managers = managers_after_two_saves(tmp_path, lambda process: {"it": Failing(process == 1)})
    first, second = as_processes(lambda process: managers[process].save(3))
    assert "could not be written by process 1: OSError: the reader is closed" in str(first)
    assert "the reader is closed" in str(second)
    assert managers[0].all_steps() == [1, 2]


def test_messages_are_removed_by_the_next_in_the_same_thread_and_by_no_other():
    store = FakeStore()

    def begun(number: int) -> Coordination:
        made = Coordination("Saving", 30.0, process=0, count=2, store=store, kind="of this test")
        made._number = number
        made._exchange.tell(made._stage("written"))
        return made

    def left() -> list[int]:
        return sorted(int(key.split("/")[2]) for key in store.values)

    in_background, by_script, next_in_background, next_by_script = map(begun, range(4))
    by_script.end()
    next_by_script.end()
    assert left() == [0, 2, 3]  # The first one still goes on: it needs what the others tell it.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_background.end).result()
        assert left() == [0, 2, 3]
        pool.submit(next_in_background.end).result()
    assert left() == [2, 3]
