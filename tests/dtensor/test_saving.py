"""Saving tensors and variables over a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax import dtensor
from replicax.dtensor import UNSHARDED, Checkpoint, DVariable, Layout
from replicax.errors import CheckpointError, LayoutError, MeshError, ProgramError, TensorError

NUMBERS = np.arange(64.0, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module")
def mesh() -> dtensor.Mesh:
    return dtensor.create_mesh([("batch", 4), ("model", 2)])


@pytest.fixture(scope="module")
def small_mesh() -> dtensor.Mesh:
    return dtensor.create_mesh([("batch", 2)], devices=["cpu:6", "cpu:3"])


class Layer:
    def __init__(self, layout: Layout, value: np.ndarray = NUMBERS):
        self.w = DVariable(value, layout=layout)
        self.step = rx.Variable(3)


def test_objects_come_back_on_another_mesh(tmp_path: Path, mesh, small_mesh):
    path = Checkpoint(mesh, model=Layer(Layout(["batch", "model"], mesh))).write(tmp_path / "c")
    layer = Layer(Layout([UNSHARDED, "batch"], small_mesh), np.zeros((8, 8), np.float32))
    layer.step.assign(0)
    Checkpoint(small_mesh, model=layer).restore(path)
    np.testing.assert_array_equal(layer.w.numpy(), NUMBERS)
    dtensor.check_layout(layer.w.value, Layout([UNSHARDED, "batch"], small_mesh))
    assert layer.step.numpy() == 3


def test_each_device_writes_its_own_part(tmp_path: Path, mesh):
    path = Checkpoint(mesh, w=DVariable(NUMBERS, layout=Layout(["batch", "model"], mesh))).write(tmp_path / "c")
    (description,) = path.rglob(".zarray")
    assert json.loads(description.read_text())["chunks"] == [2, 4]


def test_attributes_of_root_are_stored_under_their_own_names(mesh):
    layer = Layer(Layout.replicated(mesh, 2))
    assert list(Checkpoint(mesh, layer, extra=rx.Variable(1)).variables()) == ["w", "step", "extra"]


def test_a_keyword_that_root_has_too_is_an_error(mesh):
    with pytest.raises(CheckpointError, match=r"\['w'\]"):
        Checkpoint(mesh, Layer(Layout.replicated(mesh, 2)), w=rx.Variable(1))


def test_a_variable_of_another_mesh_is_an_error(mesh, small_mesh):
    with pytest.raises(LayoutError, match="'w'"):
        Checkpoint(mesh, w=DVariable([1.0, 2.0], layout=Layout(["batch"], small_mesh)))


def test_what_is_no_mesh_is_an_error():
    with pytest.raises(MeshError, match="'nonsense'"):
        Checkpoint("nonsense", v=rx.Variable(1))


def test_keras_optimizer_state_over_a_mesh_comes_back(tmp_path: Path, mesh):
    layout = Layout(["batch", "model"], mesh)

    def train(checkpoint_after: int | None, path: Path, steps: int) -> np.ndarray:
        w = DVariable(NUMBERS / 64, layout=layout)
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([w])
        checkpoint = Checkpoint(mesh, w=w, optimizer=optimizer)
        if checkpoint_after is None:
            checkpoint.restore(path)

        @rx.function
        def step():
            _, gradients = rx.value_and_grad(lambda: jnp.sum(jnp.sin(w.value) ** 2), [w])()
            optimizer.apply_gradients(zip(gradients, [w], strict=True))

        for i in range(steps):
            if i == checkpoint_after:
                checkpoint.write(path)
            step()
        return w.numpy()

    whole = train(2, tmp_path / "c", 5)
    np.testing.assert_array_equal(train(None, tmp_path / "c", 3), whole)


def test_bfloat16_halves_what_is_stored_and_not_the_variable(tmp_path: Path, mesh):
    w = DVariable(NUMBERS + 0.001, layout=Layout(["batch", "model"], mesh))
    counts = DVariable(np.arange(8), layout=Layout.replicated(mesh, 1))
    dtensor.enable_save_as_bf16([w, counts])
    path = Checkpoint(mesh, w=w, counts=counts).write(tmp_path / "c")
    stored = dtensor.saved_tensors(path)
    assert stored["w"].dtype == jnp.bfloat16
    assert stored["counts"].dtype == np.int32
    Checkpoint(mesh, w=w, counts=counts).restore(path)
    assert w.dtype == np.float32
    np.testing.assert_array_equal(w.numpy(), (NUMBERS + 0.001).astype(jnp.bfloat16).astype(np.float32))


def test_tensors_come_back_by_name(tmp_path: Path, mesh, small_mesh):
    x = dtensor.relayout(NUMBERS, Layout(["batch", UNSHARDED], mesh))
    v = DVariable(NUMBERS * 2, layout=Layout([UNSHARDED, "model"], mesh))
    dtensor.name_based_save(mesh, tmp_path / "c", {"x": x, "v": v})
    template = dtensor.relayout(np.zeros((8, 8), np.float32), Layout(["batch", UNSHARDED], small_mesh))
    restored = dtensor.name_based_restore(small_mesh, tmp_path / "c", {"v": template, "x": template})
    assert list(restored) == ["v", "x"]
    np.testing.assert_array_equal(restored["x"], NUMBERS)
    np.testing.assert_array_equal(restored["v"], NUMBERS * 2)
    assert dtensor.fetch_layout(restored["x"]) == Layout(["batch", UNSHARDED], small_mesh)


def test_a_template_need_not_be_made(tmp_path: Path, mesh):
    dtensor.sharded_save(mesh, tmp_path / "c", ["x"], [dtensor.relayout(NUMBERS, Layout.replicated(mesh, 2))])
    wanted = jax.ShapeDtypeStruct((8, 8), jnp.float16, sharding=Layout(["batch", "model"], mesh).to_sharding())
    restored = dtensor.name_based_restore(mesh, tmp_path / "c", {"x": wanted})["x"]
    assert restored.dtype == jnp.float16
    assert restored.addressable_shards[0].data.shape == (2, 4)


def test_names_and_tensors_must_match(tmp_path: Path, mesh):
    x = dtensor.relayout(NUMBERS, Layout.replicated(mesh, 2))
    with pytest.raises(TensorError, match="2 names for 1"):
        dtensor.sharded_save(mesh, tmp_path / "c", ["x", "y"], [x])
    with pytest.raises(CheckpointError, match=r"\['x'\]"):
        dtensor.sharded_save(mesh, tmp_path / "c", ["x", "x"], [x, x])


def test_only_tensors_of_the_mesh_can_be_saved(tmp_path: Path, mesh, small_mesh):
    elsewhere = dtensor.relayout(NUMBERS, Layout.replicated(small_mesh, 2))
    with pytest.raises(TensorError, match="'x'"):
        dtensor.name_based_save(mesh, tmp_path / "c", {"x": jnp.zeros(2)})
    with pytest.raises(LayoutError, match="'x'"):
        dtensor.name_based_save(mesh, tmp_path / "c", {"x": elsewhere})


def test_traced_tensors_are_refused(tmp_path: Path, mesh):
    with pytest.raises(ProgramError, match="'x'"):
        jax.jit(lambda x: dtensor.name_based_save(mesh, tmp_path / "c", {"x": x}))(NUMBERS)
