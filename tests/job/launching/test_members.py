"""The loss of single islands: the decisions with fakes, and a job of small scripts."""

import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import LaunchError
from replicax.job.launching import Options
from replicax.job.plan import Job as PlannedJob, count_ports, make_plan
from replicax.job.processes.events import FoundSilent
from tests.job.launching.fake_members import Job, failure, process


@pytest.fixture
def islands():
    def make(restarts=2, **options):
        made = Job(restarts, islands=True, **options).members
        made.others = [process(0), process(2)]
        return made

    return make


def test_a_lost_island_starts_again_as_its_next_life(islands):
    found = islands()
    assert found.bears(failure(process(1, 4)), found.others)
    found.succeed(failure(process(1, 4)))
    (successor,) = found.start_due()
    assert successor.task.environment["REPLICAX_LIFE"] == "5"
    assert found._host.ended == [Incarnation(1, 4)]
    assert found.revived == 1


@pytest.mark.parametrize("code", [2, 71, 72])
def test_what_a_restart_would_repeat_ends_the_job(islands, code):
    found = islands()
    assert not found.bears(failure(process(1), code), found.others)


def test_the_same_error_on_a_second_island_ends_the_job(islands):
    found = islands()
    assert found.bears(failure(process(1, words="ValueError: a"), 1), found.others)
    assert found.bears(failure(process(1, words="ValueError: b"), 1), found.others)
    assert not found.bears(failure(process(2, words="ValueError: b"), 1), found.others)


def test_without_restarts_the_others_go_on_if_they_are_enough(islands):
    assert not islands(0).bears(failure(process(1)), islands().others)
    found = islands(0, min_workers=2)
    assert found.bears(failure(process(1)), found.others)
    found.succeed(failure(process(1)))
    assert found.start_due() == []
    assert not found.bears(failure(process(1)), found.others[:1])


def test_nobody_is_left(islands):
    assert not islands().bears(failure(process(1)), [process(0, kind="evaluator")])


def test_an_evaluator_is_no_island(islands):
    found = islands()
    assert not found.bears(failure(process(0, kind="evaluator")), found.others)


def test_what_ends_after_the_chief_was_not_needed(islands):
    found = islands()
    found.done(process(0), [])
    assert found.bears(failure(process(1), 71), [])
    found.succeed(failure(process(1), 71))
    assert found.start_due() == []


def test_a_silent_island_is_killed_unless_it_has_a_successor(islands):
    found = islands()
    old, new = process(1, 0), process(2, 1)
    found.hears(FoundSilent("worker 1", 0), [old, new])
    found.hears(FoundSilent("worker 2", 0), [old, new])
    assert (old.killed, new.killed) == (True, False)


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


@pytest.mark.multiprocess
def test_a_job_goes_on_while_one_island_starts_again(run):
    done = run(
        """
        life = os.environ["REPLICAX_LIFE"]
        if index == 1 and life == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        print("ends", index, life, os.environ["REPLICAX_ATTEMPT"])
        """,
        workers=2,
        islands=True,
        restarts=1,
    )
    assert done.code == 0, done.out + done.err
    assert "ends 0 0 0" in done.out
    assert "ends 1 1 0" in done.out
    assert (
        "worker 1 ended with exit code 137: ended by SIGKILL. It starts again (restart 1 of 1)" in done.out + done.err
    )
