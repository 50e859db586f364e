"""The launcher's decisions about the workers of an elastic job, with fakes."""

import json
import math
import types

import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import LaunchError
from replicax.job.processes.events import FoundSilent, MemberNews
from tests.job.launching.fake_members import Process, elastic, failure, process


def tells(job, number, *incarnations):
    """Lets the first of some incarnations tell of a world of them all."""
    job.members.hears(MemberNews(process(*incarnations[0]), number, incarnations), [])


def began(**options):
    """Returns a job whose workers 0, 1 and 2 work together, and their processes."""
    job = elastic(**options)
    workers = [process(index) for index in range(3)]
    for worker in workers:
        job.members.started(worker)
    job.now += 60
    tells(job, 1, (0, 0), (1, 0), (2, 0))
    return job, workers


def lines(folder):
    return [json.loads(line) for line in (folder / "members.jsonl").read_text().splitlines()]


def test_a_lost_worker_starts_again_whichever_it_is():
    job, (first, *others) = began()
    assert job.members.bears(failure(first), others)
    job.members.succeed(failure(first))
    (successor,) = job.members.start_due()
    assert (successor.task.index, successor.task.environment["REPLICAX_LIFE"]) == (0, "1")
    assert job.host.ended == [Incarnation(0, 0)]
    assert "worker 0 ended with exit code 137: ended by SIGKILL. It starts again" in job.out.getvalue()


def test_without_restarts_the_others_go_on_while_they_are_enough():
    job, (first, *others) = began(restarts=0, fewest=2)
    assert job.members.bears(failure(first), others)
    job.members.succeed(failure(first))
    assert job.members.start_due() == []
    tells(job, 2, (1, 0), (2, 0))
    assert not job.members.bears(failure(others[0]), others[1:])
    assert "The job cannot go on: 1 of at least 2 workers are left, and no restart" in job.out.getvalue()


def test_with_restarts_fewer_than_the_least_wait_for_the_others():
    job, (first, *others) = began(fewest=2)
    assert job.members.bears(failure(first), others)
    job.members.succeed(failure(first))
    assert job.members.bears(failure(others[0]), others[1:])


def test_restarts_are_many_if_none_are_told():
    job, (first, *others) = began(restarts=None)
    assert job.members.bears(failure(first), others)
    job.members.succeed(failure(first))
    assert len(job.members.start_due()) == 1
    assert "restart 1 of" not in job.out.getvalue()


def test_nobody_is_left_who_holds_the_state():
    job, (first, *others) = began()
    assert job.members.bears(failure(first), others)
    tells(job, 2, (1, 0), (2, 0))
    newcomer = process(0, 1)
    assert job.members.bears(failure(others[0]), [others[1], newcomer])
    assert not job.members.bears(failure(others[1]), [newcomer])
    assert "nobody is left who holds the state of the training" in job.out.getvalue()


@pytest.mark.parametrize("code", [2, 71, 72, 75])
def test_some_ends_of_a_member_end_the_job(code):
    job, (first, *others) = began()
    assert not job.members.bears(failure(first, code), others)


def test_one_error_on_two_members_ends_the_job():
    job, workers = began()
    for worker in workers:
        worker.last_words = "ValueError: a"
    assert job.members.bears(failure(workers[0], 1), workers[1:])
    assert not job.members.bears(failure(workers[1], 1), workers[2:])


def test_a_newcomer_that_cannot_join_is_tried_again_after_growing_pauses():
    job, workers = began(restarts=0)
    for incarnation in range(1, 9):
        newcomer = process(3, incarnation, words="TimeoutError: nobody")
        job.members.started(newcomer)
        assert job.members.bears(failure(newcomer, 71 if incarnation == 1 else 1), workers)
        job.members.succeed(failure(newcomer, 1))
        assert job.members.start_due() == []
        before, job.now = job.now, job.members.due
        assert job.now - before == min(2.0 ** (incarnation - 1), 30.0)
        (again,) = job.members.start_due()
        assert again.task.environment["REPLICAX_LIFE"] == str(incarnation + 1)
    assert job.members.revived == 0


@pytest.mark.parametrize("code", [2, 72])
def test_a_newcomer_with_another_script_is_left_alone(code):
    job, workers = began()
    newcomer = process(3, words="NotJoinedError: strategy.join was not called")
    job.members.started(newcomer)
    assert job.members.bears(failure(newcomer, code), workers)
    job.members.succeed(failure(newcomer, code))
    assert job.members.start_due() == []
    assert job.members.due == math.inf
    assert "another start would only repeat it" in job.out.getvalue()
    assert "strategy.join was not called" in job.out.getvalue()


