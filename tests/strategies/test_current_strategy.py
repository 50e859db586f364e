from __future__ import annotations

import threading

import keras
import pytest

import replicax as rx
from replicax.errors import ContextError


def where_am_i():
    return rx.has_strategy(), rx.in_cross_replica_context(), rx.get_replica_context() is None


def in_a_thread(fn):
    results = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    thread.join()
    return results[0]


def test_code_is_in_exactly_one_of_two_contexts(two):
    assert where_am_i() == (False, False, False)  # outside: the default strategy's only replica
    with two.scope():
        assert where_am_i() == (True, True, True)
        assert two.run(where_am_i) == (True, False, False)
    assert two.run(where_am_i) == (True, False, False)
    assert two.run(lambda: rx.get_replica_context().merge_call(lambda strategy: where_am_i())) == (True, True, True)
    assert two.update(rx.Variable(1.0), lambda v: where_am_i()) == (True, True, True)
    assert where_am_i() == (False, False, False)


def test_inside_run_the_strategy_is_current(two):
    assert two.run(lambda: (rx.get_strategy() is two, rx.get_replica_context().strategy is two)) == (True, True)
    assert rx.function(lambda: two.run(lambda: rx.get_strategy() is two))()


def test_an_exception_leaves_the_scope(two):
    with pytest.raises(KeyError), two.scope():
        raise KeyError
    assert not rx.has_strategy()


def test_a_new_thread_is_outside_of_every_strategy(two):
    with two.scope():
        assert in_a_thread(where_am_i) == (False, False, False)
    rx.set_strategy(two)
    try:
        assert in_a_thread(where_am_i) == (False, False, False)
    finally:
        rx.set_strategy(None)


def test_threads_hold_scopes_of_different_strategies_at_once(mirrored):
    barrier, seen = threading.Barrier(2), {}

    def work(count):
        with mirrored(count).scope():
            barrier.wait(10)
            v = rx.Variable(1.0)
            seen[count] = float(mirrored(count).run(lambda: v.assign_add(1.0))), v.strategy.num_replicas_in_sync

    threads = [threading.Thread(target=work, args=(count,)) for count in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {2: (2.0, 2), 3: (2.0, 3)}


# set_strategy.


def test_set_strategy_is_a_scope_that_stays_open(mirrored, two):
    rx.set_strategy(two)
    try:
        assert rx.get_strategy() is two
        assert rx.in_cross_replica_context()
        assert rx.Variable(1.0).strategy is two
        assert keras.distribution.distribution() is not None
        with two.scope():
            assert rx.get_strategy() is two
        rx.set_strategy(mirrored(3))
        assert rx.get_strategy() is mirrored(3)
        with pytest.raises(ContextError, match="mixed"), two.scope():
            pass
    finally:
        rx.set_strategy(None)
    assert not rx.has_strategy()
    assert keras.distribution.distribution() is None


def test_setting_the_default_strategy_sets_none(two):
    default = rx.get_strategy()
    rx.set_strategy(two)
    rx.set_strategy(default)
    assert not rx.has_strategy()


@pytest.mark.parametrize("already_set", [False, True])
def test_inside_a_scope_or_run_the_strategy_stands(two, already_set):
    if already_set:
        rx.set_strategy(two)
    try:
        with two.scope():
            for strategy in (None, two):
                with pytest.raises(ContextError, match="scope"):
                    rx.set_strategy(strategy)
            assert rx.get_strategy() is two
        with pytest.raises(ContextError, match="scope"):
            two.run(lambda: rx.set_strategy(None))
        assert rx.has_strategy() is already_set
    finally:
        rx.set_strategy(None)
        left = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
    assert left is None


def test_only_a_strategy_can_be_set():
    with pytest.raises(rx.errors.ArgumentError, match=r"takes a strategy.*got 3"):
        rx.set_strategy(3)
    assert not rx.has_strategy()
