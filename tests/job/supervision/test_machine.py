"""What follows from the events of a job whose tasks all depend on each other."""

from __future__ import annotations

import signal

import pytest

from replicax.errors.exit_codes import ExitCode
from replicax.job.processes.events import (
    CallReturned,
    ClusterLeft,
    ScriptEnded,
    SignalReceived,
    TaskRun,
    WaitingForOthers,
)
from replicax.job.supervision.actions import Kill, Say, Send
from replicax.job.supervision.state import Ended
from tests.job.supervision.attempt import Attempt, worker

EVALUATOR = TaskRun("evaluator", 0)


def sent(job: Attempt) -> list[tuple[TaskRun, int]]:
    """The signals that were sent."""
    return [tuple(action) for action in job.actions if isinstance(action, Send)]


def test_the_others_are_asked_to_end_and_then_killed():
    job = Attempt()
    job.lose(worker(1), 1)
    assert sent(job) == []  # Another one may have failed before, which is noticed only now.
    job.wait(0.1)
    assert sent(job) == [(worker(0), signal.SIGTERM), (worker(2), signal.SIGTERM)]
    job.wait(4.9)
    assert job.killed == []
    job.wait(0.1)
    assert job.killed == [worker(0), worker(2)]
    assert job.state.code == 1


def test_the_first_in_time_is_the_first_failure():
    job = Attempt()
    job.lose(worker(1), 1)
    job.tell(ScriptEnded(worker(2), 3, job.now - 1.0))
    assert (job.state.first_failure.task, job.state.code) == (worker(2), 3)


def test_what_our_own_signals_cause_is_nobodys_fault():
    job = Attempt()
    job.lose(worker(1), 1)
    job.wait(0.1)
    job.now += 1.0
    job.lose(worker(0), 143)
    job.lose(worker(2), 1)  # It handles the signal, and its peers are gone.
    assert [failure.task for failure in job.state.failures] == [worker(1)]


def test_an_end_by_our_signal_is_not_the_first_failure_though_it_counts_from_a_moment_before():
    job = Attempt()
    job.tell(ScriptEnded(worker(0), 71, job.now, blames=("worker 2",)))
    job.wait(0.1)
    assert (worker(2), signal.SIGTERM) in sent(job)
    job.tell(Ended(worker(2), job.now - 0.03, 143, words="finished"))
    assert (job.state.first_failure.task, job.state.code) == (worker(0), 71)


def test_who_is_blamed_and_has_failed_is_the_first_failure():
    job = Attempt()
    job.tell(ScriptEnded(worker(0), 71, job.now, blames=("worker 2",)))
    assert job.state.first_failure.culprit == worker(2)
    job.lose(worker(2), 137)
    assert (job.state.first_failure.task, job.state.code) == (worker(2), 137)


def test_who_is_to_blame_by_its_own_report_was_gone_itself():
    job = Attempt()
    job.tell(ScriptEnded(worker(0), 71, job.now, blames=("worker 2",)))
    assert "another worker was gone" in job.state.first_failure.how
    job.tell(ScriptEnded(worker(2), 71, job.now, blames=("worker 2",)))
    assert job.state.first_failure.how == "exit code 71: it was gone, and others needed it"


def test_the_words_of_a_failure_are_those_of_the_end_of_its_process():
    job = Attempt()
    job.tell(ScriptEnded(worker(0), 1, job.now))
    job.lose(worker(0), 1, "ValueError: mine")
    assert job.state.first_failure.words == "ValueError: mine"


def test_those_that_watch_each_other_have_time_to_notice_a_loss():
    job = Attempt()
    job.tell(WaitingForOthers(worker(0), 3, watches=True))
    job.lose(worker(1), 137)
    job.wait(2.9)
    assert sent(job) == []
    job.wait(0.1)
    assert sent(job)


def test_preempted_workers_have_time_to_save():
    job = Attempt()
    job.lose(worker(0), ExitCode.RESUME)
    job.wait(59.0)
    assert sent(job) == []
    for index in (1, 2):
        job.lose(worker(index), ExitCode.RESUME)
    assert job.state.is_over
    assert job.state.code == ExitCode.RESUME


def test_who_ends_with_0_in_the_middle_has_failed():
    job = Attempt()
    job.tell(WaitingForOthers(worker(0), 3))
    job.lose(worker(1), 0, meets=3)
    job.wait(4.9)
    assert job.state.failures == ()
    job.wait(0.1)
    assert job.state.first_failure.how == "exit code 71: it was gone, and others needed it"


def test_who_ends_with_0_before_others_need_it_has_failed_at_once():
    job = Attempt()
    job.lose(worker(1), 0)
    assert job.state.failures == ()
    job.tell(WaitingForOthers(worker(0), 3))
    assert job.state.code == ExitCode.PEER_LOST


def test_who_leaves_the_cluster_first_has_done_well():
    job = Attempt()
    for index in range(3):
        job.tell(WaitingForOthers(worker(index), 3))
    for index in range(3):
        job.tell(ClusterLeft(worker(index)))
        job.lose(worker(index), 0, meets=3, has_left=True)
    assert job.state.is_over
    assert job.state.code == 0


def test_an_evaluator_is_waited_for_and_then_may_fail():
    job = Attempt(EVALUATOR)
    for index in range(3):
        job.lose(worker(index), 0)
    assert job.said == "The training is done; waiting for evaluator 0. Ctrl-C ends it."
    job.lose(EVALUATOR, 1)
    assert job.state.code == 1


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGINT, 30.0), (signal.SIGTERM, 30.0)])
def test_a_signal_is_passed_on_and_then_all_are_killed(number: int, seconds: float):
    job = Attempt()
    job.tell(SignalReceived(number))
    assert sent(job) == [(worker(index), number) for index in range(3)]
    job.wait(seconds)
    assert job.killed == [worker(0), worker(1), worker(2)]
    assert "not ended 30 s after the signal" in job.said
    assert job.state.code == 128 + number


def test_ctrl_c_again_kills_at_once():
    job = Attempt()
    job.tell(SignalReceived(signal.SIGTERM))
    actions = job.tell(SignalReceived(signal.SIGINT))
    assert actions == [Say("Killing all tasks."), *(Kill(worker(index)) for index in range(3))]


def test_a_signal_after_which_all_end_well_is_no_failure():
    job = Attempt()
    job.tell(SignalReceived(signal.SIGTERM))
    for index in range(3):
        job.lose(worker(index), 0)
    assert job.state.code == 0


def test_who_stays_after_all_calls_have_returned_is_named():
    job = Attempt(workers=2)
    job.tell(CallReturned(worker(0)))
    job.tell(CallReturned(worker(1), ("pump",)))
    job.lose(worker(0), 0)
    job.wait(5.0)
    assert "worker 1: its function has returned, but it waits for its threads that are no daemons (pump)" in job.said
