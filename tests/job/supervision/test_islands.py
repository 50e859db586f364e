"""The launcher's decisions about islands, which may be lost alone."""

import pytest

from replicax.errors import LaunchError
from replicax.job.launching import Options
from replicax.job.plan import Job as PlannedJob, count_ports, make_plan
from replicax.job.processes.events import FoundSilent, TaskRun
from replicax.job.supervision.actions import TellEnd
from tests.job.supervision.attempt import Attempt, again, incarnation, worker


def islands(restarts=2, more=(), **options):
    return Attempt(*more, islands=True, restarts=restarts, **options)


def test_a_lost_island_starts_again_as_its_next_life():
    job = islands()
    actions = job.lose(worker(1))
    assert again(actions) == [worker(1, 1)]
    assert TellEnd(incarnation(1)) in actions
    assert again(job.lose(worker(1, 1))) == [worker(1, 2)]
    assert job.state.members.revived == 2


@pytest.mark.parametrize("code", [2, 71, 72])
def test_what_a_restart_would_repeat_ends_the_job(code):
    job = islands()
    job.lose(worker(1), code)
    assert job.state.code == code


def test_the_same_error_on_a_second_island_ends_the_job():
    job = islands(restarts=9)
    assert again(job.lose(worker(1), 1, "ValueError: a"))
    assert again(job.lose(worker(1, 1), 1, "ValueError: b"))
    assert not again(job.lose(worker(2), 1, "ValueError: b"))
    assert job.state.code == 1


def test_without_restarts_the_others_go_on_if_they_are_enough():
    job = islands(0)
    job.lose(worker(1))
    assert job.state.code == 137
    job = islands(0, min_workers=2)
    assert again(job.lose(worker(1))) == []
    assert job.state.code == 0
    job.lose(worker(2))
    assert job.state.code == 137


def test_nobody_is_left():
    job = islands(workers=1, more=[TaskRun("evaluator", 0)])
    job.lose(worker(0))
    assert job.state.code == 137


def test_an_evaluator_is_no_island():
    job = islands(more=[TaskRun("evaluator", 0)])
    job.lose(TaskRun("evaluator", 0))
    assert job.state.code == 137


def test_what_ends_after_the_chief_was_not_needed():
    job = islands()
    job.lose(worker(0), 0)
    assert again(job.lose(worker(1), 71)) == []
    assert "it came when the training was done" in job.said
    assert job.state.code == 0


def test_a_silent_island_is_killed_unless_it_has_a_successor():
    job = islands()
    job.lose(worker(2))
    job.tell(FoundSilent("worker 1", 0))
    job.tell(FoundSilent("worker 2", 0))
    assert job.killed == [worker(1)]


def test_each_island_knows_where_the_meeting_is():
    options = Options("train.py", workers=2, islands=True)
    assert count_ports(options, 2) == 3
    inherited = {"REPLICAX_MEETING": "127.0.0.1:9", "REPLICAX_LIFE": "7"}
    plan = make_plan(PlannedJob(options, inherited, "token", 1), 2, 0, [5001, 5002, 5003])
    found = [(task.environment["REPLICAX_MEETING"], task.environment["REPLICAX_LIFE"]) for task in plan.tasks]
    assert found == [("127.0.0.1:5003", "0")] * 2
    alone = make_plan(PlannedJob(Options("train.py", workers=2), inherited, "token", 1), 2, 0, [5001, 5002])
    assert not {"REPLICAX_MEETING", "REPLICAX_LIFE"} & {*alone.tasks[0].environment}


def test_parameter_servers_have_no_islands():
    with pytest.raises(LaunchError, match="--ps and --islands exclude each other"):
        Options("train.py", ps=1, islands=True)
