from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, strategies as st

from replicax.errors import ExitCode
from replicax.group.health.client import Client
from replicax.group.health.diagnosis import Limits, ProblemKind, WorkerObservation, diagnose
from replicax.group.health.peers import History, Peer
from replicax.group.health.status import Status
from replicax.runtime.activity import SLOW_PHASES, WAITING_PHASES

LIMITS = Limits(stall=10.0, slow=100.0)


def seen(index: int, status: Status | None, silent: float = 0.0, refusals: int = 0) -> WorkerObservation:
    return WorkerObservation(f"worker:{index}", f"host{index}:1", status, silent, refusals)


def waits(seconds: float, calls: int = 7, program: str = "step", fingerprint: str = "f") -> Status:
    return Status("step", seconds, calls, calls - 1, seconds, program, fingerprint)


def does(phase: str, seconds: float, calls: int = 6) -> Status:
    return Status(phase, seconds, calls, calls)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (waits(9), does("callback", 9)),  # not long enough
        (waits(9), does("callback", 90)),  # the wait has only begun
        (waits(90), does("callback", 9)),  # it has just come to something else
        (waits(90, calls=5), does("callback", 90, calls=6)),  # it has been there already
        (does("callback", 90), does("input", 90)),  # nobody waits
        (does("idle", 90), does("idle", 90)),
        (waits(90), does("compile", 90)),  # slow is not stuck
        (waits(90), does("checkpoint", 90)),
        (waits(90), does("start", 90)),
        (waits(90), does("first batch", 90)),
        (waits(90), None),  # never heard of: perhaps it cannot be reached
        (waits(9), waits(90)),  # one has made progress
        (waits(1), Status("idle", 90, 6, 6, ended="RuntimeError: x")),
        (waits(9), Status("leave", 5, 7, 7, ended="done")),  # It may have begun the step.
        (does("idle", 90), Status("idle", 90, 7, 7, ended="done")),
    ],
)
def test_no_alarm(one: Status, other: Status | None):
    assert diagnose([seen(0, one), seen(1, other)], LIMITS) is None
    assert diagnose([seen(0, other), seen(1, one)], LIMITS) is None


def test_a_call_that_a_worker_has_ended_without_is_named_soon():
    waiting = dataclasses.replace(waits(9), phase="wait", waits_at="barrier 'data'", order=(3, 1))
    ended = Status("leave", 5, 7, 7, ended="done", order=(2, 1))
    found = diagnose([seen(0, waiting), seen(1, ended)], LIMITS)
    assert found is not None
    assert found.kind is ProblemKind.ENDED
    assert """has ended, and others wait for it: worker:0 called "barrier 'data'"; call it on every""" in found.reason
    assert diagnose([seen(0, waiting), seen(1, dataclasses.replace(ended, order=(3, 1)))], LIMITS) is None


@pytest.mark.parametrize("phase", ["input", "callback", "idle"])
@pytest.mark.parametrize("calls", [6, 7])
def test_an_absent_worker_is_named_with_its_phase(phase: str, calls: int):
    found = diagnose([seen(0, waits(12)), seen(1, does(phase, 11.5, calls)), seen(2, waits(13))], LIMITS)
    assert found is not None
    assert found.kind is ProblemKind.ABSENT
    assert found.culprits == (1,)
    assert found.exit_code == ExitCode.STALLED
    assert f"worker:1 (host1:1) is alive, but does not come to where others wait for it. Now: phase {phase!r}" in (
        found.reason
    )
    assert "for 11.5 s, last completed step" in found.reason


def test_of_several_absent_workers_the_last_is_to_blame():
    workers = [seen(0, waits(20)), seen(1, does("callback", 20, 6)), seen(2, does("input", 20, 4))]
    found = diagnose(workers, LIMITS)
    assert found is not None
    assert found.culprits == (2,)


def test_a_device_that_computes_after_python_went_on_is_a_wait():
    fetching = Status("callback", 12.0, 7, 6, 12.0)  # A callback reads the loss of step 7.
    found = diagnose([seen(0, fetching), seen(1, does("callback", 13))], LIMITS)
    assert found is not None
    assert found.culprits == (1,)


@pytest.mark.parametrize("phase", sorted(SLOW_PHASES))
def test_slow_phases_have_a_limit_of_their_own(phase: str):
    assert diagnose([seen(0, waits(99)), seen(1, does(phase, 99))], LIMITS) is None
    found = diagnose([seen(0, waits(100)), seen(1, does(phase, 101))], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.SLOW, (1,))


def test_a_dead_worker_is_confirmed_once():
    assert diagnose([seen(0, waits(1)), seen(1, does("input", 0), 1.0, refusals=1)], LIMITS) is None
    found = diagnose([seen(0, waits(1)), seen(1, does("input", 0), 1.5, refusals=2)], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits, found.exit_code) == (ProblemKind.DEAD, (1,), ExitCode.PEER_LOST)
    assert "Last known: phase 'input'" in found.reason


@pytest.mark.parametrize("phase", ["compile", "step", "callback", "start"])
def test_a_worker_that_does_not_answer(phase: str):
    assert diagnose([seen(0, does("idle", 1)), seen(1, does(phase, 0), 9.9)], LIMITS) is None
    found = diagnose([seen(0, does("idle", 1)), seen(1, does(phase, 0), 10.1)], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.STOPPED, (1,))


def test_who_begins_to_wait_after_another_has_ended_waits_in_vain():
    waiting = Status("wait", 3.0, 6, 6, 3.0, waits_at="first values")
    found = diagnose([seen(0, waiting), seen(1, Status("leave", 4.0, 6, 6, ended="done"))], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.ENDED, (1,))


