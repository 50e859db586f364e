"""An optimizer's state in object graphs and under the names of TensorFlow 1."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.optimizers import SaverSlot, saver_slots
from tests.migrate import restored, zoo
from tests.migrate.bundles import write_bundle
from tests.tensorflow.checkpoints.small import dense_model, numbers, write_graph


def slots(name, **arguments):
    """Returns the optimizer that was restored from a fixture, and what TensorFlow read from it."""
    return restored.restored(name)["optimizer"], rx.checkpoint.tensorflow.open_checkpoint(restored.path_of(name)).read


def variable(optimizer, end):
    return np.asarray(next(each for each in optimizer.variables if each.path.endswith(end)))


@pytest.mark.parametrize(
    ("name", "slot", "end"),
    [
        ("saver_adam", "Adam", "kernel_momentum"),
        ("saver_adam", "Adam_1", "kernel_velocity"),
        ("saver_partitioned", "Adam_1", "kernel_velocity"),
        ("saver_rmsprop_centered", "RMSProp", "kernel_velocity"),
        ("saver_rmsprop_centered", "RMSProp_1", "kernel_average_gradient"),
        ("saver_rmsprop_centered", "RMSProp_2", "kernel_momentum"),
        ("saver_rmsprop_momentum", "RMSProp_1", "kernel_momentum"),
        ("saver_adagrad", "Adagrad", "kernel_accumulator"),
        ("saver_adadelta", "Adadelta", "kernel_accumulated_grad"),
        ("saver_adadelta", "Adadelta_1", "kernel_accumulated_delta_var"),
        ("saver_ftrl", "Ftrl", "kernel_accumulator"),
        ("saver_ftrl", "Ftrl_1", "kernel_linear"),
    ],
)
def test_each_slot_of_tensorflow_1_has_its_place(name, slot, end):
    optimizer, read = slots(name)
    np.testing.assert_array_equal(variable(optimizer, end), read(f"dense/kernel/{slot}"))
    assert int(optimizer.iterations) == restored.described(name)["steps"]


def test_the_momentum_of_tensorflow_1_gets_the_learning_rate_into_it():
    optimizer, read = slots("saver_momentum")
    expected = read("dense/kernel/Momentum") * np.float32(-0.05)
    np.testing.assert_array_equal(variable(optimizer, "kernel_momentum"), expected)
    objects = restored.objects_for("saver_momentum")
    objects["optimizer"] = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9)
    objects["optimizer"].build(objects["model"].trainable_variables)
    with pytest.raises(CheckpointError, match="follows a schedule"):
        rx.Checkpoint(**objects).restore(restored.path_of("saver_momentum"))


def test_the_steps_of_adam_are_found_in_its_powers(tmp_path):
    model, optimizer = dense_model(3, names=("dense",)), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    tensors = {"dense/kernel": numbers(4, 3), "dense/bias": numbers(3)}
    tensors |= {f"{name}/{slot}": value for name, value in tensors.items() for slot in ("Adam", "Adam_1")}
    for steps in (0, 7, 5000):
        powers = {f"beta{i}_power": np.float32(beta) ** np.float32(steps + 1) for i, beta in ((1, 0.9), (2, 0.999))}
        write_bundle(tmp_path / "w", tensors | powers)
        rx.Checkpoint(model=model, optimizer=optimizer).restore(tmp_path / "w")
        assert int(optimizer.iterations) == steps
    write_bundle(tmp_path / "w", tensors | {"beta1_power": np.float32(0.83), "beta2_power": np.float32(0.998)})
    with pytest.raises(CheckpointError, match=r"no power of 0\.9"):
        rx.Checkpoint(model=model, optimizer=optimizer).restore(tmp_path / "w")


def test_slots_are_found_by_the_names_of_variables():
    names = ["dense/kernel", "dense/kernel/Adam", "train/dense/kernel/Adam_1", "A/dense/kernel/accumulator", "other/b"]
    assert saver_slots(names) == [
        SaverSlot("dense/kernel", "accumulator", "A/dense/kernel/accumulator"),
        SaverSlot("dense/kernel", "Adam", "dense/kernel/Adam"),
        SaverSlot("dense/kernel", "Adam_1", "train/dense/kernel/Adam_1"),
    ]


@pytest.mark.parametrize("name", ["opt_tf_keras_legacy_adam", "opt_tf_keras_new_adam", "opt_keras3_new_adam"])
@pytest.mark.parametrize("other", ["momentum", "rmsprop_momentum", "nadam", "adamax"])
@pytest.mark.parametrize("strict", [True, False])
def test_another_optimizer_is_refused(name, other, strict):
    objects = restored.objects_for(name)
    objects["optimizer"] = restored.optimizer_for(other)
    objects["optimizer"].build(objects["model"].trainable_variables)
    with pytest.raises(CheckpointError, match="The optimizer 'optimizer' in the checkpoint is Adam, and the one here"):
        rx.Checkpoint(**objects).restore(restored.path_of(name), strict=strict)


def test_slots_of_another_optimizer_are_listed():
    objects = restored.objects_for("saver_adam")
    objects["optimizer"] = restored.optimizer_for("adagrad")
    objects["optimizer"].build(objects["model"].trainable_variables)
    with pytest.raises(CheckpointError, match="'dense/kernel/Adam_1' float32") as raised:
        rx.Checkpoint(**objects).restore(restored.path_of("saver_adam"))
    assert "kernel_accumulator' float32 [4, 3]" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("opt_tf_keras_legacy_adam", {"beta_1": 0.8}, "'optimizer/beta_1' is 0.9 in the checkpoint, .* beta_1=0.8"),
        ("opt_tf_keras_legacy_momentum", {"momentum": 0.5}, "momentum=0.5"),
    ],
)
def test_hyperparameters_that_differ_are_refused_unless_it_need_not_be_strict(name, other, said, caplog):
    objects = restored.objects_for(name)
    objects["optimizer"] = restored.optimizer_for(restored.described(name)["optimizer"], **other)
    objects["optimizer"].build(objects["model"].trainable_variables)
    with pytest.raises(CheckpointError, match=said):
        rx.Checkpoint(**objects).restore(restored.path_of(name))
    rx.Checkpoint(**objects).restore(restored.path_of(name), strict=False)
    assert int(objects["optimizer"].iterations) == zoo.STEPS_BEFORE
    assert "in the checkpoint, and the optimizer here" in caplog.text


def test_keras_2s_nadam_does_not_go_on_in_keras_3():
    name = "opt_tf_keras_legacy_nadam"
    with pytest.raises(CheckpointError, match="Nadam computes its momentum"):
        rx.Checkpoint(**restored.objects_for(name)).restore(restored.path_of(name))


@pytest.mark.parametrize("form", ["legacy", "new"])
def test_the_scale_of_the_loss_is_restored_or_left_out(form):
    name = f"opt_tf_keras_{form}_adam_loss_scale"
    optimizer, read = slots(name)
    scale = read("optimizer/loss_scale/current_loss_scale/.ATTRIBUTES/VARIABLE_VALUE")
    assert float(optimizer.dynamic_scale) == float(scale) == 1024
    assert int(optimizer.step_counter) == zoo.STEPS_BEFORE
    objects = restored.objects_for("opt_tf_keras_legacy_adam")
    status = rx.Checkpoint(**objects).restore(restored.path_of(name))
    assert any("does not scale the loss" in note for note in status.notes)
    assert int(objects["optimizer"].iterations) == zoo.STEPS_BEFORE


def test_a_moving_average_of_the_weights_is_restored():
    optimizer, _ = slots("opt_tf_keras_new_adam_ema")
    assert np.abs(variable(optimizer, "kernel_average")).max() > 0


@pytest.mark.parametrize("name", ["tf_keras_h5_whole", "keras3_h5_whole"])
def test_the_optimizer_in_an_hdf5_file_is_restored(name):
    optimizer, _ = slots(name)
    tensors = rx.checkpoint.tensorflow.open_checkpoint(restored.path_of(name))
    stored = [tensors.read(each) for each in tensors.optimizer if tensors.tensors[each].shape == (4, 3)]
    ours = [variable(optimizer, "dense_kernel_momentum"[6:]), variable(optimizer, "kernel_velocity")]
    assert sorted(value.tobytes() for value in stored) == sorted(value.tobytes() for value in ours)
    assert int(optimizer.iterations) == 1


def test_slots_follow_their_variables_whatever_the_order_of_the_optimizer():
    name = "opt_tf_keras_new_adam"
    objects = restored.objects_for(name)
    backwards = restored.optimizer_for("adam")
    backwards.build(objects["model"].trainable_variables[::-1])
    rx.Checkpoint(model=objects["model"], optimizer=backwards).restore(restored.path_of(name))
    expected = restored.restored(name)["optimizer"]
    for end in ("kernel_momentum", "bias_velocity"):
        np.testing.assert_array_equal(_of_first(backwards, end), _of_first(expected, end))


def _of_first(optimizer, end):
    return next(np.asarray(v) for v in optimizer.variables if v.path.endswith(end) and v.shape[-1] == 3)


@pytest.mark.parametrize(("leaves", "is_restored"), [(("kernel", "bias"), True), (("kernel", "kernel"), False)])
def test_slots_whose_names_do_not_say_for_what_they_are_need_the_same_order(leaves, is_restored, tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="out")])
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(model.trainable_variables)
    values, full_names = {}, {"optimizer/_iterations": "Adagrad/iteration"}
    for i, (leaf, shape) in enumerate((("kernel", (4, 3)), ("bias", (3,)))):
        values[f"model/layer_with_weights-0/{leaf}"] = numbers(*shape)
        values[f"optimizer/_accumulators/{i}"] = numbers(*shape, start=1)
        full_names[f"optimizer/_accumulators/{i}"] = f"Adagrad/accumulator/somewhere/{leaves[i]}"
    values |= {"optimizer/_iterations": np.int64(5), "optimizer/_learning_rate": np.float32(0.1)}
    write_graph(tmp_path / "w", {name: np.asarray(value) for name, value in values.items()}, full_names)
    checkpoint = rx.Checkpoint(model=model, optimizer=optimizer)
    if is_restored:
        checkpoint.restore(tmp_path / "w")
        np.testing.assert_array_equal(variable(optimizer, "kernel_accumulator"), numbers(4, 3, start=1))
    else:
        with pytest.raises(CheckpointError, match="Only in the objects"):
            checkpoint.restore(tmp_path / "w")
