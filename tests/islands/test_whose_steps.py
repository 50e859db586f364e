"""A program is a step of the strategy whose variables it assigns, in whatever scope and thread it is called."""

import functools
import threading

import keras
import numpy as np
import optax
import pytest

import replicax as rx
from tests.islands.threads import run_islands

local_sgd = functools.partial(rx.LocalSGDStrategy, 3)


def variables(strategy):
    with strategy.scope():
        return [rx.Variable(np.zeros(2, "float32")), keras.Variable(np.zeros(2, "float32"))]


@pytest.mark.parametrize("which", [0, 1])
def test_a_function_called_in_no_scope_is_a_step(which):
    def body(strategy):
        total = variables(strategy)[which]
        add = rx.function(lambda x: total.assign(total + x))
        for _ in range(4):
            add(strategy.island_index + 1.0)
        with pytest.raises(rx.errors.IslandDivergenceError):
            total.numpy()
        steps = strategy.steps, strategy.step_in_round
        strategy.synchronize()
        return steps, np.asarray(total).tolist()

    assert run_islands(body, local_sgd) == [((4, 1), [6.0, 6.0])] * 2


def test_scopes_may_be_mixed_and_a_function_may_train_for_two_strategies():
    def body(strategy):
        single = rx.LocalSGDStrategy(2, devices=[strategy.devices[0]])
        a, _ = variables(strategy)
        b, _ = variables(single)
        add = rx.function(lambda: (a.assign_add(np.ones(2)), b.assign_add(np.ones(2))))
        only_a = rx.function(lambda: a.assign_add(np.ones(2)))
        add()
        with strategy.scope():
            only_a()
        add()
        return strategy.steps, single.steps, strategy.step_in_round, single.step_in_round

    assert run_islands(body, local_sgd) == [(3, 2, 0, 0)] * 2


@pytest.mark.parametrize(
    "make", [local_sgd, functools.partial(rx.DiLoCoStrategy, 3, outer_optimizer=keras.optimizers.SGD(1.0))]
)
def test_no_update_of_a_thread_is_lost(make):
    strategy = make()
    total, _ = variables(strategy)
    add = rx.function(lambda: total.assign_add(np.ones(2)))

    def run():
        for _ in range(20):
            add()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    strategy.synchronize()
    assert strategy.steps == 80
    assert total.numpy().tolist() == [80.0, 80.0]


def test_what_python_assigns_between_rounds_must_be_the_same_on_all_islands():
    def body(strategy):
        total, _ = variables(strategy)
        add = rx.function(lambda: total.assign_add(np.ones(2)))
        for _ in range(3):
            add()
        total.assign([5.0, 5.0])
        add()
        strategy.synchronize()
        assert total.numpy().tolist() == [6.0, 6.0]
        total.assign([float(strategy.island_index)] * 2)
        with pytest.raises(rx.errors.WorkersDisagreeError, match="between two rounds"):
            strategy.synchronize()
        return strategy.steps

    assert run_islands(body, local_sgd) == [4, 4]


SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    "makes",
    [
        [functools.partial(rx.LocalSGDStrategy, 2), functools.partial(rx.DiLoCoStrategy, 2)],
        [functools.partial(rx.DiLoCoStrategy, 2, outer_optimizer=SGD(rate)) for rate in (0.5, 1.0)],
        [functools.partial(rx.DiLoCoStrategy, 2, outer_optimizer=optax.sgd(rate)) for rate in (0.5, 1.0)],
        [functools.partial(rx.DiLoCoStrategy, 4, fragments=parts) for parts in (1, 2)],
        [functools.partial(rx.LocalSGDStrategy, every) for every in (2, 3)],
        [functools.partial(rx.LocalSGDStrategy, 2, optimizer_state=state) for state in ("own", "mean")],
    ],
)
def test_islands_of_other_settings_are_refused_on_all_of_them(makes):
    def make(devices, meeting):
        return makes[meeting.index](devices=devices, meeting=meeting)

    def body(strategy):
        total, _ = variables(strategy)
        with pytest.raises(rx.errors.WorkersDisagreeError, match="settings of the strategy") as info:
            rx.function(lambda: total.assign_add(np.ones(2)))()
        return info.value.exit_code

    assert run_islands(body, make) == [72, 72]


@pytest.mark.daily(2)
@pytest.mark.parametrize("outer", [None, SGD(0.7, momentum=0.9, nesterov=True), optax.sgd(0.7, 0.9, nesterov=True)])
def test_the_outer_state_grows_with_variables_made_between_rounds(outer):
    def grown(late):
        strategy = rx.DiLoCoStrategy(2, outer_optimizer=outer)
        a, _ = variables(strategy)
        made = [] if late else variables(strategy)[:1]
        add = rx.function(lambda: [each.assign_add(np.ones(2)) for each in [a, *made]])
        add(), add()
        if late:
            made += variables(strategy)[:1]
            add = rx.function(lambda: [each.assign_add(np.ones(2)) for each in [a, *made]])
        add(), add()
        return [a.numpy(), made[0].numpy()]

    early, late = grown(False), grown(True)
    np.testing.assert_allclose(late[0], early[0], rtol=1e-6)  # Its momentum goes on.
    np.testing.assert_allclose(late[1], np.full(2, 0.7 * 1.9 * 2), rtol=1e-6)


def test_what_is_no_outer_optimizer_or_setting_is_refused():
    for given in (SGD, optax.sgd):
        with pytest.raises(rx.errors.ArgumentError, match="Call it"):
            rx.DiLoCoStrategy(2, outer_optimizer=given)
    with pytest.raises(rx.errors.ArgumentError, match="elastic"):
        rx.LocalSGDStrategy(2, elastic="no")
    for given in (None, [np.zeros(3)]):
        with pytest.raises(rx.errors.ArgumentError, match="pytree of variables"):
            rx.LocalSGDStrategy(2).gradient_memory.build(given)


def test_a_checkpoint_of_another_outer_optimizer_is_refused_before_anything_is_assigned(tmp_path):
    first, second = rx.LocalSGDStrategy(3), rx.DiLoCoStrategy(3)
    (a, _), (b, _) = variables(first), variables(second)
    rx.function(lambda: a.assign_add(np.ones(2)))()
    path = rx.Checkpoint(a=a, strategy=first).save(tmp_path / "c")
    with pytest.raises(rx.errors.CheckpointError, match="outer optimizer is the mean"):
        rx.Checkpoint(a=b, strategy=second).restore(path)
    assert b.numpy().tolist() == [0.0, 0.0]
