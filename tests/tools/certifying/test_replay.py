"""`rx.replay`: a broken device, a program that differs between replicas, and a fault that has passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from typer.testing import CliRunner

import replicax as rx
from replicax.cli.app import app
from replicax.errors import ArgumentError, DeviceError, ReplicaDriftError
from replicax.keras.kept_steps import KeptFile
from replicax.tools.certifying import replaying
from tests.strategies.flipping import flip


def trained(strategy, folder, *callbacks, optimizer="adam", every=3, rows=44):
    """Trains until copies differ; returns the file that is left."""
    keras = pytest.importorskip("keras")
    keras.utils.clear_session()  # Names of models and layers are counted.
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
        )
        model.compile(optimizer, "mse")
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    digest = rx.keras.ReplicaDigest(every=every, keep=folder)
    with pytest.raises(ReplicaDriftError) as found:
        model.fit(x, x, batch_size=8, shuffle=False, verbose=0, callbacks=[*callbacks, digest])
    (file,) = folder.iterdir()
    assert f"Broken chip or broken program? replicax certify --replay {file}" in found.value.__notes__
    return file


def flips_once(step, device):
    keras = pytest.importorskip("keras")

    class Flips(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == step:
                flip(self.model.layers[0].kernel, device, 5)

    return Flips()


def broken(monkeypatch, bad, is_bad=lambda run: True):
    """Lets a device flip a bit of the last variable in each step that is replayed."""
    made, runs = replaying._Steps.made, iter(range(100))

    def made_wrong(steps, step, state):
        found = made(steps, step, state)
        if is_bad(next(runs)):
            number, array = next((number, array) for number, array in found.items() if array.ndim == 2)
            parts = {shard.device: np.array(shard.data) for shard in array.addressable_shards}
            if bad in parts:
                parts[bad].reshape(-1).view(np.uint8)[0] ^= 1
            placed = [jax.device_put(part, device) for device, part in parts.items()]
            found[number] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)
        return found

    monkeypatch.setattr(replaying._Steps, "made", made_wrong)


def different_by_replica(strategy):
    keras = pytest.importorskip("keras")

    def changed(gradient):
        last = strategy.num_replicas_in_sync - 1
        return jax.shard_map(
            lambda whole: whole + 1e-3 * (jax.lax.axis_index("replica") == last),
            mesh=strategy.mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(gradient)

    class Different(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(changed(jnp.asarray(gradient)), variable, learning_rate)

    return Different(1e-2)


@pytest.fixture
def file(mirrored, tmp_path):
    """Steps 4 to 6, the last with a smaller batch; after step 4 a bit of replica 2 flipped."""
    return trained(mirrored(4), tmp_path, flips_once(3, 2))


def test_a_fault_that_has_passed_leaves_the_steps_since_the_last_comparison(file):
    kept = KeptFile.read(file)
    assert file.name == "drift-after-step-6.npz"
    assert (kept.first, len(kept.steps), [len(step.batch[0]) for step in kept.steps]) == (4, 3, [8, 8, 4])
    assert kept.replicas == (2,)
    found = rx.replay(file)
    assert (found.verdict, found.devices, len(found.runs)) == ("equal", (), 4)
    assert found.runs[0].devices == ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    assert found.runs[-1].devices == ("cpu:1", "cpu:2", "cpu:3", "cpu:0")
    assert "No copy had these bits in the training: the fault went into sums" in str(found)


def test_a_passing_fault_of_the_last_step_names_its_device(mirrored, tmp_path):
    found = rx.replay(trained(mirrored(2), tmp_path, flips_once(5, 1)), times=1)
    assert found.verdict == "equal"
    assert "In the training, cpu:1 had other bits than now" in str(found)


def test_the_bits_are_those_of_the_training(file, mirrored, tmp_path_factory):
    """The same steps without a fault end with the digests that a replay finds."""
    (run, *_) = rx.replay(file, times=1).runs
    other = KeptFile.read(trained(mirrored(4), tmp_path_factory.mktemp("other"), flips_once(5, 0)))
    common = other.digests.keys() & run.digests.keys()
    assert len(common) > 10
    assert all(other.digests[name][1:] == run.digests[name][1:] for name in common)


def test_a_broken_device_is_named_wherever_it_is(file, monkeypatch):
    broken(monkeypatch, jax.devices()[3])
    found = rx.replay(file)
    assert (found.verdict, found.devices) == ("device", ("cpu:3",))
    assert "cpu:3 gives other bits in step 4, and other devices as the same replica do not: the device" in str(found)
    assert [run.replicas for run in found.runs] == [(3,), (3,), (2,), (2,)]
    assert all(run.step == 4 and run.variables for run in found.runs)
    without = rx.replay(file, devices=["cpu:0", "cpu:1", "cpu:2", "cpu:5"])
    assert without.verdict == "equal"


def test_a_device_that_fails_now_and_then_is_not_blamed_for_once(file, monkeypatch):
    broken(monkeypatch, jax.devices()[3], lambda number: number == 4)  # The second step of the second run.
    found = rx.replay(file)
    assert (found.verdict, found.devices) == ("unknown", ())
    assert "Copies differ in 1 of 4 runs, in step 5, on cpu:3" in str(found)
    monkeypatch.undo()
    broken(monkeypatch, jax.devices()[3], lambda number: number == 0)
    assert rx.replay(file, times=1).verdict == "unknown"


def test_of_two_devices_that_keep_their_bits_either_may_be_broken(mirrored, tmp_path, monkeypatch):
    file = trained(mirrored(2), tmp_path, flips_once(3, 1))
    broken(monkeypatch, jax.devices()[1])
    found = rx.replay(file)
    assert (found.verdict, found.devices) == ("device", ("cpu:0", "cpu:1"))
    assert "Of two it is unknown which" in str(found)
    assert rx.replay(file, devices=["cpu:0", "cpu:2"]).verdict == "equal"


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_program_that_differs_between_replicas(replicas, mirrored, tmp_path):
    strategy = mirrored(replicas)
    file = trained(strategy, tmp_path, optimizer=different_by_replica(strategy))
    found = rx.replay(file)
    assert (found.verdict, found.devices) == ("program", ())
    assert f"Replica {'0, 1' if replicas == 2 else 3} gives other bits in step 1" in str(found)


def test_the_command_says_which_it_is(file, monkeypatch):
    said = CliRunner().invoke(app, ["certify", "--replay", str(file), "--times", "1"])
    assert (said.exit_code, "All copies are equal in 2 runs" in said.stdout) == (0, True), said.output
    broken(monkeypatch, jax.devices()[0])
    said = CliRunner().invoke(app, ["certify", "--replay", str(file)])
    assert (said.exit_code, "cpu:0 gives other bits" in said.stdout) == (1, True), said.output
    assert CliRunner().invoke(app, ["certify", "--replay", str(file), "train.py"]).exit_code == 2
    assert CliRunner().invoke(app, ["certify", "--replay", str(file), "--devices", "cpu:0"]).exit_code == 2
    assert CliRunner().invoke(app, ["certify", "--replay", str(file), "--devices", "abacus"]).exit_code == 2


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_a_process_of_its_own_has_the_devices(file):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-m", "replicax", "certify", "--replay", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "steps 4 to 6 on cpu:1, cpu:2, cpu:3, cpu:0" in done.stderr


def test_bad_files(file, tmp_path):
    for name, raw in (("empty", b""), ("text", b"abc"), ("cut", file.read_bytes()[:-500])):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ArgumentError, match=r"is no file of rx.keras.ReplicaDigest\(keep=FOLDER\), or is damaged"):
            rx.replay(tmp_path / name)
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"value.0") + 200] ^= 1
    (tmp_path / "flipped").write_bytes(raw)
    with pytest.raises(ArgumentError, match="damaged"):
        rx.replay(tmp_path / "flipped")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ArgumentError, match="damaged"):
        rx.replay(tmp_path / "other.npz")
    with np.load(file) as found:
        members = dict(found)
    header = json.loads(members["header"].tobytes()) | {"format": 9}
    np.savez(tmp_path / "newer.npz", **{**members, "header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    with pytest.raises(ArgumentError, match="has the format 9"):
        rx.replay(tmp_path / "newer.npz")
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        rx.replay(tmp_path / "nowhere.npz")


def test_bad_arguments(file):
    with pytest.raises(ArgumentError, match="are a program for 4 devices of platform 'cpu', got"):
        rx.replay(file, devices=["cpu:0"])
    with pytest.raises(DeviceError, match="does not exist"):
        rx.replay(file, devices=["cpu:0", "cpu:1", "cpu:2", "cpu:99"])
    with pytest.raises(ArgumentError, match="`times` is a number of runs"):
        rx.replay(file, times=0)
    with pytest.raises(ArgumentError, match="`keep` is a folder"):
        rx.keras.ReplicaDigest(keep=3)


class _CallsPython:
    def __call__(self, true, predicted):
        jax.debug.callback(lambda: None)
        return jnp.square(true - predicted).mean(-1)


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (lambda: rx.CentralStorageStrategy(["cpu:0", "cpu:1"]), {}, "several programs"),
        (lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"], numbers="bitwise"), {}, "bitwise"),
        (lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]), {"run_eagerly": True}, "runs the model eagerly"),
        (lambda: rx.OneDeviceStrategy("cpu:0"), {}, "has one device"),
        (lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]), {"loss": _CallsPython()}, "JAX cannot export it"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused_before_they_are_made(make, settings, words, tmp_path):
    keras = pytest.importorskip("keras")
    with make().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(**{"optimizer": "sgd", "loss": "mse", **settings})
    with pytest.raises(ArgumentError, match=words):
        model.fit(
            np.ones((8, 3)), np.ones((8, 2)), verbose=0, callbacks=[rx.keras.ReplicaDigest(every=1, keep=tmp_path)]
        )


def test_a_step_of_ones_own_may_use_what_the_model_does_not_have(mirrored, tmp_path):
    keras = pytest.importorskip("keras")
    strategy = mirrored(2)
    with strategy.scope():
        seen, scale = rx.Variable(0.0, name="seen"), rx.Variable(2.0, name="scale")

        class Scaled(keras.optimizers.SGD):
            def update_step(self, gradient, variable, learning_rate):
                seen.assign_add(1.0)
                super().update_step(scale.value * jnp.asarray(gradient), variable, learning_rate)

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(Scaled(), "mse")
    digest = rx.keras.ReplicaDigest(every=3, keep=tmp_path)
    with pytest.raises(ReplicaDriftError):
        model.fit(np.ones((48, 3)), np.ones((48, 2)), 8, verbose=0, callbacks=[flips_once(5, 1), digest])
    (file,) = tmp_path.iterdir()
    kept = KeptFile.read(file)
    assert (kept.first, len(kept.steps)) == (4, 3)
    values = dict(zip(kept.names, kept.values, strict=True))
    assert (values["seen"], values["scale"]) == (6.0, 2.0)  # after three steps of two variables
    found = rx.replay(file, times=1)
    assert (found.verdict, "cpu:1 had other bits than now" in str(found)) == ("equal", True)


def test_an_equal_training_keeps_no_more_than_since_the_last_comparison(mirrored, tmp_path):
    keras = pytest.importorskip("keras")
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    most = []

    class Counts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            most.append(len(self.model._replicax.kept._steps))

    digest = rx.keras.ReplicaDigest(every=3, keep=tmp_path / "kept")
    model.fit(np.ones((80, 3)), np.ones((80, 2)), batch_size=8, verbose=0, callbacks=[digest, Counts()])
    assert (max(most), model._replicax.kept) == (3, None)
    assert not list((tmp_path / "kept").iterdir())