def test_while_bytes_move_a_wait_is_slow_and_not_in_vain():
    moving = [dataclasses.replace(waits(90), quiet=quiet) for quiet in (50.0, 9.0)]
    assert diagnose([seen(i, status) for i, status in enumerate(moving)], LIMITS) is None
    assert diagnose([seen(0, moving[1]), seen(1, does("callback", 90))], LIMITS) is None
    still = [dataclasses.replace(status, quiet=10.5) for status in moving]
    found = diagnose([seen(i, status) for i, status in enumerate(still)], LIMITS)
    assert found is not None
    assert found.kind is ProblemKind.DEADLOCK
    for_ever = [dataclasses.replace(status, waiting=101.0, seconds=101.0) for status in moving]
    found = diagnose([seen(i, status) for i, status in enumerate(for_ever)], LIMITS)
    assert found is not None
    assert found.kind is ProblemKind.DEADLOCK


def test_only_those_are_missed_that_others_wait_for():
    waiting = Status("wait", 90.0, 6, 6, 90.0, waits_at="a barrier", waits_for=(0, 1))
    compiles, idle = does("compile", 90), does("idle", 90)
    assert diagnose([seen(0, waiting), seen(1, compiles), seen(2, idle)], LIMITS) is None
    found = diagnose([seen(0, waiting), seen(1, idle), seen(2, idle)], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.ABSENT, (1,))


@pytest.mark.parametrize("how", ["done", "RuntimeError: x"])
def test_a_worker_that_has_ended_is_missed_where_others_wait(how: str):
    ended = seen(1, Status("idle", 1, 6, 6, ended=how), silent=50, refusals=5)
    assert diagnose([seen(0, does("callback", 90)), ended], LIMITS) is None
    found = diagnose([seen(0, waits(2.5)), ended], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits, found.exit_code) == (ProblemKind.ENDED, (1,), ExitCode.PEER_LOST)
    assert how in found.reason


LEAVES = Status("leave", 50.0, 7, 7, ended="done")


def test_who_does_not_answer_on_the_way_out_is_stopped_once_all_have_ended():
    stopped = seen(2, LEAVES, silent=10.5)
    assert diagnose([seen(0, LEAVES), seen(1, does("idle", 90)), stopped], LIMITS) is None
    assert diagnose([seen(0, LEAVES), seen(1, LEAVES), seen(2, LEAVES, silent=9.5)], LIMITS) is None
    assert diagnose([seen(0, LEAVES), seen(1, LEAVES), seen(2, LEAVES, silent=10.5, refusals=1)], LIMITS) is None
    found = diagnose([seen(0, LEAVES), seen(1, LEAVES), stopped], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.STOPPED, (2,))


def test_who_goes_on_after_the_others_have_ended_has_the_time_of_slow_phases():
    ended = dataclasses.replace(LEAVES, seconds=120.0)
    for ends, other in [(99.0, 120.0), (120.0, 99.0)]:
        leaves = dataclasses.replace(ended, seconds=ends)
        assert diagnose([seen(0, leaves), seen(1, does("idle", other))], LIMITS) is None
    found = diagnose([seen(0, ended), seen(1, does("idle", 101))], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.SLOW, (1,))
    failed = dataclasses.replace(ended, ended="RuntimeError: x")  # It fails whatever the others do.
    assert diagnose([seen(0, failed), seen(1, does("idle", 101))], LIMITS) is None


@pytest.mark.parametrize(
    ("statuses", "culprits", "said"),
    [
        ([waits(11), waits(12)], (0, 1), "all in the same step"),
        ([waits(11, 7), waits(12, 6)], (1,), "is behind the others"),
        ([waits(11, program="a"), waits(12, program="b")], (0, 1), "run different programs"),
        (
            [dataclasses.replace(waits(11), waits_at=where) for where in ("saving a", "barrier b")],
            (0, 1),
            r"wait at different calls, .* at 'saving a'.* at 'barrier b'",
        ),
    ],
)
def test_a_deadlock(statuses: list[Status], culprits: tuple[int, ...], said: str):
    found = diagnose([seen(i, status) for i, status in enumerate(statuses)], LIMITS)
    assert found is not None
    assert (found.kind, found.culprits) == (ProblemKind.DEADLOCK, culprits)
    assert re.search(said, found.reason)


_PHASES = st.sampled_from(sorted(SLOW_PHASES | WAITING_PHASES | {"input", "callback", "idle"}))
_STATUSES = st.builds(
    Status,
    _PHASES,
    st.floats(0, 9.9),
    st.integers(0, 3),
    st.integers(0, 3),
    st.none() | st.floats(0, 1.9),
    ended=st.sampled_from(["", "done"]),
)


@given(st.lists(st.none() | _STATUSES, min_size=1, max_size=5), st.floats(0, 9.9), st.integers(0, 1))
def test_nothing_short_is_an_alarm(statuses: list[Status | None], silent: float, refusals: int):
    assert diagnose([seen(i, status, silent, refusals) for i, status in enumerate(statuses)], LIMITS) is None


def test_a_history_counts_silence_from_the_last_answer():
    history = History("worker:1", "host1:1", time=100.0)
    assert history.seen(103.0).status is None
    history.answered(waits(1), 104.0)
    assert history.seen(107.0).silent == 0.0  # It has answered the last question.
    history.unheard()
    assert history.seen(107.0).silent == 3.0
    history.refused()
    history.refused()
    assert history.seen(108.0).refusals == 2
    history.forgive(110.0)
    assert (history.seen(112.0).silent, history.seen(112.0).refusals) == (2.0, 0)
    history.ended("done", (0, 0))
    assert not history.seen(113.0).runs
    assert not Peer(1, Client("127.0.0.1", 1, ""), History("worker:1", "", 0.0)).reachable