def test_a_newcomer_with_one_error_twice_is_left_alone():
    job, workers = began()
    for incarnation in (0, 1):
        newcomer = process(3, incarnation, words="ValueError: mine")
        job.members.started(newcomer)
        assert job.members.bears(failure(newcomer, 1), workers)
        job.members.succeed(failure(newcomer, 1))
        job.now += 60
        assert len(job.members.start_due()) == 1 - incarnation


def test_a_member_that_says_why_nobody_can_go_on():
    job, (first, *others) = began()
    first.last_words = "replicax.errors.MeetingError: Only 1 workers are left."
    assert not job.members.bears(failure(first, 71), others)
    assert "The job cannot go on: replicax.errors.MeetingError: Only 1 workers are left.\n" in job.out.getvalue()


def test_who_leaves_uses_no_restart(tmp_path):
    job, (first, *others) = began(restarts=0, fewest=3, log_dir=tmp_path)
    job.members.hears(MemberNews(first, leaving="preempted: SIGTERM"), [first, *others])
    job.members.ended(first, 75, asked=False)
    assert job.members.bears(failure(first, 75), others)
    job.members.succeed(failure(first, 75))
    assert len(job.members.start_due()) == 1
    assert job.members.revived == 0
    tells(job, 2, (1, 0), (2, 0))
    told = [{key: value for key, value in line.items() if key != "time"} for line in lines(tmp_path)[-4:]]
    assert told == [
        {"event": "leave", "worker": 0, "life": 0, "reason": "preempted: SIGTERM"},
        {"event": "end", "worker": 0, "life": 0, "pid": 4, "code": 75, "reason": "preempted: SIGTERM"},
        {"event": "start", "worker": 0, "life": 1, "pid": 4},
        {
            "event": "world",
            "number": 2,
            "members": [1, 2],
            "lives": [0, 0],
            "why": "worker 0 has left (preempted: SIGTERM)",
        },
    ]


def test_who_leaves_right_after_its_start_uses_one():
    job, (first, *others) = began(restarts=0)
    job.now -= 59
    job.members.hears(MemberNews(first, leaving="preempted"), [first, *others])
    assert job.members.bears(failure(first, 75), others)
    job.members.succeed(failure(first, 75))
    assert job.members.start_due() == []


def test_a_silent_worker_is_killed_and_the_log_says_so(tmp_path):
    job, (first, *others) = began(log_dir=tmp_path)
    job.members.hears(FoundSilent("worker 1", 0), [first, *others])
    assert others[0].killed
    tells(job, 2, (0, 0), (2, 0))
    job.members.ended(others[0], 137, asked=False)
    *_, world, end = lines(tmp_path)
    assert world["why"] == "worker 1 gave no sign of life"
    assert end["reason"] == "gave no sign of life"


def test_the_log_says_who_was_lost_is_back_and_has_joined(tmp_path):
    job, workers = began(log_dir=tmp_path)
    job.members.ended(workers[1], 137, asked=False)
    tells(job, 2, (0, 0), (2, 0))
    tells(job, 2, (0, 0), (2, 0))
    tells(job, 3, (0, 0), (1, 1), (2, 0), (3, 0))
    why = [line["why"] for line in lines(tmp_path) if line["event"] == "world"]
    assert why == [
        "the job has begun",
        "worker 1 was lost (killed by signal 9)",
        "worker 1 is back, worker 3 has joined",
    ]


def test_the_log_says_who_was_at_the_end_of_its_script(tmp_path):
    job, (first, second, third) = began(log_dir=tmp_path)
    second.has_left = True
    job.members.hears(MemberNews(first, 2, ((0, 0), (2, 0))), [first, second, third])
    assert lines(tmp_path)[-1]["why"] == "worker 1 has come to the end of its script"


# The end.


def test_the_first_member_of_the_newest_world_decides_the_end():
    job, (first, second, third) = began()
    assert job.members.bears(failure(first), [second, third])
    tells(job, 2, (1, 0), (2, 0))
    second.has_left = True
    assert job.members.ended(second, 0, asked=False) == 0
    job.members.done(second, [third])
    assert job.members.bears(failure(third), [])  # Nothing depends on it any more.
    job.members.succeed(failure(third))
    assert job.members.start_due() == []
    assert job.members.verdict() is None


