"""The launcher's decisions about the workers of an elastic job."""

import math
import signal

import pytest
from hypothesis import given, strategies as st

from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode, is_restartable
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.processes.events import FoundSilent, MemberNews, SignalReceived, Started, TaskRun
from replicax.job.supervision.actions import Log, ShowWords, TellEnd
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.members import Members
from tests.job.supervision.attempt import PID, Attempt, again, began, elastic, incarnation, worker


def newcomer(job: Attempt, index: int, life: int = 0) -> TaskRun:
    """Starts a worker that is no member yet."""
    job.tell(Started(worker(index, life), PID))
    return worker(index, life)


def reasons(job: Attempt) -> list[str]:
    """Why each world is a new one."""
    return [action.arguments[-1] for action in job.actions if isinstance(action, Log) and action.event == "world"]


def test_a_lost_worker_starts_again_whichever_it_is():
    job = began()
    actions = job.lose(worker(0))
    assert again(actions) == [worker(0, 1)]
    assert TellEnd(incarnation(0)) in actions
    assert "worker 0 ended with exit code 137: ended by SIGKILL. It starts again (restart 1 of 2)" in job.said


def test_without_restarts_the_others_go_on_while_they_are_enough():
    job = began(restarts=0, fewest=2)
    assert again(job.lose(worker(0))) == []
    job.meet(2, (1, 0), (2, 0))
    assert job.state.code == 0
    job.lose(worker(1))
    assert job.state.code == 137
    assert "The job cannot go on: 1 of at least 2 workers are left, and no restart" in job.said


def test_with_restarts_fewer_than_the_least_wait_for_the_others():
    job = began(fewest=2)
    job.lose(worker(0))
    assert again(job.lose(worker(1))) == [worker(1, 1)]


def test_restarts_are_many_if_none_are_told():
    job = began(restarts=None)
    assert again(job.lose(worker(0))) == [worker(0, 1)]
    assert "restart 1 of" not in job.said


def test_nobody_is_left_who_holds_the_state():
    job = began()
    job.lose(worker(0))
    job.meet(2, (1, 0), (2, 0))
    job.lose(worker(1))
    assert job.state.code == 0
    job.lose(worker(2))
    assert job.state.code == 137
    assert "nobody is left who holds the state of the training" in job.said


def test_who_ends_after_a_signal_to_the_job_does_not_start_again():
    job = began()
    job.tell(SignalReceived(signal.SIGTERM))
    assert again(job.lose(worker(0), 143)) == []
    assert [action for action in job.actions if isinstance(action, TellEnd)] == []
    assert "starts again" not in job.said


@pytest.mark.parametrize("code", [2, 71, 72, 75])
def test_some_ends_of_a_member_end_the_job(code):
    job = began()
    job.lose(worker(0), code)
    assert job.state.code == code


def test_one_error_on_two_members_ends_the_job():
    job = began()
    assert again(job.lose(worker(0), 1, "ValueError: a")) == [worker(0, 1)]
    assert again(job.lose(worker(1), 1, "ValueError: a")) == []
    assert job.state.code == 1


def test_a_newcomer_that_cannot_join_is_tried_again_after_growing_pauses():
    job = began(restarts=0)
    newcomer(job, 3, 1)
    for life in range(1, 9):
        assert again(job.lose(worker(3, life), 71 if life == 1 else 1, "TimeoutError: nobody")) == []
        pause = job.state.due - job.now
        assert pause == min(2.0 ** (life - 1), 30.0)
        assert again(job.wait(pause)) == [worker(3, life + 1)]
    assert job.state.members.revived == 0


@pytest.mark.parametrize("code", [2, 72])
def test_a_newcomer_with_another_script_is_left_alone(code):
    job = began()
    words = "NotJoinedError: strategy.join was not called"
    actions = job.lose(newcomer(job, 3), code, words)
    assert again(actions) == []
    assert job.state.due == math.inf
    assert "another start would only repeat it" in job.said
    assert ShowWords(None, words) in actions


def test_a_newcomer_with_one_error_twice_is_left_alone():
    job = began()
    newcomer(job, 3)
    for life in (0, 1):
        job.lose(worker(3, life), 1, "ValueError: mine")
        assert len(again(job.wait(60))) == 1 - life


def test_a_member_that_says_why_nobody_can_go_on():
    job = began()
    job.lose(worker(0), 71, "replicax.errors.MeetingError: Only 1 workers are left.")
    assert job.state.code == 71
    assert "The job cannot go on: replicax.errors.MeetingError: Only 1 workers are left." in job.said


