"""`rx.Checkpoint`: what it holds, and that it comes back anywhere."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint import read_metadata
from replicax.errors import ArgumentError, CheckpointError
from tests.checkpoint.models import X, sequential


class Reader:
    """A data position."""

    def __init__(self, position: Any = 0):
        self.position = position

    def get_state(self) -> Any:
        return self.position

    def set_state(self, state: Any) -> None:
        if state == "bad":
            raise ValueError("bad state")
        self.position = state


def test_values_are_returned(tmp_path: Path):
    params = {"w": jnp.arange(4.0), "layers": [np.float32(2), np.arange(3)]}
    optimizer_state = optax.adam(0.1).init(params["w"])
    checkpoint = rx.Checkpoint(params=params, optimizer=optimizer_state, step=3, rate=0.5, name="run", raw=b"\0\xff")
    path = checkpoint.write(tmp_path / "c")
    zeros = jax.tree.map(lambda x: x * 0, (params, optimizer_state))
    other = rx.Checkpoint(params=zeros[0], optimizer=zeros[1], step=0, rate=0.0, name="", raw=b"")
    restored = other.restore(path)
    assert {name: restored[name] for name in ("step", "rate", "name", "raw")} == {
        "step": 3,
        "rate": 0.5,
        "name": "run",
        "raw": b"\0\xff",
    }
    assert restored == other.objects
    for found, expected in zip(jax.tree.leaves(restored["params"]), jax.tree.leaves(params), strict=True):
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)
    assert isinstance(restored["optimizer"][0], type(optimizer_state[0]))
    assert not restored["params"]["w"].committed


def test_a_dict_may_be_the_root(tmp_path: Path):
    path = rx.Checkpoint({"root": 1, "v": rx.Variable(2.0)}, n=2).write(tmp_path / "c")
    assert rx.Checkpoint({"root": 0, "v": rx.Variable(0.0)}, n=0).restore(path) == {"root": 1, "n": 2}
    with pytest.raises(CheckpointError, match=r"\['n'\]"):
        rx.Checkpoint({"n": 1}, n=2)


def test_variables_among_values_stay_themselves(tmp_path: Path):
    variable = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(state={"v": variable, "n": 1, "a": jnp.ones(2)})
    path = checkpoint.write(tmp_path / "c")
    variable.assign(0.0)
    checkpoint.objects["state"]["n"] = 7
    restored = checkpoint.restore(path)["state"]
    assert restored["v"] is variable
    assert (float(variable.numpy()), restored["n"]) == (1.0, 1)


def test_random_state_comes_back(tmp_path: Path):
    generators = [np.random.default_rng(1), np.random.Generator(np.random.MT19937(2)), np.random.RandomState(3)]
    key = jax.random.key(4, impl="rbg")
    checkpoint = rx.Checkpoint(generators=generators, key=key)
    path = checkpoint.write(tmp_path / "c")
    expected = [generator.normal() for generator in generators]
    checkpoint.objects["key"] = jax.random.key(0, impl="rbg")
    restored = checkpoint.restore(path)
    assert [generator.normal() for generator in generators] == expected
    assert jax.random.uniform(restored["key"]) == jax.random.uniform(key)


def keras_optimizer(
    kind: type[keras.optimizers.Optimizer], built: bool = True, scales: bool = False, **settings: Any
) -> keras.optimizers.Optimizer:
    optimizer = kind(0.1, **settings)
    if scales:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if built:
        optimizer.build([keras.Variable(np.zeros(2, np.float32))])
    return optimizer


class OwnAdam(keras.optimizers.Adam):
    """An optimizer whose slots mean what those of its base do."""


KERAS = keras.optimizers
OTHER_KINDS = [
    (lambda: keras_optimizer(KERAS.Adam), lambda: keras_optimizer(KERAS.Adadelta), "Adam .*Adadelta"),
    (lambda: keras_optimizer(KERAS.Adam), lambda: keras_optimizer(KERAS.Adadelta, built=False), "Adam .*Adadelta"),
    (
        lambda: keras_optimizer(KERAS.Adam, scales=True),
        lambda: keras_optimizer(KERAS.Adadelta, scales=True),
        "iteration of Adam .*iteration of Adadelta",
    ),
    (
        lambda: {"state": optax.adam(0.1).init(jnp.ones(2))},
        lambda: {"state": optax.adabelief(0.1).init(jnp.ones(2))},
        "state/0.*ScaleByAdamState .*ScaleByBeliefState",
    ),
    (lambda: jax.random.key(0, impl="rbg"), lambda: jax.random.key(0, impl="unsafe_rbg"), "of rbg .*of unsafe_rbg"),
    (lambda: jax.random.key(0, impl="rbg"), lambda: jax.random.key(0), "of rbg .*of threefry"),
    (lambda: jax.random.PRNGKey(0), lambda: jax.random.key(0), "without the type of a key .*of threefry"),
    (lambda: jax.random.key(0), lambda: jax.random.PRNGKey(0), "of threefry.*without the type of a key"),
    (lambda: rx.Variable(jax.random.PRNGKey(0)), lambda: jax.random.key(0), "without the type of a key .*of threefry"),
    (
        lambda: keras_optimizer(KERAS.SGD, momentum=0.9),
        lambda: keras_optimizer(KERAS.Lion),
        "iteration of SGD .*iteration of Lion",
    ),
]

OTHER_SETTINGS = [
    (KERAS.SGD, {"momentum": 0.9}, {"use_ema": True}, "momentum of SGD .*average of SGD"),
    (KERAS.SGD, {"use_ema": True}, {"gradient_accumulation_steps": 2}, "average of SGD .*gradient_accumulator of SGD"),
    (KERAS.Adam, {"amsgrad": True}, {"use_ema": True}, "momentum of Adam .*average of Adam"),
    (KERAS.RMSprop, {"momentum": 0.9}, {"centered": True}, "momentum of RMSprop .*average_gradient of RMSprop"),
]


@pytest.mark.parametrize(("kind", "saved", "own", "said"), OTHER_SETTINGS)
@pytest.mark.parametrize("scales", [False, True])
def test_a_slot_is_not_restored_into_one_that_means_something_else(
    tmp_path: Path, kind: Any, saved: dict[str, Any], own: dict[str, Any], said: str, scales: bool
):
    path = rx.Checkpoint(it=keras_optimizer(kind, scales=scales, **saved)).write(tmp_path / "c")
    rx.Checkpoint(it=keras_optimizer(kind, scales=scales, **saved)).restore(path).assert_consumed()
    with pytest.raises(CheckpointError, match=f"{said}.*partial=True"):
        rx.Checkpoint(it=keras_optimizer(kind, scales=scales, **own)).restore(path)
    unbuilt = keras_optimizer(kind, built=False, scales=scales, **own)
    rx.Checkpoint(it=unbuilt).restore(path)
    with pytest.raises(CheckpointError, match=said):
        unbuilt.build([keras.Variable(np.zeros(2, np.float32))])


@pytest.mark.parametrize("kind", [KERAS.SGD, KERAS.Adafactor, KERAS.Nadam, KERAS.Ftrl])
@pytest.mark.parametrize("scales", [False, True])
def test_slots_mean_the_same_whatever_the_layers_are_called(tmp_path: Path, kind: Any, scales: bool):
    def built_for(model: Any) -> Any:
        optimizer = keras_optimizer(kind, built=False, scales=scales, use_ema=True)
        optimizer.build(model.trainable_variables)
        return optimizer

    first, second = sequential(), sequential()
    first.build(X.shape)
    second.build(X.shape)
    path = rx.Checkpoint(it=built_for(first)).write(tmp_path / "c")
    rx.Checkpoint(it=built_for(second)).restore(path).assert_consumed()


def test_values_that_wait_are_written_with_their_meaning(tmp_path: Path):
    def optimizer(built: bool, **settings: Any) -> rx.Checkpoint:
        return rx.Checkpoint(it=keras_optimizer(KERAS.SGD, built=built, scales=True, **settings))

    path = optimizer(True, momentum=0.9).write(tmp_path / "c")
    waits = optimizer(False, momentum=0.9)
    waits.restore(path)
    again = waits.write(tmp_path / "again")
    optimizer(True, momentum=0.9).restore(again).assert_consumed()
    with pytest.raises(CheckpointError, match=r"momentum of SGD .*average of SGD"):
        optimizer(True, use_ema=True).restore(again)


def test_a_slot_that_means_something_else_is_said_before_its_shape(tmp_path: Path):
    other = keras_optimizer(KERAS.SGD, built=False, use_ema=True)
    other.build([keras.Variable(np.zeros(3, np.float32))])
    path = rx.Checkpoint(it=keras_optimizer(KERAS.SGD, momentum=0.9)).write(tmp_path / "c")
    with pytest.raises(CheckpointError, match="momentum of SGD"):
        rx.Checkpoint(it=other).restore(path)


@pytest.mark.parametrize(("saved", "own", "said"), OTHER_KINDS)
def test_numbers_of_another_kind_are_not_restored_in_silence(tmp_path: Path, saved: Any, own: Any, said: str):
    path = rx.Checkpoint(it=saved()).write(tmp_path / "c")
    rx.Checkpoint(it=saved()).restore(path)
    with pytest.raises(CheckpointError, match=f"{said}.*partial=True"):
        rx.Checkpoint(it=own()).restore(path)


def test_those_of_a_kind_that_shares_a_base_are_restored(tmp_path: Path):
    path = rx.Checkpoint(it=keras_optimizer(KERAS.AdamW)).write(tmp_path / "c")
    rx.Checkpoint(it=keras_optimizer(OwnAdam)).restore(path).assert_consumed()


def test_those_of_another_kind_are_restored_if_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = rx.Checkpoint(it=optax.adam(0.1).init(jnp.full(2, 3.0))).write(tmp_path / "c")
    own = rx.Checkpoint(it=optax.adabelief(0.1).init(jnp.ones(2)))
    own.restore(path, partial=True)
    assert "ScaleByBeliefState" in caplog.text


@pytest.mark.parametrize("position", [b"bytes \0", {"epoch": 1, "rows": [1, 2]}, None, {"order": np.arange(3)}])
def test_objects_that_know_their_state(tmp_path: Path, position: Any):
    path = rx.Checkpoint(data=Reader(position)).write(tmp_path / "c")
    reader = Reader("other")
    rx.Checkpoint(data=reader).restore(path)
    np.testing.assert_equal(reader.position, position)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "float64", "<U1"])
def test_arrays_in_a_state_come_back(tmp_path: Path, dtype: str):
    array = np.array([1, 0]).astype(jnp.dtype(dtype))
    path = rx.Checkpoint(reader=Reader({"a": [array]})).write(tmp_path / "c")
    reader = Reader()
    rx.Checkpoint(reader=reader).restore(path)
    assert reader.position["a"][0].dtype == array.dtype
    np.testing.assert_array_equal(reader.position["a"][0], array)


@pytest.mark.parametrize(
    "state", [{"__bytes__": "no"}, {"__array__": 1, "dtype": "no"}, np.zeros(1, "i4,f4"), np.zeros(1, "M8[D]")]
)
def test_a_state_that_could_not_be_read_is_not_written(tmp_path: Path, state: Any):
    with pytest.raises(CheckpointError, match="which a checkpoint cannot hold"):
        rx.Checkpoint(reader=Reader({"position": state})).write(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_step_is_a_whole_number(tmp_path: Path):
    checkpoint = rx.Checkpoint(step=0)
    assert read_metadata(checkpoint.write(tmp_path / "c", step=np.int64(3))).step == 3
    for step in ("3", 2.5, -1):
        with pytest.raises(ArgumentError, match="`step` must be an int of at least 0"):
            checkpoint.write(tmp_path / "d", step=step)
    assert checkpoint.objects == {"step": 3}


def test_a_state_that_json_cannot_hold_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="'data' contains <object"):
        rx.Checkpoint(data=Reader({"x": [object()]})).write(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"x": np.array(["a"])}, r"'x' is array\(.*an array of <U1"),
        ({"x": np.array(["2020-01-01"], "datetime64[D]")}, "hold numbers"),
        ({"x": np.zeros(1, [("a", "i4")])}, "fields of a table one by one"),
        ({"x": np.ma.masked_array([1.0, 2.0], [False, True])}, "'x' is a masked array"),
        ({"x": np.zeros(2, "uint4")}, "'x' has dtype uint4, which TensorStore does not write"),
        ({"w": rx.Variable(1.0), "x": {"y": 1 + 2j}}, "'x/y'.*np.complex128"),
        ({5: rx.Variable(1.0)}, r"strings, got \[5\]"),
    ],
)
def test_what_no_checkpoint_can_hold_is_an_error_at_once(objects: dict, message: str):
    with pytest.raises(CheckpointError, match=message):
        rx.Checkpoint(objects)


def test_no_pickle_in_the_files(tmp_path: Path):
    path = rx.Checkpoint(g=np.random.default_rng(1), v=rx.Variable([1.0])).write(tmp_path / "c")
    assert json.loads((path / "state-00000.json").read_text())["g"]["state"]["bit_generator"] == "PCG64"
    assert not [file for file in path.rglob("*") if file.is_file() and b"numpy._core" in file.read_bytes()]


def test_nothing_changes_if_one_object_refuses(tmp_path: Path):
    first, second, variable = Reader("new"), Reader("bad"), rx.Variable(1.0)
    path = rx.Checkpoint(first=first, second=second, v=variable).write(tmp_path / "c")
    first.position, second.position = "old", "old"
    variable.assign(0.0)
    with pytest.raises(CheckpointError, match="'second' does not take"):
        rx.Checkpoint(first=first, second=second, v=variable).restore(path)
    assert (first.position, float(variable.numpy())) == ("old", 0.0)


def test_names_of_all_kinds_must_match(tmp_path: Path):
    path = rx.Checkpoint(v=rx.Variable(1.0), n=1).write(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"Only in the checkpoint: \['n'\].*objects: \['m'\]"):
        rx.Checkpoint(v=rx.Variable(1.0), m=1).restore(path)
    assert rx.Checkpoint(v=rx.Variable(1.0), m=5).restore(path, partial=True) == {"m": 5}
    with pytest.raises(CheckpointError, match="'n' is no array in the checkpoint"):
        rx.Checkpoint(v=rx.Variable(1.0), n=rx.Variable(1)).restore(path)


@pytest.fixture
def adam_on_disk(tmp_path: Path) -> Path:
    """A checkpoint of a model and its optimizer."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return rx.Checkpoint(model=model, optimizer=optimizer).write(tmp_path / "adam")


