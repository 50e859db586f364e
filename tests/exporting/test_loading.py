"""Running exported functions: on one device, on meshes, in a process that lacks the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax import dtensor
from replicax.dtensor import UNSHARDED, DVariable, Layout
from replicax.errors import ArgumentError, ExportError, LayoutError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 8)).astype(np.float32), RNG.normal(size=(16, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def mesh() -> dtensor.Mesh:
    return dtensor.create_mesh([("batch", 4), ("model", 2)])


@pytest.fixture(scope="module")
def exported(mesh, tmp_path_factory: pytest.TempPathFactory):
    """A training step over a mesh, and the losses and weights of five steps."""
    w = DVariable(np.ones((8, 4), np.float32), layout=Layout([UNSHARDED, "model"], mesh), name="w")
    steps = rx.Variable(0, name="steps")
    optimizer = optax.adam(0.1)
    slots = jax.tree.map(rx.Variable, optimizer.init(w.value))

    @rx.function
    def train(batch, scale=1.0, mode="mse"):
        def loss_fn():
            prediction = dtensor.relayout(batch["x"] @ w.value, Layout(["batch", "model"], mesh))
            return scale * jnp.mean((prediction - batch["y"]) ** 2)

        loss, gradient = rx.value_and_grad(loss_fn, w)()
        updates, new = optimizer.update(gradient, jax.tree.map(lambda s: s.value, slots, is_leaf=is_variable))
        jax.tree.map(lambda s, value: s.assign(value), slots, new, is_leaf=is_variable)
        w.assign_add(updates)
        return {"loss": loss, "mode": mode, "step": (steps.assign_add(1), None)}

    batch = {name: dtensor.relayout(v, Layout(["batch", UNSHARDED], mesh)) for name, v in (("x", X), ("y", Y))}
    path = rx.export(train, tmp_path_factory.mktemp("export") / "train", batch, scale=2.0)
    losses = [float(train(batch, scale=2.0)["loss"]) for _ in range(5)]
    return path, losses, w.numpy()


def replica_id() -> jax.Array:
    return rx.get_replica_context().replica_id_in_sync_group


def is_variable(leaf: object) -> bool:
    return isinstance(leaf, rx.Variable)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "dims",
    [
        None,
        [("batch", 4), ("model", 2)],
        [("batch", 2), ("model", 2)],
        [("model", 1), ("batch", 8)],
        [("model", 2), ("batch", 1)],
    ],
    ids=str,
)
def test_training_goes_on_anywhere(exported, dims):
    path, losses, weights = exported
    devices = [f"cpu:{i}" for i in range(1 if dims is None else int(np.prod([size for _, size in dims])))]
    mesh = None if dims is None else dtensor.create_mesh(dims, devices=devices)
    train = rx.load_export(path, mesh=mesh)
    results = [train({"x": X, "y": Y}, scale=2.0) for _ in range(5)]
    np.testing.assert_allclose([float(result["loss"]) for result in results], losses, rtol=1e-6)
    np.testing.assert_allclose(train.variables["w"].numpy(), weights, rtol=1e-5)
    assert results[-1]["mode"] == "mse"
    assert results[-1]["step"][1] is None
    assert int(results[-1]["step"][0]) == 5
    if mesh is not None:
        assert train.variables["w"].layout == Layout([UNSHARDED, "model"], mesh)
        assert len(train.variables["w"].value.sharding.device_set) == mesh.size


def test_a_process_without_the_code_runs_it(exported):
    path, losses, _ = exported
    code = f"""
import sys, numpy as np, replicax as rx
rng = np.random.default_rng(0)
batch = {{"x": rng.normal(size=(16, 8)).astype(np.float32), "y": rng.normal(size=(16, 4)).astype(np.float32)}}
train = rx.load_export({str(path)!r})
print([float(train(batch, scale=2.0)["loss"]) for _ in range(2)], "optax" in sys.modules, "keras" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    numbers, optax_is_loaded, keras_is_loaded = done.stdout.rsplit(" ", 2)
    np.testing.assert_allclose(eval(numbers), losses[:2], rtol=1e-6)
    assert optax_is_loaded == "False"
    assert keras_is_loaded.strip() == "False"


def test_the_batch_may_be_of_any_length(tmp_path: Path, mesh):
    w = DVariable(np.ones((8, 4), np.float32), layout=Layout([UNSHARDED, "model"], mesh))
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), np.float32)
    path = rx.export(lambda x: jnp.tanh(x @ w.value), tmp_path / "f", rows)
    for on in (None, mesh):
        predict = rx.load_export(path, mesh=on)
        for length in (16, 3):
            np.testing.assert_allclose(
                predict(X[:length]), np.tanh(X[:length].sum(1, keepdims=True)) + np.zeros(4), rtol=1e-5
            )


