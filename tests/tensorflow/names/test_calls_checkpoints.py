"""TensorFlow's keywords of checkpoints do here what they do there."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.tensorflow.names.calls import tries

_K = "tf.train.Checkpoint"
_M = "tf.train.CheckpointManager"


class Holder:
    """A root, whose attributes are saved."""

    def __init__(self) -> None:
        self.w = rx.Variable([1.0, 2.0])


@tries(_K, *(f"{_K}.{name}" for name in ("write", "restore", "save", "read")), "tf.train.latest_checkpoint")
def test_checkpoints(call, tmp_path):
    root, step = Holder(), rx.Variable(0)
    checkpoint = call(_K, rx.Checkpoint, root=root, step=step)

    def restored(name, path):
        root.w.assign([0.0, 0.0])
        status = call(f"{_K}.{name}", getattr(checkpoint, name), save_path=path, options=None)
        status.assert_consumed()
        return root.w.numpy().tolist()

    written = call(f"{_K}.write", checkpoint.write, file_prefix=tmp_path / "written", options=None)
    assert restored("read", written) == [1.0, 2.0]
    assert restored("restore", str(written)) == [1.0, 2.0]
    root.w.assign([3.0, 4.0])
    saved = call(f"{_K}.save", checkpoint.save, file_prefix=str(tmp_path / "ckpt"), options=None)
    assert int(checkpoint.save_counter) == 1
    latest = call("tf.train.latest_checkpoint", rx.latest_checkpoint, checkpoint_dir=tmp_path, latest_filename=None)
    assert str(latest) == str(saved)
    assert restored("restore", latest) == [3.0, 4.0]
    # As it would be written without names.
    assert rx.latest_checkpoint(tmp_path, None) == latest
    checkpoint.restore(saved, None)
    with pytest.raises(ArgumentError, match="`options`"):
        checkpoint.restore(saved, object())
    with pytest.raises(ArgumentError, match=r"`latest_filename`.*looked into"):
        rx.latest_checkpoint(tmp_path, "other")


@tries(_M, f"{_M}.save", f"{_M}.restore_or_initialize")
def test_managers(call, tmp_path):
    variable, counter, made = rx.Variable(1.0), rx.Variable(0), []
    checkpoint = rx.Checkpoint(v=variable, counter=counter)

    def manager(init_fn):
        return call(
            _M,
            rx.CheckpointManager,
            checkpoint=checkpoint,
            directory=tmp_path,
            max_to_keep=1,
            keep_checkpoint_every_n_hours=None,
            checkpoint_name="model",
            step_counter=counter,
            checkpoint_interval=2,
            init_fn=init_fn,
            last_checkpoint_step=None,
        )

    def initialize():
        made.append(True)
        variable.assign(5.0)

    with manager(initialize) as first:
        assert call(f"{_M}.restore_or_initialize", first.restore_or_initialize) is None
        assert (made, float(variable)) == ([True], 5.0)
        counter.assign(2)
        saving = {"checkpoint_number": 2, "check_interval": True, "options": None}
        assert call(f"{_M}.save", first.save, **saving)
        counter.assign(3)
        assert not first.save(3, True)  # Not at its interval.
        assert first.save(3, False, None)
        first.wait_until_finished()
        assert (first.checkpoint_interval, len(first.checkpoints)) == (2, 1)
        assert first.latest_checkpoint == first.checkpoints[-1]
        assert "model" in str(first.latest_checkpoint)
    variable.assign(np.float32(0.0))
    with manager(initialize) as again:
        assert call(f"{_M}.restore_or_initialize", again.restore_or_initialize) is not None
    assert (float(variable), int(counter), made) == (5.0, 3, [True])
    by_place = rx.CheckpointManager(checkpoint, tmp_path, 1)
    assert by_place.checkpoint is checkpoint
    by_place.close()
