"""Models and optimizers that are restored before they are built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError, UnmatchedError
from tests.checkpoint.models import X, sequential


class Custom(keras.Model):
    """A subclass of Keras's: it has no variables until it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=3)
        self.hidden, self.last = keras.layers.Dense(6, activation="relu"), keras.layers.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.dropout(self.hidden(x), training=training))


def stepper(model: Any, optimizer: Any) -> Callable[[], float]:
    @rx.function
    def step() -> Any:
        def loss() -> Any:
            return keras.ops.mean(model(X, training=True) ** 2)

        value, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return value

    return lambda: float(step())


def optimizers() -> dict[str, Callable[[], Any]]:
    return {
        "adam": lambda: keras.optimizers.Adam(0.05),
        "nadam": lambda: keras.optimizers.Nadam(0.05),
        "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        "schedule": lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.9)),
    }


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("make_model", "kind"),
    [(Custom, "adam"), (sequential, "nadam"), (sequential, "loss scale"), (Custom, "schedule")],
)
def test_a_training_continues_that_builds_everything_in_its_first_step(
    tmp_path: Path, make_model: Callable[[], Any], kind: str
):
    make_optimizer = optimizers()[kind]
    keras.utils.set_random_seed(1)
    model, optimizer = make_model(), make_optimizer()
    step = stepper(model, optimizer)
    for _ in range(2):
        step()
    path = rx.Checkpoint(model=model, optimizer=optimizer).write(tmp_path / "c")
    expected = [step() for _ in range(3)]

    keras.utils.set_random_seed(2)
    model, optimizer = make_model(), make_optimizer()
    status = rx.Checkpoint(model=model, optimizer=optimizer).restore(path)
    with pytest.raises(UnmatchedError, match=r"'model' .* is not built"):
        status.assert_consumed()
    step = stepper(model, optimizer)
    np.testing.assert_allclose([step() for _ in range(3)], expected, rtol=1e-6)
    assert status.assert_consumed() is status


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "scope", [None, lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]), lambda: rx.FullyShardedStrategy(min_size=1)]
)
@pytest.mark.parametrize("how", ["build", "call"])
def test_a_model_has_its_values_when_build_or_the_first_call_ends(trained: Any, scope: Any, how: str):
    old, _, path = trained
    strategy = scope() if scope else rx.get_strategy()
    with strategy.scope():
        model, optimizer = sequential(), keras.optimizers.Adam()
        status = rx.Checkpoint(model=model, optimizer=optimizer).restore(path)
        assert int(optimizer.iterations) == 7  # what is there already has its value at once
        if how == "build":
            model.build((None, 4))
        else:
            np.testing.assert_array_equal(model(X), old(X))
        for variable, expected in zip(model.variables, old.variables, strict=True):
            np.testing.assert_array_equal(variable, expected)
        with pytest.raises(UnmatchedError, match=r"'optimizer' \(Adam\) is not built"):
            status.assert_consumed()
        status.assert_existing_objects_matched().assert_nontrivial_match().expect_partial()
        optimizer.build(model.trainable_variables)
        status.assert_consumed()