def test_a_model_that_is_not_built_cannot_be_written(tmp_path: Path):
    checkpoint = rx.Checkpoint(model=keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(CheckpointError, match=r"'model' \(Sequential\) is not built.*model\.build\(input_shape\)"):
        checkpoint.write(tmp_path / "c")


def test_a_partial_restore_says_once_what_it_left_out(adam_on_disk: Path, caplog: pytest.LogCaptureFixture):
    model, optimizer = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), keras.optimizers.Adam()
    for _ in range(2):
        caplog.clear()
        rx.Checkpoint(model=model, more=rx.Variable(1.0)).restore(adam_on_disk, partial=True)
        [record] = caplog.records
        assert "left out: optimizer/0, optimizer/1, optimizer/2" in record.message
        assert "as before: more." in record.message
    caplog.clear()
    rx.Checkpoint(model=model, optimizer=optimizer).restore(adam_on_disk, partial=True)
    assert not caplog.records


def test_metadata_names_step_and_versions(tmp_path: Path):
    path = rx.Checkpoint(v=rx.Variable([1.0, 2.0]), step=0).write(tmp_path / "c", step=12)
    metadata = read_metadata(path)
    assert metadata.step == 12
    assert metadata.versions["jax"] == jax.__version__
    assert metadata.arrays["v"].nbytes == 8
    assert len(metadata.arrays["v"].checksum) == 64
    assert rx.Checkpoint(v=rx.Variable([0.0, 0.0]), step=0).restore(path) == {"step": 12}


