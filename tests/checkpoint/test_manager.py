"""`rx.CheckpointManager`: saving in the background, and what survives."""

from __future__ import annotations

import shutil
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import background, checkpoint_folder, damaged_files, read_arrays, writing
from replicax.errors import ArgumentError, CheckpointError
from tests.soak.checkpoint_kills import soak


def test_the_newest_are_kept(tmp_path: Path):
    w = rx.Variable(0.0)
    with rx.CheckpointManager(tmp_path / "c", max_to_keep=2, save_interval_steps=2, objects={"w": w}) as kept:
        for step in range(1, 8):
            w.assign(float(step))
            assert kept.save(step) == (str(tmp_path / "c" / f"{step:08d}") if step % 2 == 0 else None)
        assert kept.save(7, force=True)
        assert not kept.save(7, force=True)
    assert kept.all_steps() == [6, 7]
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"00000006", "00000007"}
    kept.restore()
    assert w.numpy() == 7.0
    kept.restore(6)
    assert w.numpy() == 6.0


def test_save_returns_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go = threading.Event()
    original = writing.save_files

    def slow(*args: object) -> object:
        assert go.wait(30)
        return original(*args)

    monkeypatch.setattr(writing, "save_files", slow)
    w = rx.Variable([1.0, 2.0])
    kept = rx.CheckpointManager(tmp_path, objects={"w": w})
    assert kept.save(1)
    w.assign([0.0, 0.0])
    assert kept.latest_step() is None
    go.set()
    kept.wait_until_finished()
    assert kept.latest_step() == 1
    kept.restore()
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("strategy", ["mirrored", "sharded"])
def test_training_may_overwrite_its_buffers_at_once(tmp_path: Path, strategy: str):
    """Each step donates the state's buffers to the next one, while they are being saved."""
    devices = [f"cpu:{i}" for i in range(4)]
    made = rx.MirroredStrategy(devices) if strategy == "mirrored" else rx.FullyShardedStrategy(devices, min_size=1)
    with made.scope():
        w = rx.Variable(np.zeros((512, 256), np.float32))

    @rx.function
    def step():
        w.assign_add(jnp.ones((512, 256)))

    with rx.CheckpointManager(tmp_path, max_to_keep=None, objects={"w": w}) as kept:
        for number in range(1, 11):
            step()
            kept.save(number)
            for _ in range(3):
                step()
    for number in range(1, 11):
        kept.restore(number)
        assert set(w.numpy().flat) == {4.0 * number - 3}


def test_donated_arrays_are_copied(tmp_path: Path):
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros((256, 256))
    with rx.CheckpointManager(tmp_path, objects={"x": x, "n": np.zeros(3)}) as kept:
        kept.save(1, x=x)
        for _ in range(20):
            x = add(x)
        del kept.checkpoint.objects["x"]
        kept.checkpoint.objects["x"] = x
        kept.checkpoint.objects["n"][:] = 5
    assert kept.restore()["x"].max() == 0
    assert kept.checkpoint.objects["n"].max() == 0


def test_pinned_host_memory_can_be_saved(tmp_path: Path):
    """Where copies of an accelerator's arrays are put; the CPU has such a memory too."""
    w = jnp.arange(8.0)
    pinned = jax.device_put(w, w.sharding.with_memory_kind("pinned_host"))
    path = writing.write_arrays(tmp_path / "c", {"w": pinned})
    np.testing.assert_array_equal(read_arrays(path, {"w": jax.ShapeDtypeStruct((8,), w.dtype)})["w"], w)


def test_a_full_disk_raises_in_the_training_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    w = rx.Variable(1.0)
    kept = rx.CheckpointManager(tmp_path, max_to_keep=1, objects={"w": w})
    kept.save(1)
    kept.wait_until_finished()
    original = writing.save_files

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "save_files", full)
    kept.save(2)
    background.wait_for(tmp_path)
    with pytest.raises(CheckpointError, match="No space left"):
        kept.save(3)
    kept.save(3)
    with pytest.raises(CheckpointError, match="No space left"):
        kept.wait_until_finished()
    assert kept.all_steps() == [1]
    monkeypatch.setattr(writing, "save_files", original)
    kept.save(3)
    kept.close()
    assert kept.all_steps() == [3]