def test_a_smaller_part_of_a_cut_argument_is_computed_whole(tmp_path: Path, mesh):
    sharding = Layout(["batch", UNSHARDED], mesh).to_sharding()
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), np.float32, sharding=sharding)
    w = rx.Variable(np.ones((8, 1), np.float32))
    path = rx.export(lambda x: x @ w.value, tmp_path / "f", rows)
    predict = rx.load_export(path, mesh=dtensor.create_mesh([("batch", 8)]))
    np.testing.assert_allclose(predict(X[:3]), X[:3].sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_keras_model_made_under_a_strategy(tmp_path: Path, mirrored, replicas: int):
    with mirrored(replicas).scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(5, "gelu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        )
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), np.float32)
    path = rx.export(lambda x: model(x, training=False), tmp_path / "f", rows)
    np.testing.assert_allclose(rx.load_export(path)(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def test_what_runs_on_replicas_needs_as_many_devices(tmp_path: Path, mirrored):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(3.0)

    def total(x):
        return strategy.reduce("sum", strategy.run(lambda: x * w + replica_id()), axis=None)

    path = rx.export(total, tmp_path / "f", 1.0)
    with pytest.raises(ExportError, match="can only run on a mesh like"):
        rx.load_export(path)
    mesh = dtensor.create_mesh([("replica", 2)], devices=["cpu:4", "cpu:5"])
    assert float(rx.load_export(path, mesh=mesh)(2.0)) == 13.0


def test_variables_can_be_assigned(exported):
    train = rx.load_export(exported[0])
    train.variables["w"].assign(np.zeros((8, 4), np.float32))
    loss = train({"x": X, "y": Y}, scale=1.0)["loss"]
    np.testing.assert_allclose(loss, np.mean(Y**2), rtol=1e-5)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({"x": X[:3], "y": Y},), {"scale": 1.0}, r"float32\[16, 8\], got float32\[3, 8\]"),
        (({"x": X.astype(np.int32), "y": Y},), {"scale": 1.0}, "got int32"),
        (({"x": X},), {"scale": 1.0}, "was exported for arguments like"),
        (({"x": X, "y": Y},), {"scale": 1.0, "mode": "mae"}, "mode='mae'"),
    ],
)
def test_other_arguments_are_refused(exported, args, kwargs, message: str):
    with pytest.raises(ArgumentError, match=message):
        rx.load_export(exported[0])(*args, **kwargs)


def test_a_mesh_without_the_named_dimensions_is_refused(exported):
    with pytest.raises(LayoutError, match="'batch'"):
        rx.load_export(exported[0], mesh=dtensor.create_mesh([("x", 8)]))


def test_a_mesh_that_does_not_divide_a_variable_is_refused(exported):
    mesh = dtensor.create_mesh([("batch", 1), ("model", 8)])
    with pytest.raises(LayoutError, match="cannot split into 8"):
        rx.load_export(exported[0], mesh=mesh)


def test_there_must_be_an_exported_function(tmp_path: Path):
    with pytest.raises(ExportError, match="no exported function"):
        rx.load_export(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ExportError, match="cannot be read"):
        rx.load_export(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(ExportError, match="99"):
        rx.load_export(tmp_path)


def test_a_damaged_program_is_an_error(tmp_path: Path):
    path = rx.export(lambda x: x + 1, tmp_path / "f", X)
    (path / "portable.stablehlo").write_bytes(b"not a program")
    with pytest.raises(ExportError, match="damaged"):
        rx.load_export(path)
    (path / "portable.stablehlo").unlink()
    with pytest.raises(ExportError, match="incomplete"):
        rx.load_export(path)


def test_it_says_what_it_is(exported, mesh):
    text = repr(rx.load_export(exported[0], mesh=mesh))
    assert "train({'x': float32[16, 8], 'y': float32[16, 4]}, scale=float32[])" in text


@pytest.mark.parametrize("path", [3, None])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(rx.errors.ArgumentError, match="directory is a string"):
        rx.load_export(path)
    with pytest.raises(rx.errors.ArgumentError, match="directory is a string"):
        rx.export(lambda x: x, path, 1.0)


def test_a_python_number_is_taken_if_the_dtype_has_it(tmp_path: Path):
    rx.export(lambda x: x + 1, tmp_path / "f", jnp.int32(0))
    loaded = rx.load_export(tmp_path / "f")
    assert int(loaded(2)) == 3
    for wrong in (2.7, 2**40):
        with pytest.raises(ArgumentError, match="must be int32"):
            loaded(wrong)