def test_fit_builds_and_continues(trained: Any):
    old, old_optimizer, path = trained
    fitted = []
    for restores in (False, True):
        model, optimizer = (sequential(), keras.optimizers.Adam()) if restores else (old, old_optimizer)
        if restores:
            status = rx.Checkpoint(model=model, optimizer=optimizer).restore(path)
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(X, X[:, :2], batch_size=4, epochs=1, shuffle=False, verbose=0)
        fitted.append([np.asarray(v) for v in model.variables] + [np.asarray(v) for v in optimizer.variables])
    status.assert_consumed()
    for found, expected in zip(fitted[1], fitted[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_run_on_replicas_builds_and_continues(tmp_path: Path):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = Custom()
        expected = np.asarray(model(X))
    path = rx.Checkpoint(model=model).write(tmp_path / "c")
    with strategy.scope():
        model = Custom()
    rx.Checkpoint(model=model).restore(path)
    [batch] = strategy.distribute_dataset([X])
    found = strategy.gather(strategy.run(lambda x: model(x), args=(batch,)), axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Assigning(keras.layers.Layer):
    """Its `build` assigns what it makes: a number, and a copy of another variable."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="zeros")
        self.shift = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.scale.assign(7.0)
        self.shift.assign(self.scale + 1)

    def call(self, x: Any) -> Any:
        return x * self.scale + self.shift


class Copying(keras.optimizers.SGD):
    """Its `build` copies the weights, as `ScheduleFreeAdamW` does; its update gives them back."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.copies = [self.add_variable_from_reference(variable, "copy") for variable in variables]
        for copy, variable in zip(self.copies, variables, strict=True):
            copy.assign(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign(variable, self.copies[self._get_variable_index(variable)])


@pytest.mark.daily(4)
@pytest.mark.parametrize("how", ["eager", "run", "function", "run in function", "run_eagerly"])
@pytest.mark.parametrize("devices", [1, 2])
def test_restored_values_win_over_what_build_assigns(tmp_path: Path, devices: int, how: str):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    with strategy.scope():
        layer, optimizer, weight = Assigning(), Copying(0.1), keras.Variable(np.float32(1))
    layer.build((None, 4))
    layer.scale.assign(3.0)
    layer.shift.assign(1.0)
    optimizer.build([weight])
    optimizer.copies[0].assign(5.0)
    path = rx.Checkpoint(layer=layer, optimizer=optimizer).write(tmp_path / "c")
    with strategy.scope():
        layer, optimizer = Assigning(), Copying(0.1)
    status = rx.Checkpoint(layer=layer, optimizer=optimizer).restore(path)

    def step(x: Any) -> Any:
        optimizer.apply([weight * 0], [weight])
        return layer(x)

    [batch] = strategy.distribute_dataset([np.ones((4, 4), "float32")])

    def run(batch: Any) -> Any:
        return strategy.run(step, args=(batch,))

    rx.config.run_eagerly(how == "run_eagerly")
    try:
        for _ in range(2):
            if how == "eager":
                found = layer(np.ones((4, 4), "float32"))
                optimizer.apply([np.float32(0)], [weight])
            elif how == "function":
                found = rx.function(step)(np.ones((4, 4), "float32"))
            else:
                found = strategy.gather((rx.function(run) if how == "run in function" else run)(batch), axis=0)
            np.testing.assert_array_equal(found, np.full((4, 4), 4.0))
    finally:
        rx.config.run_eagerly(False)
    assert [float(v.numpy()) for v in (layer.scale, layer.shift, optimizer.copies[0], weight)] == [3.0, 1.0, 5.0, 5.0]
    status.assert_consumed()


def test_a_model_that_is_built_as_another_one_is_refused_when_it_is(trained: Any):
    *_, path = trained
    other = keras.Sequential([keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam()
    rx.Checkpoint(model=other, optimizer=optimizer).restore(path)
    with pytest.raises(CheckpointError, match=r"'model' was built and is not as .*Only in the checkpoint: \['model/2'"):
        other.build((None, 4))
    wider = sequential()
    rx.Checkpoint(model=wider, optimizer=optimizer).restore(path)
    with pytest.raises(CheckpointError, match=r"'model/1' has shape \(4, 6\).*expected \(5, 6\)"):
        wider.build((None, 5))


def test_what_waits_is_written_again(trained: Any, tmp_path: Path):
    old, _, path = trained
    first = rx.Checkpoint(model=sequential(), optimizer=keras.optimizers.Adam())
    first.restore(path)
    again = first.write(tmp_path / "again")
    model, optimizer = sequential(), keras.optimizers.Adam()
    model.build((None, 4))
    optimizer.build(model.trainable_variables)
    rx.Checkpoint(model=model, optimizer=optimizer).restore(again).assert_consumed()
    np.testing.assert_array_equal(model.get_weights()[0], old.get_weights()[0])


@pytest.mark.parametrize("writer", ["checkpoint", "manager"])
def test_what_waits_belongs_to_the_object_and_any_checkpoint_writes_it(trained: Any, tmp_path: Path, writer: str):
    """Also under other names, in a dict."""
    old, old_optimizer, path = trained
    model, optimizer = sequential(), keras.optimizers.Adam()
    rx.Checkpoint(model=model, optimizer=optimizer).restore(path)
    state = {"m": model, "o": optimizer}
    if writer == "checkpoint":
        again = rx.Checkpoint(state=state).write(tmp_path / "again")
    else:
        with rx.CheckpointManager(tmp_path / "run", objects={"state": state}) as manager:
            manager.save(1)
        again = rx.latest_checkpoint(tmp_path / "run")
    model, optimizer = sequential(), keras.optimizers.Adam()
    status = rx.Checkpoint(state={"m": model, "o": optimizer}).restore(again)
    model.build((None, 4))
    optimizer.build(model.trainable_variables)
    status.assert_consumed()
    for found, expected in zip(
        [*model.variables, *optimizer.variables], [*old.variables, *old_optimizer.variables], strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_an_object_that_is_not_built_and_waits_for_nothing_is_not_written(trained: Any, tmp_path: Path):
    """Its counter and seeds alone would be a checkpoint that lacks the rest."""
    *_, path = trained
    for name, target in {"optimizer": keras.optimizers.Adam(), "model": sequential()}.items():
        checkpoint = rx.Checkpoint(**{name: target})
        with pytest.raises(CheckpointError, match=rf"'{name}' .* is not built.*call {name}\.build"):
            checkpoint.write(tmp_path / name)
        assert not (tmp_path / name).exists()
    partial = rx.Checkpoint(model=sequential(), optimizer=keras.optimizers.Adam(), other=keras.optimizers.Adam())
    partial.restore(path, partial=True)
    with pytest.raises(CheckpointError, match=r"'other' .* is not built"):
        partial.write(tmp_path / "partial")
    del partial.objects["other"]
    partial.write(tmp_path / "partial")


def test_what_makes_no_variables_of_its_own_is_written_as_it_is(tmp_path: Path):
    """A layer without weights, and a model around others that is never called itself."""

    class Around(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

    class Net:
        def __init__(self) -> None:
            self.flatten, self.flip, self.model = keras.layers.Flatten(), keras.layers.RandomFlip(seed=1), Around()

    net = Net()
    path = rx.Checkpoint(net=net).write(tmp_path / "c")
    again = Net()
    rx.Checkpoint(net=again).restore(path).assert_consumed()
    np.testing.assert_array_equal(again.model.inner.get_weights()[0], net.model.inner.get_weights()[0])


def test_a_build_that_makes_more_variables_than_the_checkpoint_has_is_refused(tmp_path: Path):
    """A checkpoint of plain SGD holds a counter and a rate; one of a model without weights nothing but a seed."""
    weight = keras.Variable(np.float32(1))
    plain = keras.optimizers.SGD()
    plain.build([weight])
    dropout = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
    path = rx.Checkpoint(optimizer=plain, model=dropout).write(tmp_path / "c")
    for partial in (False, True):
        optimizer = keras.optimizers.SGD(momentum=0.9)
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        rx.Checkpoint(optimizer=optimizer, model=model).restore(path, partial=partial)
        if partial:
            optimizer.build([weight])
            model(X)
            continue
        with pytest.raises(CheckpointError, match=r"'optimizer' was built .*only in the object: \['optimizer/2'\]"):
            optimizer.apply([np.float32(0)], [weight])
        with pytest.raises(CheckpointError, match=r"'model' was built .*only in the object: "):
            model(X)
    again = keras.optimizers.SGD()
    status = rx.Checkpoint(optimizer=again).restore(path, partial=True)
    rx.Checkpoint(optimizer=keras.optimizers.SGD(), model=dropout).restore(path).assert_consumed()
    again.build([weight])
    status.assert_nontrivial_match()


def test_an_object_that_could_not_take_its_values_stays_refused_until_it_is_restored(trained: Any, tmp_path: Path):
    *_, path = trained
    wider, weight = sequential(), keras.Variable(np.ones((7, 7), "float32"))
    optimizer = keras.optimizers.Adam()
    checkpoint = rx.Checkpoint(model=wider, optimizer=optimizer)
    status = checkpoint.restore(path)
    x = np.ones((2, 5), "float32")
    calls = [
        lambda: wider(x),
        lambda: rx.function(lambda y: wider(y))(x),
        lambda: wider.build((None, 5)),
        lambda: wider(X),
    ]
    for call in calls:
        with pytest.raises(CheckpointError, match=r"'model/1' has shape \(4, 6\).*expected \(5, 6\)"):
            call()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="'optimizer' was built and is not as"):
            optimizer.apply([np.zeros((7, 7), "float32")], [weight])
    with pytest.raises(UnmatchedError, match=r"expected \(5, 6\).*'optimizer' was built and is not as"):
        status.assert_consumed()
    with pytest.raises(CheckpointError, match=r"expected \(5, 6\)"):
        checkpoint.write(tmp_path / "c")
    with pytest.raises(CheckpointError, match="do not match"):
        checkpoint.restore(path)
    with pytest.raises(CheckpointError, match=r"expected \(5, 6\)"):
        wider(x)

    fitting = sequential()
    fitting.build((None, 5))
    newer = rx.Checkpoint(model=fitting).write(tmp_path / "newer")
    rx.Checkpoint(model=wider).restore(newer).assert_consumed()
    np.testing.assert_array_equal(wider(x), fitting(x))


def test_the_last_restore_counts(trained: Any, tmp_path: Path):
    old, _, path = trained
    for variable in old.variables:
        variable.assign(variable * 2)
    newer = rx.Checkpoint(model=old).write(tmp_path / "newer")
    model = sequential()
    first, second = rx.Checkpoint(model=model), rx.Checkpoint(model=model)
    first.restore(path, partial=True)
    second.restore(newer)
    model.build((None, 4))
    np.testing.assert_array_equal(model.get_weights()[0], old.get_weights()[0])
    model.trainable_variables[0].assign(model.trainable_variables[0] * 0)
    model.build((None, 4))  # nothing waits any more
    assert not model.get_weights()[0].any()
    second.write(tmp_path / "last")