def test_who_leaves_uses_no_restart():
    job = began(restarts=0, fewest=3)
    why = "preempted: SIGTERM"
    actions = job.tell(MemberNews(worker(0), leaving=why))
    actions += job.lose(worker(0), 75)
    assert again(actions) == [worker(0, 1)]
    assert job.state.members.revived == 0
    actions += job.meet(2, (1, 0), (2, 0))
    assert [action for action in actions if isinstance(action, Log)] == [
        Log("leave", (incarnation(0), why)),
        Log("end", (incarnation(0), PID, 75, why)),
        Log("start", (incarnation(0, 1), PID, "")),
        Log("world", (2, (incarnation(1), incarnation(2)), f"worker 0 has left ({why})")),
    ]


def test_who_leaves_right_after_its_start_uses_one():
    job = began(restarts=0)
    job.now -= 59
    job.tell(MemberNews(worker(0), leaving="preempted"))
    assert again(job.lose(worker(0), 75)) == []
    assert job.state.code == 0


def test_a_silent_worker_is_killed_and_the_log_says_so():
    job = began()
    job.tell(FoundSilent("worker 1", 0))
    assert job.killed == [worker(1)]
    job.meet(2, (0, 0), (2, 0))
    assert reasons(job)[-1] == "worker 1 gave no sign of life"
    assert Log("end", (incarnation(1), PID, 137, "gave no sign of life")) in job.lose(worker(1))


def test_the_log_says_who_was_lost_is_back_and_has_joined():
    job = began()
    job.lose(worker(1))
    job.meet(2, (0, 0), (2, 0))
    job.meet(2, (0, 0), (2, 0))
    job.meet(1, (0, 0), (1, 0), (2, 0))  # News that come late.
    job.meet(3, (0, 0), (1, 1), (2, 0), (3, 0))
    assert reasons(job) == [
        "the job has begun",
        "worker 1 was lost (killed by signal 9)",
        "worker 1 is back, worker 3 has joined",
    ]


# The end.


def test_the_first_member_of_the_newest_world_decides_the_end():
    job = began()
    job.lose(worker(0))
    job.meet(2, (1, 0), (2, 0))
    job.lose(worker(1), 0, has_left=True)
    assert again(job.lose(worker(2))) == []  # Nothing depends on it any more.
    job.lose(worker(0, 1))
    assert job.state.is_over
    assert job.state.code == 0


def test_a_chief_that_is_lost_after_the_others_have_ended_fails_the_job():
    job = began()
    job.lose(worker(1), 0, has_left=True)
    job.lose(worker(0))
    assert job.state.code == 137


def test_a_chief_that_is_lost_before_the_others_end_without_another_world_fails_the_job():
    job = began(restarts=0)
    job.lose(worker(0))
    job.lose(worker(1), 0, has_left=True)
    job.lose(worker(2), 0, has_left=True)
    assert job.state.is_over
    assert job.state.first_failure.task == worker(0)
    assert "was the chief at the end and was lost" in job.said


def test_a_chief_that_is_killed_after_its_script_is_done():
    job = began(restarts=0)
    job.lose(worker(0), has_left=True)
    job.lose(worker(1), 0, has_left=True)
    job.lose(worker(2), 0, has_left=True)
    assert job.state.is_over
    assert job.state.code == 0


def test_newcomers_are_ended_when_the_training_is_done():
    job = began()
    late = newcomer(job, 3)
    job.lose(worker(0), 0, has_left=True)
    job.lose(worker(1), 0, has_left=True)
    assert job.killed == []
    job.lose(worker(2), 0, has_left=True)
    assert job.killed == [late]
    job.lose(late)
    assert job.state.is_over
    assert job.state.code == 0


def test_an_end_with_0_in_the_middle_is_a_loss():
    job = began()
    assert again(job.lose(worker(0), 0)) == [worker(0, 1)]
    assert any(isinstance(each, Log) and "in the middle of the job" in str(each.arguments) for each in job.actions)


# Workers that wait for a machine with room.


def waiting(job: Attempt, index: int, life: int = 0) -> TaskRun:
    """Has a worker wait for a machine with room."""
    job.tell(Started(worker(index, life), 0, waits=True))
    return worker(index, life)


