"""Scope objects: one `with` block each, closed in the reverse order of their opening."""

from __future__ import annotations

import contextvars
import gc
import threading

import pytest

import replicax as rx
import replicax.context as context
from replicax.errors import ContextError


@pytest.fixture
def two(mirrored):
    return mirrored(2)


@pytest.fixture(params=["mirrored", "default"])
def strategy(request, two):
    return two if request.param == "mirrored" else rx.get_strategy()


def test_a_scope_object_is_for_one_block(strategy):
    scope = strategy.scope()
    with scope as entered:
        assert entered is strategy
    with pytest.raises(ContextError, match=r"strategy\.scope\(\) for each"), scope:
        pass
    assert not rx.has_strategy()


def test_inside_its_block_it_may_be_opened_again(two):
    scope = two.scope()
    with scope:
        with scope as inner:
            assert inner is two
        assert rx.get_strategy() is two
    assert not rx.has_strategy()


def test_a_scope_that_is_not_open_cannot_be_closed(strategy):
    with pytest.raises(ContextError, match="not open"):
        strategy.scope().__exit__(None, None, None)


def test_the_inner_scope_is_closed_first(two):
    def wrong_order():
        outer, inner = two.scope(), two.scope()
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(ContextError, match="inner one first"):
            outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        assert rx.get_strategy() is two
        outer.__exit__(None, None, None)
        assert not rx.has_strategy()

    contextvars.Context().run(wrong_order)


def test_an_error_in_the_block_is_not_hidden_by_one_about_scopes(two):
    def interrupted():
        with two.scope():
            two.scope().__enter__()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        interrupted()
    assert not rx.has_strategy()


def test_a_scope_is_closed_in_its_own_thread(two):
    found = []
    with two.scope() as strategy:
        scope = strategy.scope()
        scope.__enter__()

        def close():
            with pytest.raises(ContextError, match="thread"):
                scope.__exit__(None, None, None)
            found.append(True)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        scope.__exit__(None, None, None)
    assert found


def test_a_scope_that_nobody_keeps_stays_open(two):
    def opened():
        two.scope().__enter__()
        gc.collect()
        assert rx.get_strategy() is two
        context.current().scope.__exit__(None, None, None)
        assert not rx.has_strategy()

    contextvars.Context().run(opened)


def test_a_scope_decorates_functions(two):
    @two.scope()
    def current():
        return rx.get_strategy()

    assert [current(), current()] == [two, two]
    assert not rx.has_strategy()
