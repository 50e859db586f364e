from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax.runtime.activity as activity
from replicax import context
from replicax.data.prefetch import Prefetcher, prefetch

NAME = "replicax-prefetch"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def soon(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def counting(log=None, stop=10**9):
    for i in range(stop):
        if log is not None:
            log.append(i)
        yield i


@pytest.fixture(autouse=True)
def no_thread_left():
    assert not threads()
    yield
    if threads():
        gc.collect()
    assert soon(lambda: not threads())


def test_zero_is_synchronous():
    log = []
    items = prefetch(counting(log), 0)
    assert not threads()
    assert [next(items), next(items)] == log == [0, 1]


@pytest.mark.parametrize("size", [0, 2])
def test_a_process_that_waits_for_a_batch_says_so(size):
    turn, phases = threading.Semaphore(0), []

    def slow():
        for i in range(3):
            assert turn.acquire(timeout=5)
            assert soon(lambda: activity.now.at[0] in ("first batch", "input"))
            phases.append(activity.now.at[0])
            yield i

    before = activity.now.at[0]
    items = prefetch(slow(), size, activity.FIRST_BATCH)
    for i in range(3):
        turn.release()
        assert next(items) == i
        assert activity.now.at[0] == before
    assert next(items, None) is None
    assert phases == ["first batch", "input", "input"]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_items_come_in_order_and_end(size):
    items = prefetch(counting(stop=20), size)
    assert list(items) == list(range(20))
    assert next(items, None) is None
    assert not threads()


@pytest.mark.parametrize("size", [1, 3])
def test_it_works_ahead_and_not_further(size):
    log = []
    items = Prefetcher(counting(log), size)
    assert soon(lambda: len(log) == size)
    next(items)
    assert soon(lambda: len(log) == size + 1)
    time.sleep(0.02)
    assert len(log) == size + 1
    items.close()


def test_the_thread_is_a_named_daemon():
    items = Prefetcher(counting(), 1)
    assert [thread.daemon for thread in threads()] == [True]
    items.close()
    assert not threads()


def fails_at_three():
    yield from range(3)
    raise KeyError("lost")


@pytest.mark.parametrize("size", [0, 1, 5])
def test_an_exception_comes_after_the_items_before_it(size):
    items = prefetch(fails_at_three(), size)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="lost") as caught:
        next(items)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fails_at_three"
    assert next(items, None) is None


@pytest.mark.parametrize("size", [0, 2])
def test_closing_early_closes_the_source(size):
    closed = []

    def source():
        try:
            yield from counting()
        finally:
            closed.append(True)

    items = prefetch(source(), size)
    next(items)
    items.close()
    items.close()
    assert closed == [True]
    assert next(items, None) is None


def test_break_ends_the_thread():
    for i in Prefetcher(counting(), 2):
        if i == 3:
            break
    assert soon(lambda: not threads())


def test_an_exception_in_the_loop_ends_the_thread():
    def loop():
        for _ in Prefetcher(counting(), 2):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    gc.collect()
    assert soon(lambda: not threads())


def test_collection_of_a_cycle_ends_the_thread():
    cycle = [Prefetcher(counting(), 2)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert soon(lambda: not threads())


def test_an_item_is_not_kept_alive_by_the_thread():
    import weakref

    class Item:
        pass

    items = Prefetcher((Item() for _ in range(9)), 1)
    item = next(items)
    reference = weakref.ref(item)
    del item
    assert soon(lambda: reference() is None)
    items.close()


def test_close_does_not_wait_for_ever_for_a_stuck_source():
    release = threading.Event()

    def stuck():
        yield 0
        release.wait(30)

    items = Prefetcher(stuck(), 1)
    next(items)
    before = time.monotonic()
    items.close(0.05)
    assert time.monotonic() - before < 5
    release.set()


def test_a_source_that_fails_after_close_is_silent(capfd):
    def stubborn():
        try:
            yield from counting()
        finally:
            raise RuntimeError("while closing")

    items = Prefetcher(stubborn(), 1)
    next(items)
    items.close()
    assert capfd.readouterr().err == ""


def test_the_producer_runs_outside_of_every_context():
    with context.entered(strategy="mine", replica="first"):
        (found,) = Prefetcher((context.current() for _ in range(1)), 1)
    assert found == context.Context()


@pytest.mark.parametrize("enable", [True, False])
def test_dtypes_follow_the_consumers_x64(enable):
    with jax.enable_x64(enable):
        (found,) = Prefetcher((jnp.asarray(np.ones(1)) for _ in range(1)), 1)
    assert found.dtype == (np.float64 if enable else np.float32)


AT_EXIT = """
import jax, numpy as np
from replicax.data.prefetch import Prefetcher
batch = np.ones((8, 1 << 20), np.float32)
items = Prefetcher((jax.device_put(batch + i) for i in range(10**9)), 3)
next(items)
print("done")
"""


def test_the_interpreter_exits_in_the_middle_of_a_pass():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
