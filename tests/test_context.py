from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest

import replicax as rx
from replicax import context


def in_a_thread(fn):
    results = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    thread.join()
    return results[0]


def test_a_program_starts_outside_of_everything():
    assert context.current() == context.Context()


def test_entering_changes_the_named_fields_and_leaving_puts_them_back():
    with context.entered(strategy="a", manual_replicas=2) as outer:
        with context.entered(strategy="b") as inner:
            assert context.current() is inner
            assert (inner.strategy, inner.manual_replicas) == ("b", 2)
        assert context.current() is outer
    assert context.current() == context.Context()


def test_an_exception_leaves_the_context_too():
    with pytest.raises(KeyError), context.entered(strategy="a"):
        raise KeyError
    assert context.current().strategy is None


def test_a_context_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.current().strategy = "a"


def test_a_new_thread_starts_outside_of_everything():
    with context.entered(strategy="a"):
        assert in_a_thread(lambda: context.current().strategy) is None


def test_threads_do_not_see_each_other():
    inside, done = threading.Event(), threading.Event()

    def enter():
        with context.entered(strategy="other"):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=enter)
    thread.start()
    assert inside.wait(10)
    seen = context.current().strategy
    done.set()
    thread.join()
    assert seen is None


def test_each_asyncio_task_has_its_own_context():
    async def enter(name):
        with context.entered(strategy=name):
            await asyncio.sleep(0)
            return context.current().strategy

    async def both():
        return await asyncio.gather(enter("a"), enter("b"))

    assert asyncio.run(both()) == ["a", "b"]
    assert context.current().strategy is None


def test_eager_execution_is_switched_on_for_the_current_thread_only():
    assert not rx.config.runs_eagerly()
    rx.config.run_eagerly(True)
    try:
        assert rx.config.runs_eagerly()
        assert in_a_thread(rx.config.runs_eagerly) is False
    finally:
        rx.config.run_eagerly(False)
    assert not rx.config.runs_eagerly()


def test_what_is_traced_does_not_run_eagerly():
    rx.config.run_eagerly(True)
    try:
        with context.traced():
            assert not rx.config.runs_eagerly()
        assert rx.config.runs_eagerly()
    finally:
        rx.config.run_eagerly(False)