def test_one_that_replaces_another_is_found_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a fresh process would look for it before each rename and each deletion."""
    w = rx.Variable(1.0)
    looked: list[float] = []

    def look() -> None:
        found = rx.Variable(0.0)
        other = rx.CheckpointManager(tmp_path, objects={"w": found})
        assert other.all_steps() == [1]
        assert rx.latest_checkpoint(tmp_path) is not None
        assert other.restore_or_initialize() == 1
        assert damaged_files(other.path(1)) == {}
        looked.append(float(found))

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            look()
            return call(*args, **kwargs)

        return wrapped

    rx.CheckpointManager(tmp_path, async_=False, objects={"w": w}).save(1)
    w.assign(2.0)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", looking(Path.rename))
        patched.setattr(shutil, "rmtree", looking(shutil.rmtree))
        again = rx.CheckpointManager(tmp_path, async_=False, objects={"w": w})
        again.restore(1)
        w.assign(2.0)
        again.save(1)
    look()
    assert looked == [1.0, 1.0, 2.0, 2.0, 2.0]  # Two renames, then the old one's, and its deletion.
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_a_kill_while_one_is_replaced_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    w = rx.Variable(1.0)
    rx.CheckpointManager(tmp_path, async_=False, objects={"w": w}).save(1)
    (tmp_path / "00000001").rename(tmp_path / ".00000001.abcd0123.replaced")
    w.assign(2.0)
    kept = rx.CheckpointManager(tmp_path, async_=False, objects={"w": w})
    assert kept.restore_or_initialize() == 1
    assert float(w) == 1.0
    kept.save(2)
    assert kept.all_steps() == [1, 2]
    kept.save(1, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"00000001", "00000002"}


def test_the_old_one_is_deleted_when_the_new_one_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[int]] = []
    kept = rx.CheckpointManager(tmp_path, max_to_keep=1, objects={"w": rx.Variable(1.0)})
    original = checkpoint_folder.delete

    def watched(path: Path) -> None:
        seen.append(kept.all_steps())
        original(path)

    monkeypatch.setattr(checkpoint_folder, "delete", watched)
    with kept:
        for step in (1, 2, 3):
            kept.save(step)
    assert seen == [[1, 2], [2, 3]]


def test_what_a_kill_left_is_no_checkpoint_and_is_cleaned_up(tmp_path: Path):
    (tmp_path / ".00000009.abcd.unfinished").mkdir()
    (tmp_path / "00000008").mkdir()
    with rx.CheckpointManager(tmp_path, objects={"w": rx.Variable(1.0)}) as kept:
        assert kept.latest_step() is None
        assert kept.restore_or_initialize() is None
        with pytest.raises(CheckpointError, match="no complete checkpoint in"):
            kept.restore()
        kept.save(8)
    assert [path.name for path in tmp_path.iterdir()] == ["00000008"]
    assert damaged_files(kept.path(8)) == {}


def test_going_back_replaces_later_steps(tmp_path: Path):
    w = rx.Variable(1.0)
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as first:
        first.save(1)
        first.save(2)
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as second:
        second.restore(1)
        w.assign(9.0)
        assert second.save(2)
    w.assign(0.0)
    second.restore(2)
    assert w.numpy() == 9.0


@pytest.mark.parametrize("by_path", [False, True])
def test_a_training_that_goes_back_saves_its_steps_anew(tmp_path: Path, by_path: bool):
    w = rx.Variable(0.0)
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as kept:
        for step in (5, 10):
            w.assign(step)
            kept.save(step)
        kept.wait_until_finished()
        for step in (5, 10, 5):
            kept.checkpoint.restore(kept.path(step)) if by_path else kept.restore(step)
            assert kept.latest_step() == 10  # Whoever only looks has not gone back.
        with pytest.warns(UserWarning, match=r"Step 10 is in .* gone back to step 5. Step 6, .* is newer"):
            assert kept.save(6)
        kept.wait_until_finished()
        assert kept.latest_step() == 6
        w.assign(-10.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert kept.save(10)
            assert kept.save(10) is None
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as again:
        assert again.restore_or_initialize() == 10
    assert w.numpy() == -10.0


def test_a_step_that_is_not_saved_since_later_ones_were_is_told(tmp_path: Path):
    with rx.CheckpointManager(tmp_path, objects={"w": rx.Variable(0.0)}) as kept:
        for step in (1, 2):
            kept.save(step)
        assert kept.save(2) is None
        with pytest.warns(UserWarning, match="Step 1 is not saved: this manager has saved it before, and step 2 since"):
            assert kept.save(1) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_to_keep": 0},
        {"save_interval_steps": True},
        {"timeout": -1},
        {"timeout": "60"},
        {"objects": None},
        {"checkpoint": 1, "objects": None},
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict):
    with pytest.raises(ArgumentError):
        rx.CheckpointManager(tmp_path, **{"objects": {"w": rx.Variable(1.0)}, **arguments})


def test_a_failure_beside_another_error_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing, "save_files", lambda *args: time.sleep(0.05) or 1 / 0)

    def training() -> None:
        with rx.CheckpointManager(tmp_path, objects={"w": rx.Variable(1.0)}) as kept:
            kept.save(1)
            raise KeyError("training")

    with pytest.raises(KeyError) as caught:
        training()
    assert "was not saved either" in caught.value.__notes__[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_kills_during_saves_leave_complete_checkpoints():
    result = soak(kills=5, seed=3)
    assert result["checkpoint_kills"] == 5
    assert result["checkpoint_unreadable"] == 0


def test_replacing_what_another_manager_wrote_warns(tmp_path: Path):
    one, other = rx.Variable(1.0), rx.Variable(2.0)
    with (
        rx.CheckpointManager(tmp_path / "c", objects={"w": one}) as first,
        rx.CheckpointManager(tmp_path / "c", objects={"w": other}) as second,
    ):
        first.save(1)
        first.wait_until_finished()
        with pytest.warns(UserWarning, match=f"Step 1 is in {tmp_path / 'c'} already"):
            second.save(1)
        second.wait_until_finished()
        second.save(2)
        second.wait_until_finished()
        with pytest.warns(UserWarning, match="Step 2"):
            first.save(2)


def test_checkpoints_of_an_earlier_training_stay_and_are_not_the_newest(tmp_path: Path):
    """A folder with higher numbers: what this training has saved is what it restores, and nothing else is deleted."""
    w = rx.Variable(1.0)
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as before:
        for _ in range(5):
            before.save()
    w.assign(2.0)
    with rx.CheckpointManager(tmp_path, objects={"w": w}) as manager:
        with pytest.warns(UserWarning, match=r"Step 5 is in .*step 1 is being saved.*restore_or_initialize"):
            manager.save()
        manager.save()
        manager.wait_until_finished()
        assert manager.latest_step() == 2
        assert manager.latest_checkpoint == manager.checkpoints[-1] == str(tmp_path / "00000002")
        assert manager.all_steps() == [1, 2, 3, 4, 5]
        w.assign(3.0)
        manager.restore()
        assert float(w.value) == 2.0
        with pytest.warns(UserWarning, match="Step 3 is in"):
            manager.save(3)
        manager.save(6)
        manager.wait_until_finished()
        assert manager.latest_step() == 6


@pytest.mark.parametrize("step", [None, 1])
def test_going_on_from_a_checkpoint_may_replace_what_came_after_it(tmp_path: Path, step: int | None):
    w = rx.Variable(0.0)
    with rx.CheckpointManager(tmp_path / "c", objects={"w": w}) as before:
        for number in (1, 2):
            before.save(number)
            before.wait_until_finished()
    with warnings.catch_warnings(), rx.CheckpointManager(tmp_path / "c", objects={"w": w}) as again:
        warnings.simplefilter("error")
        again.restore_or_initialize() if step is None else again.restore(step)
        assert again.save(2)
        assert again.save(3)


@pytest.mark.parametrize("directory", ["".join, 3, b"c"])
def test_a_directory_is_a_path(directory: object):
    w = rx.Variable(0.0)
    checkpoint = rx.Checkpoint(w=w)
    for call in (checkpoint.write, checkpoint.restore, lambda d: rx.CheckpointManager(d, checkpoint=checkpoint)):
        with pytest.raises(ArgumentError, match="a string or a pathlib"):
            call(directory)


# As TensorFlow's manager is called.


def test_the_call_of_tensorflow(tmp_path: Path):
    w, step = rx.Variable(0.0), rx.Variable(0)
    checkpoint = rx.Checkpoint(w=w, step=step)
    kept = rx.CheckpointManager(checkpoint, tmp_path / "c", 2, checkpoint_name="ckpt")
    assert kept.latest_checkpoint is None
    for number in range(1, 4):
        step.assign_add(1)
        assert kept.save() == str(tmp_path / "c" / f"ckpt-{number}")
        assert kept.latest_checkpoint == str(tmp_path / "c" / f"ckpt-{number}")
    assert kept.checkpoints == [str(tmp_path / "c" / name) for name in ("ckpt-2", "ckpt-3")]
    assert kept.save(checkpoint_number=step, check_interval=False) is None  # it has saved 3 before
    step.assign(9)
    assert kept.save(step) == str(tmp_path / "c" / "ckpt-9")
    assert kept.save(checkpoint_number=np.int64(12)) == str(tmp_path / "c" / "ckpt-12")
    assert rx.latest_checkpoint(kept.directory) == kept.latest_checkpoint
    step.assign(0)
    again = rx.CheckpointManager(
        rx.Checkpoint(w=w, step=step), directory=tmp_path / "c", max_to_keep=None, checkpoint_name="ckpt"
    )
    assert again.checkpoint.restore(again.latest_checkpoint).assert_consumed() == {}
    assert step.numpy() == 9
    assert again.checkpoint.save_counter.numpy() == 5
    with pytest.raises(ArgumentError, match="name for `step`"):
        again.save(step=1, checkpoint_number=1)
    with pytest.raises(ArgumentError, match="has `options`, which is not in replicax"):
        again.save(options=object())


@pytest.mark.parametrize("number", [1.5, -1, True, "1", [1]])
def test_a_number_is_a_whole_one(tmp_path: Path, number: object):
    with pytest.raises(ArgumentError, match="`step` is a whole number"):
        rx.CheckpointManager(tmp_path, objects={"n": 1}).save(number)


def test_an_interval_counts_what_a_counter_has_grown_by(tmp_path: Path):
    step = rx.Variable(3)
    kept = rx.CheckpointManager(
        rx.Checkpoint(step=step), tmp_path, step_counter=step, checkpoint_interval=4, max_to_keep=None
    )
    assert kept.checkpoint_interval == 4
    saved = []
    for _ in range(10):
        if kept.save() is not None:
            saved.append(int(step.numpy()))
        step.assign_add(1)
    assert saved == [3, 7, 11]
    assert kept.save(check_interval=False)
    assert kept.save() is None
    again = rx.CheckpointManager(rx.Checkpoint(step=step), tmp_path, step_counter=step, checkpoint_interval=4)
    again.restore_or_initialize()
    assert step.numpy() == 13
    assert again.save() is None
    step.assign(17)
    assert again.save()


def test_without_a_checkpoint_the_training_is_initialized(tmp_path: Path):
    w, calls = rx.Variable(0.0), []
    kept = rx.CheckpointManager(rx.Checkpoint(w=w), tmp_path, init_fn=lambda: calls.append(1))
    assert kept.restore_or_initialize() is None
    assert calls == [1]
    kept.save(1)
    assert kept.restore_or_initialize() == 1
    assert calls == [1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"checkpoint_interval": 2}, "needs one"),
        ({"checkpoint_interval": 2, "step_counter": 1, "save_interval_steps": 2}, "excludes"),
        ({"checkpoint_name": "a/b"}, "begin with '.'"),
        ({"checkpoint_name": ".a"}, "begin with '.'"),
        ({"init_fn": 3}, "`init_fn` is a function"),
        ({"directory": "twice"}, "given twice"),
        ({"max_to_keep": 1.5}, "`max_to_keep`"),
    ],
)
def test_bad_arguments_as_of_tensorflow(tmp_path: Path, arguments: dict, says: str):
    with pytest.raises(ArgumentError, match=says):
        rx.CheckpointManager(rx.Checkpoint(n=1), tmp_path, **arguments)


def test_where_is_the_directory(tmp_path: Path):
    with pytest.raises(ArgumentError, match="`directory` is missing"):
        rx.CheckpointManager(rx.Checkpoint(n=1))
    with pytest.raises(ArgumentError, match="all else by keyword"):
        rx.CheckpointManager(tmp_path, 3)


def test_a_failure_that_nobody_waits_for_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(writing, "save_files", lambda *args: 1 / 0)
    kept = rx.CheckpointManager(tmp_path, objects={"w": rx.Variable(1.0)})
    kept.save(1)
    background.wait_for(tmp_path)
    assert "division by zero" in caplog.text
    with pytest.raises(CheckpointError, match="division by zero"):  # Else this process would end with it.
        kept.close()


def test_what_was_cut_short_is_said_at_the_next_save(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / ".00000003.0123abcd.unfinished").mkdir()
    rx.CheckpointManager(tmp_path, async_=False, objects={"w": rx.Variable(1.0)}).save(4)
    assert f"while it wrote or deleted {tmp_path / '00000003'}" in caplog.text


def test_a_save_of_the_arrays_of_the_last_one_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    weights = jnp.zeros(3)
    with rx.CheckpointManager(tmp_path, objects={"weights": weights}) as manager:
        manager.save(1)
        manager.save(2, weights=weights + 1)
        assert not caplog.records
        manager.save(3)  # Those of step 2, whatever the training has made of them.
    assert "save(step, weights=...)" in caplog.text


def test_a_manager_that_keeps_all_has_nothing_to_note(tmp_path):
    w = rx.Variable(0.0)
    with rx.CheckpointManager(tmp_path, max_to_keep=None, keep_checkpoint_every_n_hours=1, objects={"w": w}) as manager:
        for step in range(3):
            manager.save(step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000", "00000001", "00000002"]
