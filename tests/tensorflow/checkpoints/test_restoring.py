from __future__ import annotations

import logging
import shutil
from pathlib import Path

import h5py
import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, CheckpointError, UnmatchedError
from replicax.tensorflow.checkpoints import restoring
from tests.migrate import restored, zoo
from tests.tensorflow.checkpoints.small import dense_model, numbers, write_graph

ADAM = "opt_tf_keras_legacy_adam"


def values_of(objects):
    return [np.asarray(variable) for each in objects.values() for variable in each.variables]


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    "name",
    ["tf_keras_conv", "keras215_gru", "tf_keras_attention", "keras3_lstm", "tf_keras_legacy_h5_nested",
     "tf_keras_h5_subclassed", "saved_model_keras", "tf_keras_shared", "estimator_model_fn", "saver_partitioned"],
)  # fmt: skip
def test_a_restored_model_computes_what_it_computed_in_tensorflow(name, tmp_path):
    with rx.ledger.recording(tmp_path):
        objects = restored.restored(name)
    assert '"restored": true' in (tmp_path / "ledger" / "worker-0.jsonl").read_text()
    assert restored.output_difference(name, objects["model"]) < 1e-5
    with np.load(restored.FIXTURES / name / "model.npz") as stored:
        weights = [stored[key] for key in stored.files if key.startswith("weight")]
    ours = objects["model"].get_weights()
    assert sorted(w.tobytes() for w in weights) == sorted(w.tobytes() for w in ours)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("name", "count"), [(ADAM, 3), ("opt_tf_keras_new_rmsprop_centered", 1), ("saver_momentum", 2)]
)
def test_a_training_goes_on_as_in_tensorflow(name, count, mirrored):
    assert restored.resumed(name, mirrored(count)) < 1e-5


@pytest.mark.parametrize("kind", ["fully_sharded", "layout"])
@pytest.mark.parametrize("whole_bytes", [0, 1 << 24])
def test_sharded_variables_keep_their_layout_and_are_read_in_parts(kind, whole_bytes, monkeypatch):
    monkeypatch.setattr(restoring, "_WHOLE_BYTES", whole_bytes)
    devices = np.array(jax.devices()[:4])
    if kind == "fully_sharded":
        strategy = rx.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=1)
    else:
        mesh = jax.sharding.Mesh(devices.reshape(2, 2), ("batch", "model"))
        strategy = rx.LayoutStrategy(mesh, {"kernel": (None, "model")})
    with strategy.scope():
        model = dense_model(8, inputs=8)
        kernel = model.layers[0].kernel
    strategy.run(lambda: keras.ops.sum(kernel))  # Now it lies where the strategy wants it.
    layout = kernel.value.sharding
    assert len({str(shard.index) for shard in kernel.value.addressable_shards}) > 1
    rx.Checkpoint(model=model).restore(write_dense(8))
    assert kernel.value.sharding == layout
    np.testing.assert_array_equal(np.asarray(kernel.value), numbers(8, 8))


@pytest.fixture
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_dense(size):
    kernel, bias = numbers(size, size), numbers(size, start=7)
    where = {"model/layer_with_weights-0/kernel": kernel, "model/layer_with_weights-0/bias": bias}
    return write_graph(Path("dense").absolute(), where)


pytestmark = pytest.mark.usefixtures("_folder")


def test_a_model_that_is_not_built_gets_its_values_when_it_is():
    model = zoo.subclassed(keras)
    status = rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_subclassed"))
    with pytest.raises(UnmatchedError, match="not built"):
        status.assert_consumed()
    assert restored.output_difference("tf_keras_subclassed", model) < 1e-5
    status.assert_consumed()


def test_an_optimizer_that_is_not_built_gets_its_counter_at_once_and_its_slots_later():
    model, optimizer = restored.objects_for(ADAM)["model"], restored.optimizer_for("adam")
    checkpoint = rx.Checkpoint(model=model, optimizer=optimizer)
    checkpoint.restore(restored.path_of(ADAM))
    assert int(optimizer.iterations) == 5
    with pytest.raises(CheckpointError, match="when it is built"):
        checkpoint.write("too_early")
    optimizer.build(model.trainable_variables)
    expected = restored.restored(ADAM)["optimizer"]
    for ours, theirs in zip(optimizer.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    checkpoint.write("later")


def test_fit_goes_on_with_a_model_and_an_optimizer_that_it_builds(mirrored):
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)])
        model.compile(restored.optimizer_for("adam"), "mse")
    rx.Checkpoint(model=model, optimizer=model.optimizer).restore(restored.path_of(ADAM))
    with np.load(restored.FIXTURES / ADAM / "steps.npz") as stored:
        expected = stored["parameters"]
    for i in range(3):
        x, y = zoo.training_batch(zoo.STEPS_BEFORE + i)
        model.fit(x, y, batch_size=8, verbose=0)
        ours = np.concatenate([np.ravel(value) for value in model.get_weights()])
        np.testing.assert_allclose(ours, expected[i], atol=2e-6)


