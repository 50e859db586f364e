"""Training with variables over a mesh, and saving them."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.dtensor import (
    MATCH,
    UNSHARDED,
    DVariable,
    Layout,
    check_layout,
    create_mesh,
    enable_save_as_bf16,
    fetch_layout,
    relayout,
)
from replicax.errors import LayoutError, VariableError

# Gradients and training.


def test_gradients_have_the_variables_layout(mesh, by_x):
    kernel = DVariable(np.ones((8, 4)), layout=Layout(["x", "y"], mesh))
    unused = DVariable(np.ones(8), layout=by_x)
    data = np.arange(16.0, dtype=np.float32).reshape(2, 8)

    def gradients():
        return rx.value_and_grad(lambda: jnp.sum((data @ kernel.value) ** 2), {"a": kernel, "b": unused})()

    expected = jax.grad(lambda k: jnp.sum((data @ k) ** 2))(jnp.ones((8, 4)))
    for _, found in (gradients(), rx.function(gradients)()):
        assert found["b"] is None
        check_layout(found["a"], kernel.layout)
        np.testing.assert_allclose(found["a"], expected)


ROWS, INPUTS, HIDDEN, OUTPUTS = 16, 8, 8, 4
STEPS = 5
LAYOUTS = {  # batch, and the parameters: first kernel, its bias, second kernel
    "data_parallel": ([("x", "y"), UNSHARDED], [UNSHARDED, UNSHARDED], [UNSHARDED], [UNSHARDED, UNSHARDED]),
    "model_parallel": ([UNSHARDED, UNSHARDED], [UNSHARDED, "x"], ["x"], ["x", UNSHARDED]),
    "two_dimensions": (["x", UNSHARDED], [UNSHARDED, "y"], ["y"], ["y", UNSHARDED]),
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
}


def batch():
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, INPUTS)).astype(np.float32), rng.normal(size=(ROWS, OUTPUTS)).astype(np.float32)


def initial_parameters():
    rng = np.random.default_rng(1)
    return [
        rng.normal(size=shape).astype(np.float32) * 0.3 for shape in ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS))
    ]


def loss_of(parameters, x, y):
    hidden = jnp.tanh(x @ parameters[0] + parameters[1])
    return jnp.mean((hidden @ parameters[2] - y) ** 2)


def train(variables, optimizer, x, y):
    @rx.function
    def step(x, y):
        loss, gradients = rx.value_and_grad(lambda: loss_of([v.value for v in variables], x, y), variables)()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = [float(step(x, y)) for _ in range(STEPS)]
    assert step.num_programs == 1
    return losses


def assert_close(ours, references):
    for a, b in zip(ours, references, strict=True):
        assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.daily(3)
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_keras_optimizers_train_as_on_one_device(mesh, layouts, make_optimizer):
    batch_layout, *parameter_layouts = [Layout(specs, mesh) for specs in layouts]
    reference = [rx.Variable(value) for value in initial_parameters()]
    expected = train(reference, make_optimizer(), *batch())

    pairs = zip(initial_parameters(), parameter_layouts, strict=True)
    variables = [DVariable(value, layout=layout, name=f"p{i}") for i, (value, layout) in enumerate(pairs)]
    optimizer = make_optimizer()
    found = train(variables, optimizer, *(relayout(array, batch_layout) for array in batch()))

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert_close(variables, reference)
    for variable, layout in zip(variables, parameter_layouts, strict=True):
        assert variable.value.sharding == layout.to_sharding()
        slots = [slot for slot in optimizer.variables if f"{variable.name}_" in slot.path]
        assert slots
        for slot in slots:
            assert slot.value.sharding.is_equivalent_to(layout.to_sharding(), layout.rank)


@pytest.mark.daily(2)
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
def test_optax_trains_as_on_one_device(mesh, layouts):
    optimizer = optax.adamw(0.01)
    batch_layout, *parameter_layouts = [Layout(specs, mesh) for specs in layouts]

    def step(parameters, state, x, y):
        gradients = jax.grad(loss_of)(parameters, x, y)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    expected = initial_parameters()
    state = optimizer.init(expected)
    for _ in range(STEPS):
        expected, state = jax.jit(step)(expected, state, *batch())

    pairs = zip(initial_parameters(), parameter_layouts, strict=True)
    variables = [DVariable(value, layout=layout) for value, layout in pairs]
    state = optimizer.init([variable.value for variable in variables])
    check_layout(state[0].mu[0], parameter_layouts[0])

    @rx.function
    def train_step(state, x, y):
        parameters, state = step([variable.value for variable in variables], state, x, y)
        for variable, parameter in zip(variables, parameters, strict=True):
            variable.assign(parameter)
        return state

    x, y = (relayout(array, batch_layout) for array in batch())
    for _ in range(STEPS):
        state = train_step(state, x, y)
    assert_close(variables, expected)
    for variable, layout in zip(variables, parameter_layouts, strict=True):
        assert variable.value.sharding == layout.to_sharding()


# Saving.


def test_float32_variables_may_be_saved_as_bfloat16(by_x):
    variables = [DVariable(np.ones(8), layout=by_x, dtype=dtype) for dtype in ("float32", "float16", "int32")]
    assert [variable.save_as_bf16 for variable in variables] == [False] * 3
    enable_save_as_bf16(variables)
    assert [variable.save_as_bf16 for variable in variables] == [True, False, False]
    variables[0].save_as_bf16 = False
    assert not variables[0].save_as_bf16


def test_only_dvariables_may_be_and_then_all_or_none(variable):
    with pytest.raises(VariableError, match=r"Only a DVariable.*Variable 'Variable'"):
        enable_save_as_bf16([variable, rx.Variable(1.0)])
    assert not variable.save_as_bf16


def test_match_is_no_layout_to_live_in(mesh):
    with pytest.raises(LayoutError, match="match"):
        DVariable(np.ones(8), layout=Layout([MATCH], mesh))


def test_a_variable_is_a_dtensor_when_read(variable, by_x):
    assert fetch_layout(variable.read_value()) == by_x
    np.testing.assert_array_equal(variable.numpy(), np.arange(8.0))
    np.testing.assert_array_equal(variable[2:4] * 2, [4, 6])


def test_plain_variables_beside_stay_where_they_are_in_every_program(variable, mesh, compilations):
    total = rx.Variable(np.zeros(8, np.float32))

    @rx.function
    def add(x):
        total.assign_add(variable.value * x)

    replicated = Layout.replicated(mesh, 1).to_sharding()
    for x in (1.0, np.ones(8, np.float32)):
        add(x)
        assert total.value.sharding == replicated
    rx.function(lambda: total.assign(variable.value))()
    assert total.value.sharding == replicated
    with compilations() as compiled:
        add(1.0)
        total.assign(np.zeros(8))
        add(np.ones(8, np.float32))
    assert [line for line in compiled if "jit(add)" in line] == []
    np.testing.assert_array_equal(total, np.arange(8.0))


def test_it_shows_its_values_and_its_layout_once():
    layout = Layout(["x"], create_mesh([("x", 2)], devices=["cpu:0", "cpu:1"]))
    shown = str(DVariable([1.0, 2.0], layout=layout, name="w"))
    assert shown == "<DVariable 'w' shape=(2,) dtype=float32 Layout([x], Mesh(x=2, cpu)), value=[1., 2.]>"
    large = repr(DVariable(np.zeros((1000, 1000), "float32"), layout=Layout.replicated(layout.mesh, 2)))
    assert len(large) < 400
