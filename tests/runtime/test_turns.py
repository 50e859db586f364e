"""Threads that use the same variables and devices: exact counts, no error, no deadlock."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

import replicax as rx

ROWS = np.arange(12, dtype=np.float32)
THREADS, CALLS = 4, 40


@pytest.fixture(params=[1, 3], ids=["one device", "three devices"])
def strategy(request):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(request.param)])


def in_threads(work, count=THREADS):
    """Calls `work` in threads at once; raises what one of them raises."""
    errors, start = [], threading.Barrier(count)

    def run():
        try:
            start.wait(60)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    for error in errors:
        raise error


def test_runs_functions_and_reductions_over_shared_variables(strategy):
    with strategy.scope():
        steps, total = rx.Variable(0.0), rx.Variable(np.zeros(1000, np.float32))
    (batch,) = strategy.distribute_dataset([ROWS])

    def step(rows):
        steps.assign_add(1.0)
        return rows.sum()

    def both(rows):
        steps.assign_add(1.0)
        total.assign(total + 2.0)
        return rows * steps

    @rx.function
    def add(x):
        total.assign_add(x + 0 * total)
        return total + 0.0

    def work():
        for _ in range(CALLS):
            assert float(strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None)) == ROWS.sum()
            assert strategy.gather(strategy.run(both, args=(batch,))).shape == ROWS.shape
            seen = np.asarray(add(3.0))
            assert seen.min() == seen.max()
            steps.assign_add(1.0)
            seen = total.numpy()
            assert seen.min() == seen.max()

    in_threads(work)
    assert float(steps.value) == 3 * THREADS * CALLS
    assert total.numpy().tolist() == [5.0 * THREADS * CALLS] * 1000


def test_programs_that_call_functions_of_the_host_which_run_programs_themselves(strategy):
    with strategy.scope():
        steps = rx.Variable(0)
    seen = rx.Variable(0)
    (batch,) = strategy.distribute_dataset([ROWS])
    note = rx.function(lambda: seen.assign_add(1))

    def on_host():
        assert int(steps.value) >= 0
        note()

    def step(rows):
        steps.assign_add(1)
        jax.debug.callback(on_host)
        return rows.sum()

    def work():
        for _ in range(10):
            strategy.run(step, args=(batch,))
            note()

    in_threads(work)
    jax.effects_barrier()
    assert int(steps.value) == 10 * THREADS
    assert int(seen.value) >= 2 * 10 * THREADS
