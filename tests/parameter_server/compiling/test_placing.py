"""Which variable goes to which server."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax as rx
from replicax.errors import ArgumentError, ProgramError
from replicax.parameter_server.compiling.placing import VariablePlacer
from replicax.parameter_server.compiling.recording import Recorder
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.variables.remote import Home, home_of, variable_bytes
from replicax.program.pytrees import flatten_inputs
from tests.parameter_server.fakes import strategy_of

pytestmark = pytest.mark.usefixtures("fake_ray")


def traced(strategy, fn, *args):
    arrays, structure = flatten_inputs((args, {}))
    return TracedStep(fn, structure, arrays, strategy, Recorder(lambda kind, number: pytest.fail("no data")))


def trained(strategy, widths=(20, 16, 8), optimizer=None):
    """Returns a perceptron, its optimizer and its traced training step."""
    with strategy.scope():
        layers = [keras.layers.Dense(width) for width in widths[1:]]
        model = keras.Sequential([keras.Input(widths[:1]), *layers])
        optimizer = keras.optimizers.Adam() if optimizer is None else optimizer()
        optimizer.build(model.trainable_variables)

    def step(x):
        loss, gradients = rx.value_and_grad(lambda: (model(x) ** 2).mean(), model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return model, optimizer, traced(strategy, step, np.zeros((4, widths[0]), np.float32))


def servers_of(variable):
    return home_of(variable).servers


def test_weights_and_their_moments_are_on_one_server():
    with strategy_of(servers=3) as strategy:
        model, optimizer, step = trained(strategy)
        strategy.placer.place_for(step)
        moments = [optimizer._momentums, optimizer._velocities]
        for weight, momentum, velocity in zip(model.trainable_variables, *moments, strict=True):
            assert len(servers_of(weight)) == 1
            assert servers_of(weight) == servers_of(momentum) == servers_of(velocity)
        assert {servers_of(weight) for weight in model.trainable_variables} == {(0,), (1,), (2,)}


def test_what_belongs_together_is_grouped_by_the_update_not_by_the_shape():
    with strategy_of(servers=2) as strategy:
        with strategy.scope():
            a, b, ma, mb = (rx.Variable(np.zeros(4, np.float32), name=name) for name in ["a", "b", "ma", "mb"])

        def step(x):
            _, gradients = rx.value_and_grad(lambda: ((a.value + b.value * 2) * x).sum(), [a, b])()
            for weight, moment, gradient in zip([a, b], [ma, mb], gradients, strict=True):
                moment.assign(0.9 * moment.value + gradient)
                weight.assign_sub(moment.value)

        strategy.placer.place_for(traced(strategy, step, np.ones(4, np.float32)))
        assert servers_of(a) == servers_of(ma) != servers_of(b) == servers_of(mb)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_counter_and_the_learning_rate_have_a_copy_on_each_server(servers):
    with strategy_of(servers=servers) as strategy:
        _, optimizer, step = trained(strategy)
        strategy.placer.place_for(step)
        for variable in (optimizer.iterations, optimizer._learning_rate):
            assert home_of(variable).copies
            assert servers_of(variable) == tuple(range(servers))


def test_only_what_updates_on_several_servers_read_is_copied():
    with strategy_of(servers=2) as strategy:
        with strategy.scope():
            seen, w = rx.Variable(0, name="seen"), rx.Variable(np.zeros(4, np.float32), name="w")

        def step(x):
            seen.assign_add(1)
            _, (gradient,) = rx.value_and_grad(lambda: (w.value * x).sum(), [w])()
            w.assign_sub(gradient)

        strategy.placer.place_for(traced(strategy, step, np.ones(4, np.float32)))
        assert not home_of(seen).copies
        assert len(servers_of(seen)) == 1


@pytest.mark.parametrize("servers", [2, 3])
def test_servers_have_about_equally_much(servers):
    with strategy_of(servers=servers) as strategy:
        _, _, step = trained(strategy, (64, *[96, 64, 48] * 3))
        strategy.placer.place_for(step)
        loads = strategy.placer.bytes
        assert max(loads) <= 1.2 * min(loads)
        own = sum(variable_bytes(v) for v in {id(v): v for v in [*step.variables, *step.written]}.values())
        assert own <= sum(loads) <= own + 100 * servers


@pytest.mark.daily(2)
@pytest.mark.parametrize("servers", [2, 3, 4])
@given(st.lists(st.integers(10, 100), min_size=60, max_size=90))
def test_of_many_variables_servers_have_equally_much(servers, sizes):
    placer = VariablePlacer(servers)
    variables = [FakeVariable(i, size) for i, size in enumerate(sizes)]
    placer.place(sorted(variables, key=variable_bytes, reverse=True))
    assert max(placer.bytes) <= 1.2 * min(placer.bytes)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=60), servers=st.integers(1, 5))
def test_no_server_has_more_than_the_others_by_more_than_one_variable(sizes, servers):
    placer = VariablePlacer(servers)
    variables = [FakeVariable(i, size) for i, size in enumerate(sizes)]
    placer.place(sorted(variables, key=variable_bytes, reverse=True))
    assert sum(placer.bytes) == 4 * sum(sizes)
    assert max(placer.bytes) - min(placer.bytes) <= 4 * max(sizes)


class FakeVariable:
    dtype = _dtype = "float32"

    def __init__(self, number, size, parts=1):
        self.name, self._shape = f"v{number}", (size,)
        self._replicax_home = Home(number, None)
        self._replicax_home.shard(size, parts)


# Cut variables.


@pytest.mark.parametrize(("parts", "servers", "on"), [(2, 2, (0, 1)), (3, 3, (0, 1, 2)), (4, 2, (0, 1, 0, 1))])
def test_parts_go_to_servers_in_turn(parts, servers, on):
    placer = VariablePlacer(servers)
    variable = FakeVariable(0, 12, parts)
    placer.place([variable])
    assert servers_of(variable) == on
    assert placer.bytes == [48 // servers] * servers


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_cut_weight_and_its_moments_are_cut_alike(servers):
    with strategy_of(servers=servers, variable_partitioner=rx.FixedShardsPartitioner(3)) as strategy:
        model, optimizer, step = trained(strategy)
        strategy.placer.place_for(step)
        kernel = model.trainable_variables[0]
        moments = [v for v in optimizer.variables if tuple(v.shape) == tuple(kernel.shape)]
        assert len(moments) == 2
        for variable in (kernel, *moments):
            assert servers_of(variable) == servers_of(kernel)
            assert home_of(variable).bounds == ((0, 7), (7, 14), (14, 20))
        assert servers_of(kernel) == tuple(i % servers for i in (servers_of(kernel)[0] + k for k in range(3)))
        assert len(servers_of(optimizer.iterations)) == servers


def test_a_frozen_anchor_is_cut_like_its_weight():
    with strategy_of(servers=2, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        with strategy.scope():
            w, anchor = (rx.Variable(np.zeros(4, np.float32), name=name) for name in ["w", "anchor"])

        def step(x):
            _, (gradient,) = rx.value_and_grad(lambda: (w.value * x).sum(), [w])()
            w.assign_sub(gradient + 0.1 * (w.value - anchor.value))

        strategy.placer.place_for(traced(strategy, step, np.ones(4, np.float32)))
        assert not home_of(anchor).copies
        assert servers_of(anchor) == servers_of(w) == (0, 1)


def test_variables_that_are_cut_differently_cannot_update_each_other():
    def only_large(shape, dtype):
        return [2 if shape[0] > 4 else 1] + [1] * (len(shape) - 1)

    with strategy_of(servers=2, variable_partitioner=only_large) as strategy:
        _, _, step = trained(strategy, (6, 4), keras.optimizers.Adafactor)
        with pytest.raises(ProgramError, match=r"sharded differently.*velocity' in 2, .* in 1.*variable_partitioner"):
            strategy.placer.place_for(step)


# What the user says.


def test_the_user_chooses_servers():
    def choose(variable):
        return np.int64(1) if variable.path.endswith("kernel") else None

    with strategy_of(servers=2, variable_placement=choose) as strategy:
        model, _, step = trained(strategy)
        strategy.placer.place_for(step)
        assert [servers_of(v) for v in model.trainable_variables] == [(1,), (0,), (1,), (0,)]


@pytest.mark.parametrize("answer", [2, -1, "0", 0.0, True])
def test_there_is_no_such_server(answer):
    placer = VariablePlacer(2, lambda variable: answer)
    with pytest.raises(ArgumentError, match=r"`variable_placement` returned .* for 'v0'; there are 2 servers"):
        placer.place([FakeVariable(0, 4)])


# One function after another.


def test_what_is_placed_stays():
    with strategy_of(servers=2) as strategy:
        model, optimizer, step = trained(strategy)
        strategy.placer.place_for(step)
        before = [(servers_of(v), home_of(v).copies) for v in [*model.variables, *optimizer.variables]]
        loads = list(strategy.placer.bytes)
        strategy.placer.place_for(step)
        assert [(servers_of(v), home_of(v).copies) for v in [*model.variables, *optimizer.variables]] == before
        assert strategy.placer.bytes == loads


def test_an_evaluation_before_the_training_changes_nothing_for_the_worse():
    with strategy_of(servers=2) as strategy:
        model, optimizer, step = trained(strategy)
        evaluation = traced(strategy, lambda x: model(x) * optimizer.learning_rate, np.zeros((4, 20), np.float32))
        strategy.placer.place_for(evaluation)
        (rate,) = strategy.placer.to_copy(step)
        assert rate is optimizer._learning_rate
        before = sum(strategy.placer.bytes)
        strategy.placer.copy(rate)
        assert sum(strategy.placer.bytes) == before + 4
        assert strategy.placer.to_copy(step) == []
        strategy.placer.place_for(step)
        assert servers_of(rate) == (0, 1)


def test_a_counter_that_a_function_updates_on_one_server_is_not_copied_later():
    with strategy_of(servers=2) as strategy:
        _, optimizer, step = trained(strategy)
        counting = traced(strategy, lambda: optimizer.iterations.assign_add(1))
        strategy.placer.place_for(counting)
        with pytest.raises(ProgramError, match=r"iteration.* on every server.*Schedule the training step first"):
            strategy.placer.to_copy(step)


def test_variables_that_are_apart_cannot_come_together():
    with strategy_of(servers=2) as strategy:
        with strategy.scope():
            a, b = (rx.Variable(np.zeros(4, np.float32), name=name) for name in ["a", "b"])

        def step(x):
            _, (gradient,) = rx.value_and_grad(lambda: (a.value * x).sum(), [a])()
            b.assign(b.value + gradient)
            a.assign_sub(b.value)

        x = np.ones(4, np.float32)
        strategy.placer.place_for(traced(strategy, lambda x: x * a.value * b.value, x))
        assert servers_of(a) != servers_of(b)
        with pytest.raises(ProgramError, match=r"\['a', 'b'\].*Schedule the training step first"):
            strategy.placer.place_for(traced(strategy, step, x))
