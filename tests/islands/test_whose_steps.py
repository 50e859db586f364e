"""A program is a step of the strategy whose variables it assigns, in whatever scope and thread it is called."""

import functools
import threading

import keras
import numpy as np
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