def test_the_loss_of_a_machine_is_that_of_a_member_whatever_its_exit_code():
    job = began()
    actions = job.lose(worker(1), ExitCode.PEER_LOST, "replicax: worker:1 is gone.", is_lost=True)
    assert again(actions) == [worker(1, 1)]
    assert (
        "worker 1 ended with the loss of its machine. It starts again when there is room (restart 1 of 2)" in job.said
    )
    job.meet(2, (0, 0), (2, 0))
    assert reasons(job)[-1] == "worker 1 was lost (nothing is heard of its machine)"


def test_who_waits_for_room_is_none_of_those_who_are_left():
    job = began(restarts=0, fewest=2)
    waiting(job, 3)
    job.lose(worker(0))
    job.meet(2, (1, 0), (2, 0))
    job.lose(worker(1))
    assert "The job cannot go on: 1 of at least 2 workers are left" in job.said


def test_one_that_has_waited_begins_as_a_newcomer():
    job = began()
    late = waiting(job, 3)
    assert not [action for action in job.actions if isinstance(action, Log) and action.arguments[0] == late.incarnation]
    job.tell(Started(late, PID, "host7"))
    assert "worker 3 starts on host7." in job.said
    before = job.state
    assert job.tell(Started(late, PID, "host7")) == []  # Whoever is slow may say so twice.
    assert job.state == before
    job.meet(2, (0, 0), (1, 0), (2, 0), (3, 0))
    assert reasons(job)[-1] == "worker 3 has joined"


def test_nobody_waits_for_room_when_the_training_is_done():
    job = began()
    late, words = waiting(job, 3), job.said
    job.lose(worker(0), 0, has_left=True)
    assert job.killed == [late]
    job.lose(late, 137, is_lost=True)
    for each in (worker(1), worker(2)):
        job.lose(each, 0, has_left=True)
    assert (job.state.is_over, job.state.code, job.said) == (True, 0, words)


def test_the_end_of_one_that_waits_is_no_failure_of_a_job_that_is_told_to_end():
    job = began()
    late = waiting(job, 3)
    job.tell(SignalReceived(15))
    job.lose(late, 143, is_lost=True)
    for index in range(3):
        job.lose(worker(index), 0, has_left=True)
    assert (job.state.is_over, job.state.code) == (True, 0)


def test_a_stopped_worker_that_wakes_after_the_others_left_it_out_ends_alone():
    job = began()
    job.tell(FoundSilent("worker 1", 0))
    job.lose(worker(1), 71)
    assert job.state.code == 0
    job = began()
    job.meet(2, (0, 0), (2, 0))
    job.lose(worker(1), 71)
    assert job.state.code == 0


@pytest.mark.parametrize("workers", [1, 5])
def test_a_job_begins_with_a_number_of_workers_in_its_range(workers):
    with pytest.raises(LaunchError, match=f"from 2 to 4, got {workers}[.]"):
        elastic(fewest=2, workers=workers)


# The policy alone, whatever has happened before.

lives = st.builds(incarnation, st.integers(0, 3), st.integers(0, 2))
histories = st.lists(
    st.one_of(
        st.tuples(st.just("start"), lives),
        st.tuples(st.just("meet"), st.lists(lives, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("leave"), lives),
        st.tuples(st.just("silent"), lives),
    ),
    max_size=8,
)
failures = st.builds(
    lambda index, life, code, words: Failure(worker(index, life), code, 0.0, worker(index, life), words),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([1, 2, 70, 71, 72, 75, 137]),
    st.sampled_from(["", "ValueError: a", "TimeoutError: b"]),
)


def members_of(history):
    """The members after a history."""
    members = Members()
    for number, (what, who) in enumerate(history):
        if what == "meet":
            members, _ = members.entered(number + 1, who)
        elif what == "silent":
            members = members.silent(who)
        else:
            known = {"began": float(number)} if what == "start" else {"reason": "preempted"}
            members = members.with_worker(who, **known)
    return members


@given(histories, failures, st.lists(lives, max_size=4, unique=True), st.integers(0, 2), st.booleans())
def test_whatever_has_happened_the_policy_decides_as_it_says(history, failure, left, restarts, is_elastic):
    members = members_of(history)
    policy = ElasticPolicy(restarts, fewest=2, limits=ElasticRange(2, 4) if is_elastic else None)
    why, lost = policy.hindrance(members, failure, left), members[failure.task.incarnation]
    if members.are_any(left) and not lost.was_member:
        assert why == "", "A newcomer hinders nobody."
    elif not left or not is_restartable(failure.code):
        assert why
    found = policy.succession(members, failure, now=100.0)
    assert not (found.again and found.counts and members.revived >= restarts)
    assert found.pause == 0.0 or (found.could_not_join and 1.0 <= found.pause <= 30.0)