def test_a_model_that_is_built_otherwise_than_it_was_saved_is_refused_then():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(5)])
    rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_mlp"))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"has shape \[3, 5\]"):
            model(np.zeros((1, 4), "float32"))


@pytest.mark.parametrize("place", [-1, -200])
def test_damage_anywhere_leaves_everything_as_it_was(place, tmp_path):
    shutil.copytree(restored.FIXTURES / ADAM, tmp_path / "damaged")
    data = next((tmp_path / "damaged").glob("ckpt.data*"))
    raw = bytearray(data.read_bytes())
    raw[place] ^= 1
    data.write_bytes(raw)
    objects = restored.objects_for(ADAM)
    before = values_of(objects)
    with pytest.raises(CheckpointError, match="checksum"):
        rx.Checkpoint(**objects).restore(tmp_path / "damaged/ckpt")
    for a, b in zip(before, values_of(objects), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_left_on_either_side_is_listed_and_nothing_assigned():
    model = dense_model(3, 2, 2)
    before = model.get_weights()
    with pytest.raises(CheckpointError) as raised:
        rx.Checkpoint(model=model, extra=rx.Variable(0.0)).restore(restored.path_of(ADAM))
    message = str(raised.value)
    assert "'optimizer/iter' int64 []" in message
    assert "'extra' float32 []" in message
    assert "add optimizer=" in message
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_matches_is_restored_if_asked_and_a_warning_lists_the_rest(caplog):
    model = zoo.mlp(keras)
    with caplog.at_level(logging.WARNING):
        status = rx.Checkpoint(model=model).restore(restored.path_of(ADAM), strict=False)
    assert "OPTIMIZER_SLOT/optimizer/m" in caplog.text
    assert restored.output_difference(ADAM, model) < 1e-5
    with pytest.raises(UnmatchedError, match="optimizer/iter"):
        status.assert_consumed()


def test_values_and_variables_of_plain_objects_are_restored_by_their_paths():
    class Linear:
        def __init__(self, n, m):
            self.w, self.b = rx.Variable(np.zeros((n, m), "float32")), rx.Variable(np.zeros(m, "float32"))

    class Net:
        def __init__(self):
            self.layers = [Linear(4, 3), Linear(3, 2)]
            self.extra = {"scale": rx.Variable(0.0), "deep": {"er": [rx.Variable([0, 0]), rx.Variable([0])]}}

    net = Net()
    checkpoint = rx.Checkpoint(net=net, step=0, names={"c.d": rx.Variable(0.0)}, rate=np.float32(0))
    status = checkpoint.restore(restored.path_of("values_nested"), mapping={"names/a/b": None}, strict=False)
    assert status == {"step": 7, "rate": np.float32(0.5)}
    assert net.extra["deep"]["er"][0].numpy().tolist() == [1, 2]
    assert int(checkpoint.save_counter.numpy()) == 1


def test_the_latest_checkpoint_of_a_folder_and_its_number_of_saves():
    folder = restored.FIXTURES / "manager/training"
    objects = restored.objects_for("manager")
    checkpoint = rx.Checkpoint(**objects)
    path = rx.latest_checkpoint(folder)
    assert path == str(folder / "ckpt-3")
    checkpoint.restore(path).assert_consumed()
    assert int(objects["step"].numpy()) == int(checkpoint.save_counter.numpy()) == 3


def test_notes_say_what_was_left_out_on_purpose():
    name = "saved_model_keras"
    status = rx.Checkpoint(**restored.objects_for(name)).restore(restored.path_of(name))
    assert any("keras_api/metrics/0/total" in note and "metric" in note for note in status.notes)


def test_a_mapping_is_for_checkpoints_of_tensorflow():
    w = rx.Variable(1.0)
    path = rx.Checkpoint(w=w).write("own")
    with pytest.raises(ArgumentError, match="mapping"):
        rx.Checkpoint(w=w).restore(path, mapping={})
    assert rx.Checkpoint(w=w, v=rx.Variable(2.0)).restore(path, strict=False) == {}


def test_a_manager_goes_on_in_the_folder_of_tensorflows(tmp_path):
    shutil.copytree(restored.FIXTURES / "manager/training", tmp_path / "training")
    objects = restored.objects_for("manager")
    with rx.CheckpointManager(rx.Checkpoint(**objects), tmp_path / "training", max_to_keep=2) as manager:
        assert manager.latest_checkpoint == str(tmp_path / "training/ckpt-3")
        assert manager.restore_or_initialize() == 3
        assert int(objects["step"].numpy()) == 3
        manager.save(4)
    again = rx.CheckpointManager(rx.Checkpoint(**restored.objects_for("manager")), tmp_path / "training", max_to_keep=2)
    assert again.restore_or_initialize() == 4


def test_without_checksums_integers_are_checked_all_the_same(tmp_path):
    write_graph(tmp_path / "w", {"a": numbers(3), "n": np.array([2**40])})
    a, n = rx.Variable(np.zeros(3, "float32")), rx.Variable(np.zeros(1, "int32"))
    with pytest.raises(CheckpointError, match="cannot hold"):
        rx.Checkpoint(a=a, n=n).restore(tmp_path / "w", verify=False)
    assert a.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["opt_tf_keras_legacy_adam", "opt_tf_keras_new_adam", "tf_keras_h5_whole"])
