"""An optimizer's state has the layout of its parameter."""

import keras
import pytest

import replicax as rx


def explained(optimizer, make):
    strategy = rx.LayoutStrategy(mesh_shape=(2, 4), min_size=16)
    with strategy.scope():
        model = make()
        optimizer.build(model.trainable_variables)
    sharding = strategy.placement.variable_sharding
    return model, {variable.path: tuple(sharding(variable).spec) for variable in optimizer.variables}, sharding


def mlp():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, name="x"), keras.layers.Dense(32, name="x_x")])


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(amsgrad=True),
        lambda: keras.optimizers.SGD(momentum=0.9),
        lambda: keras.optimizers.Lamb(),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        lambda: keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
    ],
)
def test_slots_have_the_layout_of_the_parameter_that_they_are_named_after(make):
    model, specs, sharding = explained(make(), mlp)
    for parameter in model.trainable_variables:
        name = parameter.path.replace("/", "_")
        found = [spec for path, spec in specs.items() if path.rsplit("/", 1)[-1].startswith(f"{name}_")]
        assert found
        assert set(found) == {tuple(sharding(parameter).spec)}


def test_rows_and_columns_of_adafactor_have_the_rest_of_the_parameters_layout():
    optimizer = keras.optimizers.Adafactor()
    model, _, sharding = explained(optimizer, mlp)

    def padded(variable):
        spec = tuple(sharding(variable).spec)
        return (*spec, *[None] * (len(variable.shape) - len(spec)))

    kernels = [each for each in model.trainable_variables if each.name == "kernel"]
    slots = [each for each in optimizer.variables if each.name == "kernel"]
    assert len(slots) == 2 * len(kernels)
    for i, kernel in enumerate(kernels):
        row, column = slots[2 * i : 2 * i + 2]
        assert padded(row) == padded(kernel)[:1]
        assert padded(column) == padded(kernel)[1:]
    assert padded(kernels[1]) == ("replica", "model")  # Both of its dimensions are as long: the order decides.


def test_state_of_no_parameter_stays_whole():
    _, specs, _ = explained(keras.optimizers.Adam(), mlp)
    assert {spec for path, spec in specs.items() if path.endswith(("/iteration", "/learning_rate"))} == {()}
