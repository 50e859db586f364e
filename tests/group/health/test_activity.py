from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from replicax.group.health.status import Status, status_from, status_of
from replicax.runtime.activity import COMPILE, IDLE, START, STEP, WAIT, Activity, exchange, now, phase
from replicax.runtime.calls import Calls


@pytest.fixture(autouse=True)
def activity() -> Iterator[Activity]:
    before = {name: getattr(now, name) for name in Activity.__slots__}
    now.at, now.calls, now.result, now.thread = (IDLE, time.monotonic()), 0, None, threading.get_ident()
    now.called, now.exchanging = 0.0, {}
    yield now
    for name, value in before.items():
        setattr(now, name, value)


class Array:
    """What the flags need of a `jax.Array`."""

    def __init__(self) -> None:
        self.ready: Any = False

    def is_ready(self) -> bool:
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready


def test_phases_nest_and_come_back():
    with phase("callback"):
        with contextlib.suppress(RuntimeError), phase("checkpoint"):
            assert now.at[0] == "checkpoint"
            raise RuntimeError
        assert now.at[0] == "callback"
    assert now.at[0] == IDLE


def test_a_phase_decorates():
    @phase("checkpoint")
    def save(again: bool) -> list[str]:
        return [now.at[0], *(save(False) if again else [])]

    assert save(True) == ["checkpoint", "checkpoint"]
    assert now.at[0] == IDLE


def test_other_threads_do_not_count():
    def run() -> None:
        with phase("checkpoint"), Calls("step", True).one():
            found.append((now.at[0], now.calls))

    found: list[tuple[str, int]] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(IDLE, 0)]


def test_calls_of_all_processes_are_counted():
    now.at = (START, 0.0)
    calls = Calls("train", shared=True)
    phases = []
    for _ in range(3):
        with calls.one() as call:
            assert call is not None
            call.prepare(None)  # no monitor runs
            phases.append(now.at[0])
    assert phases == [COMPILE, STEP, STEP]
    assert (now.calls, now.program, now.at[0]) == (3, "train", IDLE)


def test_a_program_of_this_process_only_marks_its_compilation():
    calls = Calls("local", shared=False)
    phases = []
    for _ in range(2):
        with calls.one() as call:
            assert call is None
            phases.append(now.at[0])
    assert (phases, now.calls) == ([COMPILE, IDLE], 0)


def test_a_result_that_is_not_ready_is_a_wait():
    array = Array()
    with Calls("train", shared=True).one() as call:
        assert call is not None
        call.sent(array)
    with phase("callback"):
        status = status_of()
        assert (status.phase, status.calls, status.completed) == ("callback", 1, 0)
        assert status.waiting is not None
        array.ready = True
        assert (status_of().waiting, status_of().completed) == (None, 1)
        array.ready = RuntimeError("deleted")
        assert status_of().waiting is None
    array.ready = False
    del array
    assert status_of().waiting is None


def test_waiting_for_the_others_data_is_a_wait():
    with phase("callback"), exchange("positions"):
        assert status_of().waiting is not None
        assert (status_of().phase, status_of().waits_at) == ("wait", "positions")
    assert (status_of().waiting, status_of().waits_at) == (None, "")


def test_a_wait_for_some_names_them():
    with phase(WAIT, "a barrier", [0, 2]):
        status = status_from(json.loads(json.dumps(dataclasses.asdict(status_of()))))
        assert (status.waits_at, status.waits_for) == ("a barrier", (0, 2))
        assert " s at 'a barrier'" in status.describe()
        with phase("compile"):
            assert status_of().waits_for == ()
        assert status_of().waits_for == (0, 2)


@pytest.mark.parametrize(
    ("waiting", "counts_in", "other"),
    [
        (lambda: exchange(), "input", "checkpoint"),
        (lambda: exchange("a save", [1], frozenset({"checkpoint"})), "checkpoint", "input"),
    ],
)
def test_another_threads_wait_counts_while_this_one_waits_for_it(waiting, counts_in, other):
    begun, done = threading.Event(), threading.Event()

    def fetch() -> None:
        with waiting():
            begun.set()
            assert done.wait(60)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert begun.wait(60)
    for phase_name in ("callback", other):
        with phase(phase_name):
            assert status_of().waiting is None
    with phase(counts_in):
        status = status_of()
        assert status.waiting is not None
        assert (status.waits_at, status.waits_for) in [("data", ()), ("a save", (1,))]
        done.set()
        thread.join()
        assert status_of().waiting is None


def test_a_wait_is_as_old_as_its_phase_not_as_the_last_program():
    assert now.called == 0.0  # No program has run: variables get their first values.
    with phase(WAIT):
        waiting = status_of().waiting
        assert waiting is not None
        assert waiting < 60  # and not the time since the machine was started
    now.called = time.monotonic() - 1000.0
    with phase(WAIT):
        waiting = status_of().waiting
        assert waiting is not None
        assert waiting < 60


def test_one_thread_that_has_its_data_does_not_end_the_wait_of_another():
    waits, done = threading.Event(), threading.Event()

    def other() -> None:
        with exchange():
            waits.set()
            assert done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert waits.wait(60)
    with exchange():
        pass
    with phase("input"):
        assert status_of().waiting is not None
    done.set()
    thread.join()
    with phase("input"):
        assert status_of().waiting is None


@pytest.mark.parametrize("document", [None, [], {}, {"phase": 3}, "status"])
def test_a_status_is_checked(document: Any):
    with pytest.raises(ValueError, match="not a status"):
        status_from(document)


def test_a_status_is_told_in_words():
    assert Status("input", 2.0, 4, 4).describe() == "phase 'input' for 2.0 s, last completed step 4"
    assert Status("step", 2.0, 5, 4, 2.0, "train").describe() == (
        "phase 'step' for 2.0 s, last completed step 4, in step 5 of 'train', waiting for 2.0 s"
    )
    assert Status("idle", ended="done").describe() == "ended (done), last completed step 0"