@pytest.mark.parametrize("decay", [0.0, 0.004])
def test_adam_becomes_adamw_only_without_a_weight_decay(name, decay):
    objects = restored.objects_for(name)
    objects["optimizer"] = keras.optimizers.AdamW(0.01, weight_decay=decay)
    objects["optimizer"].build(objects["model"].trainable_variables)
    if not decay:
        assert rx.Checkpoint(**objects).restore(restored.path_of(name)).notes is not None
        return
    before = values_of(objects)
    with pytest.raises(CheckpointError, match=r"checkpoint is Adam, and the one here is AdamW with weight_decay=0.004"):
        rx.Checkpoint(**objects).restore(restored.path_of(name))
    for old, new in zip(before, values_of(objects), strict=True):
        np.testing.assert_array_equal(old, new)
    status = rx.Checkpoint(**objects).restore(restored.path_of(name), strict=False)
    assert any("AdamW with weight_decay=0.004" in note for note in status.notes)


class Pair(keras.Model):
    """Two layers of equal shapes, made in one order or the other."""

    def __init__(self, swapped: bool = False):
        super().__init__()
        for name in "ba" if swapped else "ab":
            setattr(self, name, keras.layers.Dense(4))

    def call(self, inputs):
        return self.b(self.a(inputs))


@pytest.mark.parametrize("whole", [False, True])
def test_layers_that_only_their_order_tells_apart_are_noted(tmp_path, whole):
    path = tmp_path / "weights.h5"
    names = ["dense", "dense_1"]
    with h5py.File(path, "w") as file:
        group = file.create_group("model_weights") if whole else file
        group.attrs["layer_names"] = names
        for name in names:
            group.create_group(name).attrs["weight_names"] = [f"{name}/kernel:0", f"{name}/bias:0"]
            group[f"{name}/{name}/kernel:0"] = numbers(4, 4, start=len(name))
            group[f"{name}/{name}/bias:0"] = numbers(4, start=len(name))
    model = Pair(swapped=True)
    model(np.ones((1, 4), "float32"))
    (note,) = [each for each in rx.Checkpoint(model=model).restore(path).notes if each.startswith("Only the order")]
    assert "equal shapes" in note
    for name in names:
        assert f"{name}' is " in note
    different = dense_model(4, 3)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.attrs["layer_names"] = names
        for name, layer in zip(names, different.layers, strict=True):
            file.create_group(name).attrs["weight_names"] = [f"{name}/kernel:0", f"{name}/bias:0"]
            file[f"{name}/{name}/kernel:0"], file[f"{name}/{name}/bias:0"] = map(np.asarray, layer.weights)
    assert not rx.Checkpoint(model=different).restore(tmp_path / "other.h5").notes
