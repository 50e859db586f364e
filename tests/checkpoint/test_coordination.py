"""What processes tell each other about a save; here they are threads with a dictionary for JAX's key-value store."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest

from replicax.checkpoint import writing
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.writing import Contents, write_in_place
from replicax.errors import CheckpointError
from replicax.keras.saving import write_together
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


def test_processes_with_different_directories_are_told_whose_differ(processes, tmp_path):
    contents = Contents({"w": jnp.ones(2)})
    results = processes(lambda process, together: write_in_place(tmp_path / str(process) / "a", contents, together))
    for error in results:
        assert isinstance(error, CheckpointError)
        assert f"process 0: {tmp_path}/0; process 1: {tmp_path}/1" in str(error)
        assert "a place that all of them see" in str(error)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_a_process_does_not_see_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_SECONDS_TO_APPEAR", 0.05)
    with pytest.raises(CheckpointError, match=r"does not see .*absent.*file system that all of them share"):
        writing._seen(tmp_path / "absent")


def test_the_same_directory_is_written_to(processes, tmp_path):
    assert processes(lambda process, coordination: coordination.check_same("directory", str(tmp_path))) == [None, None]


def test_a_model_is_on_disk_when_the_call_returns_on_any_worker(processes, tmp_path, monkeypatch):
    file = tmp_path / "model.keras"

    def write():
        time.sleep(0.2)
        file.write_text("weights")
        return "written"

    def save(process, coordination):
        monkeypatch.setattr("replicax.keras.saving.Coordination", lambda name, timeout_s: own[threading.get_ident()])
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
        monkeypatch.setattr("replicax.keras.saving.Coordination", lambda name, timeout_s: own[threading.get_ident()])
        own[threading.get_ident()] = coordination
        return write_together("model.keras", write, is_chief=process == 0)

    first, second = processes(save)
    assert "could not be saved to model.keras: the disk is full" in str(first)
    assert "could not be saved to model.keras by process 0: OSError: the disk is full" in str(second)