def test_new_values_are_passed_to_write(tmp_path: Path):
    checkpoint = rx.Checkpoint(params=jnp.zeros(2))
    path = checkpoint.write(tmp_path / "c", params=jnp.ones(2))
    np.testing.assert_array_equal(checkpoint.restore(path)["params"], [1, 1])
    with pytest.raises(CheckpointError, match=r"no objects \['other'\]"):
        checkpoint.write(tmp_path / "d", other=1)


def strategies() -> dict[str, Any]:
    devices = [f"cpu:{i}" for i in range(4)]
    return {
        "one": lambda: rx.OneDeviceStrategy("cpu:1"),
        "mirrored 2": lambda: rx.MirroredStrategy(devices[:2]),
        "mirrored 4": lambda: rx.MirroredStrategy(devices),
        "sharded 2": lambda: rx.FullyShardedStrategy(devices[:2], min_size=1),
        "sharded 4": lambda: rx.FullyShardedStrategy(devices, min_size=1),
    }


def fitted(strategy: Any, epochs: int, restore: Path | None = None) -> tuple[Any, rx.Checkpoint]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8)).astype("f4"), rng.normal(size=(32, 4)).astype("f4")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)])
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
        metric = keras.metrics.Mean()
    checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer, metric=metric)
    if restore is not None:
        checkpoint.restore(restore)
    else:
        metric.update_state([3.0, 5.0])
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return [np.asarray(v) for v in [*model.variables, *model.optimizer.variables, *metric.variables]], checkpoint


