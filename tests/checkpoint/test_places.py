"""Places of checkpoints: URLs, and what stands in a store, for which TensorStore's own memory is taken here."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

import replicax as rx
from replicax.checkpoint import places
from replicax.checkpoint.places import (
    StoreError,
    StorePath,
    StorePatience,
    absolute,
    clean,
    complete_in,
    place_of,
    staging,
)
from replicax.errors import ArgumentError, CheckpointError

QUICK = StorePatience(all=1.0, each=0.2, first_pause=0.001, longest_pause=0.01)


class Store:
    """A store whose requests can be made to fail."""

    def __init__(self):
        self.kept = tensorstore.KvStore.open({"driver": "memory"}).result()
        self.problems: list[Exception] = []
        self.asked: list[str] = []

    def _ask(self, name, *args, **kwargs):
        self.asked.append(name)
        if self.problems:
            raise self.problems.pop()
        return getattr(self.kept, name)(*args, **kwargs)

    def read(self, *args, **kwargs):
        return self._ask("read", *args, **kwargs)

    def write(self, *args, **kwargs):
        return self._ask("write", *args, **kwargs)

    def list(self, *args, **kwargs):
        """In another order than the alphabet's, and with more than was asked for."""

        class Backwards:
            def __init__(self, found):
                self.found = found

            def result(self, timeout):
                return list(reversed(self.found.result(timeout=timeout)))

        return Backwards(self._ask("list"))


@pytest.fixture
def store(monkeypatch):
    made = Store()
    monkeypatch.setattr(places, "_opened", lambda *_: made)
    return made


@pytest.fixture
def folder(store):
    return StorePath("s3://bucket/run", QUICK)


@pytest.mark.parametrize("given", ["gs://b/a/b", "s3://b/a//b/"])
def test_a_url_is_a_place_in_a_store(given):
    place = absolute(given)
    assert isinstance(place, StorePath)
    assert str(place / "c") == f"{given[:2]}://b/a/b/c"
    assert (place.name, str(place.parent)) == ("b", f"{given[:2]}://b/a")


@pytest.mark.parametrize("given", ["az://b/a", "http://b/a", "s3://", "gs:///", "s3://b/../a", 3, b"s3://b/a"])
def test_what_is_no_directory_is_refused(given):
    with pytest.raises(ArgumentError, match=r"A directory is .*got"):
        absolute(given)


def test_a_training_in_a_store(store, folder):
    w = rx.Variable(jnp.zeros(4))
    with rx.CheckpointManager(folder, max_to_keep=2, objects={"w": w}) as manager:
        for step in (1, 2, 3):
            w.assign(jnp.full(4, float(step)))
            manager.save(step)
    assert manager.all_steps() == [2, 3]
    assert rx.latest_checkpoint(folder) == "s3://bucket/run/00000003"
    w.assign(jnp.zeros(4))
    assert rx.CheckpointManager(folder, objects={"w": w}).restore_or_initialize() == 3
    np.testing.assert_array_equal(w, [3.0] * 4)
    with pytest.raises(CheckpointError, match="exists already"):
        rx.Checkpoint(w=w).write(folder / "00000003")


def test_the_highest_complete_version_counts(folder):
    for number, data in ((1, b"old"), (2, b"new"), (3, b"half")):
        version = staging(folder / "c", f"{number:06d}-0123abcd")
        version.write("data", data)
        if number < 3:
            (version.place / places.MARKER).write_bytes(b"{}")
    assert (place_of(folder / "c") / "data").read_bytes() == b"new"
    assert complete_in(folder) == {"c": folder / "c"}


def test_what_others_have_left_is_deleted_by_a_later_save(folder):
    for number in (1, 2, 4):
        staging(folder / "c", f"{number:06d}-0123abcd").write("data", b"half")
    (folder / "notes.txt").write_bytes(b"mine")
    version = staging(folder / "c", "000003-0123abcd")
    version.write("data", b"whole")
    version.commit(b"{}")
    # The fourth may be another process's, which is at work.
    left = {"c/000003-0123abcd/data", f"c/000003-0123abcd/{places.MARKER}", "c/000004-0123abcd/data"}
    assert set(folder.names()) == {*left, "notes.txt"}


def test_remains_of_killed_processes_are_found(folder):
    half = staging(folder / "a", "000001-0123abcd")
    half.write("data", b"half")
    for number in (1, 2):
        version = staging(folder / "b", f"{number:06d}-0123abcd")
        version.write("data", b"whole")
        (version.place / places.MARKER).write_bytes(b"{}")
    (folder / "notes.txt").write_bytes(b"mine")
    assert list(map(str, clean(folder))) == ["s3://bucket/run/a", "s3://bucket/run/b"]
    kept = {"notes.txt", "b/000002-0123abcd/data", f"b/000002-0123abcd/{places.MARKER}"}
    assert set(folder.names()) == kept
    assert list(clean(folder)) == []


def test_a_request_that_fails_is_made_again(store, folder):
    store.problems = [ValueError("UNAVAILABLE: 503"), ConnectionError("reset"), ValueError("DEADLINE_EXCEEDED")]
    (folder / "file").write_bytes(b"there")
    assert store.asked == ["write"] * 4
    assert (folder / "file").read_bytes() == b"there"


def test_a_request_that_is_refused_for_good_is_not(store, folder):
    store.problems = [ValueError("PERMISSION_DENIED: no credentials")]
    with pytest.raises(StoreError, match=r"s3://bucket/run/file could not be written: PERMISSION_DENIED"):
        (folder / "file").write_bytes(b"there")
    assert store.asked == ["write"]


def test_a_store_that_never_answers_ends_the_patience(store, folder):
    store.problems = [ValueError("UNAVAILABLE: 503")] * 10_000
    with pytest.raises(StoreError, match=r"could not be read for 1 s; the last time: UNAVAILABLE"):
        (folder / "file").read_bytes()


def test_a_save_that_fails_leaves_the_one_before_and_no_parts(store, folder, monkeypatch):
    w = rx.Variable(jnp.zeros(4))
    manager = rx.CheckpointManager(folder, objects={"w": w}, async_=False)
    manager.save(1)
    before = folder.names()
    own = StorePath.write_bytes

    def full(self, data):
        if self.name == places.MARKER:
            raise StoreError("no room")
        own(self, data)

    monkeypatch.setattr(StorePath, "write_bytes", full)
    with pytest.raises(CheckpointError, match="no room"):
        manager.save(2)
    assert folder.names() == before
    assert manager.latest_step() == 1


def test_a_copy_of_a_store_on_a_disk_is_read_and_the_other_way_round(store, folder, tmp_path):
    w = rx.Variable(jnp.arange(4.0))
    rx.Checkpoint(w=w).write(folder / "c")
    for name in folder.names():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    rx.Checkpoint(w=w).restore(tmp_path / "c")
    rx.Checkpoint(w=w).write(tmp_path / "d")
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            (folder / "d" / path.relative_to(tmp_path / "d").as_posix()).write_bytes(path.read_bytes())
    w.assign(jnp.zeros(4))
    rx.Checkpoint(w=w).restore(folder / "d")
    np.testing.assert_array_equal(w, np.arange(4.0))


def test_an_exported_function_in_a_store(store, folder):
    w = rx.Variable(2.0)
    path = rx.export(lambda x: w * x, folder / "twice", jnp.zeros(2))
    assert rx.load_export(path)(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert json.loads((place_of(path, "manifest.json") / "manifest.json").read_bytes())["variables"]