def test_a_chief_that_is_lost_after_the_others_have_ended_fails_the_job():
    job, (first, second, third) = began()
    job.members.done(second, [first, third])
    assert not job.members.bears(failure(first), [third])


def test_a_chief_that_is_lost_before_the_others_end_without_another_world_fails_the_job():
    job, (first, second, third) = began()
    assert job.members.bears(failure(first), [second, third])
    job.members.done(second, [third])
    job.members.done(third, [])
    assert job.members.verdict().process is first
    assert "was the chief at the end and was lost" in job.out.getvalue()


def test_a_chief_that_is_killed_after_its_script_is_done():
    job, (first, second, third) = began()
    first.has_left = True
    assert job.members.bears(failure(first), [second, third])
    job.members.done(second, [third])
    assert job.members.verdict() is None


def test_newcomers_are_ended_when_the_training_is_done():
    job, (first, second, third) = began()
    newcomer = process(3)
    job.members.done(first, [second, third, newcomer])
    assert not newcomer.killed
    job.members.done(second, [third, newcomer])
    job.members.done(third, [newcomer])
    assert newcomer.killed
    assert job.members.bears(failure(newcomer), [])


def test_an_end_with_0_in_the_middle_is_a_loss():
    job, (first, *_) = began()
    assert job.members.ended(first, 0, asked=False) == 1
    assert "in the middle of the job" in first.last_words


# Guests.


class JoinedWorker(Process):
    """A worker that wants to join."""

    host, is_guest = "afar", True

    def admit(self, index, environment):
        self.task = types.SimpleNamespace(type="worker", index=index, name=f"worker {index}", environment=environment)

    def refuse(self, why):
        self.why = why


def test_a_guest_gets_the_next_free_index_and_the_variables():
    job, workers = began()
    joined_worker = JoinedWorker(wanted=None)
    assert job.members.admits(joined_worker, workers)
    assert joined_worker.task.environment == {
        "REPLICAX_COORDINATOR": "127.0.0.1:7",
        "REPLICAX_MEETING": "127.0.0.1:7",
        "REPLICAX_NUM_PROCESSES": "4",
        "REPLICAX_PROCESS_ID": "3",
        "REPLICAX_ELASTIC": "1:4",
        "REPLICAX_LIFE": "0",
    }
    late = JoinedWorker(wanted=None)
    assert not job.members.admits(late, [*workers, joined_worker])
    assert late.why == "it has as many workers as it may have (--elastic 1:4)"


def test_a_guest_gets_its_index_back_as_another_life():
    job, workers = began()
    joined_worker = JoinedWorker(wanted=3)
    assert job.members.admits(joined_worker, workers[:2])
    assert joined_worker.task.index == 3
    again = JoinedWorker(wanted=3)
    assert job.members.admits(again, workers[:2])
    assert again.task.environment["REPLICAX_LIFE"] == "1"


def test_a_guest_that_is_lost_is_not_started_here():
    job, workers = began()
    joined_worker = JoinedWorker(wanted=None, last_words="", has_left=False)
    job.members.admits(joined_worker, workers)
    job.members.hears(MemberNews(joined_worker, started_at="afar"), [*workers, joined_worker])
    assert job.members.bears(failure(joined_worker, 129), workers)
    job.members.succeed(failure(joined_worker, 129))
    assert job.members.start_due() == []


def test_a_job_of_guests_waits_for_the_first():
    job = elastic(workers=0, address="127.0.0.1")
    assert job.members.awaits
    assert job.members.admits(JoinedWorker(wanted=None), [])
    assert not job.members.awaits


def test_a_stopped_worker_that_wakes_after_the_others_left_it_out_ends_alone():
    job, (first, *others) = began()
    job.members.hears(FoundSilent("worker 1", 0), [first, *others])
    assert job.members.bears(failure(others[0], 71), [first, others[1]])
    job, (first, *others) = began()
    tells(job, 2, (0, 0), (2, 0))
    assert job.members.bears(failure(others[0], 71), [first, others[1]])


@pytest.mark.parametrize("workers", [1, 5])
def test_a_job_begins_with_a_number_of_workers_in_its_range(workers):
    with pytest.raises(LaunchError, match=f"from 2 to 4, got {workers}[.]"):
        elastic(fewest=2, workers=workers)