@pytest.fixture(scope="module")
def uninterrupted() -> Any:
    return fitted(rx.OneDeviceStrategy("cpu:0"), 3)[0]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("saver", "restorers"),
    [
        ("mirrored 2", ("sharded 4",)),
        ("sharded 2", ("one",)),
        *(
            pytest.param(saver, [name for name in strategies() if name != saver], marks=pytest.mark.nightly)
            for saver in strategies()
        ),
    ],
)
def test_fit_continues_under_any_strategy(tmp_path: Path, uninterrupted: Any, saver: str, restorers: Sequence[str]):
    """Weights, slots and metrics saved by one strategy after `fit`, restored in others, and trained on."""
    _, checkpoint = fitted(strategies()[saver](), 2)
    path = checkpoint.write(tmp_path / "c")
    for restorer in restorers:
        for found, expected in zip(fitted(strategies()[restorer](), 1, path)[0], uninterrupted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


# `save`, `read` and what else is written as in TensorFlow.


def test_saves_are_numbered_and_the_number_is_restored(tmp_path: Path):
    w = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(w=w)
    prefix = str(tmp_path / "training" / "ckpt")
    assert [checkpoint.save(prefix) for _ in range(2)] == [f"{prefix}-1", f"{prefix}-2"]
    assert int(checkpoint.save_counter) == 2
    w.assign(5.0)
    again = rx.Checkpoint(w=w)
    again.read(f"{prefix}-2")
    assert (float(w.numpy()), int(again.save_counter)) == (1.0, 0)
    again.restore(rx.latest_checkpoint(tmp_path / "training")).assert_consumed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert again.save(prefix) == f"{prefix}-3"
    # A training that has not gone on from there replaces what it does not know.
    with pytest.warns(UserWarning, match="ckpt-1 is there already.*restore"):
        assert rx.Checkpoint(w=w).save(tmp_path / "training" / "ckpt") == f"{prefix}-1"
    with pytest.raises(ArgumentError, match="has `options`, which is not in replicax"):
        again.restore(prefix, options=1)


def test_a_counter_that_the_user_set_is_the_one_that_counts(tmp_path: Path):
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        checkpoint = rx.Checkpoint(w=rx.Variable(1.0))
        checkpoint.save_counter.assign(6)
        assert checkpoint.save(tmp_path / "c").endswith("c-7")


def test_objects_are_attributes(tmp_path: Path):
    step, w = rx.Variable(1), rx.Variable(0.0)
    checkpoint = rx.Checkpoint(step=step, n=1)
    checkpoint.step.assign_add(1)
    assert int(checkpoint.step) == 2
    checkpoint.n = 5
    checkpoint.later = w
    assert checkpoint.objects == {"step": step, "n": 5, "later": w}
    path = checkpoint.write(tmp_path / "c")
    assert rx.Checkpoint(step=step, n=0, later=w).restore(path) == {"n": 5}
    with pytest.raises(AttributeError, match="no attribute 'model'"):
        _ = checkpoint.model


def test_an_object_may_be_called_self(tmp_path: Path):
    path = rx.Checkpoint(self=1).write(tmp_path / "c", self=2)
    assert rx.Checkpoint(self=0).restore(path) == {"self": 2}
    with rx.CheckpointManager(tmp_path / "m", objects={"self": 1}) as manager:
        manager.save(1, self=3)
    assert manager.restore() == {"self": 3}


def test_names_of_the_arguments_of_save_are_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"\['force'\].*rename"):
        rx.CheckpointManager(tmp_path / "m", objects={"force": jnp.ones(2)})
    with pytest.raises(ArgumentError, match=r"\['check_interval'\].*rename"):
        rx.CheckpointManager(rx.Checkpoint(check_interval=1), tmp_path / "m")
