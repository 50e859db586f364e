"""The lines of a job's workers, put together."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax.errors import LaunchError
from replicax.tools.ledger.culprits import FAILING, NEW_SHAPES, PREPARING, RECOMPILING, SLOW_DEVICES
from replicax.tools.ledger.showing import words
from tests.tools.ledger.written import BEGIN, job, lines_of, restarted, write

STEP = {"n": {"train": 10}}
BUSY = {"computing": 1.0}


def two(folder, first, second, notes=([], [])):
    """Returns the ledger of two workers in step that did so each second, 20 seconds long, from second 1 on."""
    files = {f"worker-{i}": lines_of(i, 1.0, [seconds] * 20, **STEP) for i, seconds in enumerate((first, second))}
    for i, noted in enumerate(notes):
        files[f"worker-{i}"][5]["notes"] = noted
    return rx.ledger.read(write(folder, job(2, 22.0), files))


def test_each_second_is_in_one_class(tmp_path):
    found = two(tmp_path, BUSY, BUSY)
    for worker in found.workers:
        assert sum(worker.seconds.values()) == pytest.approx(22.0)
        assert worker.seconds == pytest.approx({"start": 1.0, "computing": 20.0, "ending": 1.0})
    assert found.goodput == pytest.approx(20 / 22)
    assert found.culprit is None  # All compute.
    assert (found.attempts, found.code, found.wall) == (1, 0, 22.0)


def test_who_computes_longer_than_another_has_waited_for_what_that_one_did_meanwhile(tmp_path):
    found = two(tmp_path, BUSY, {"computing": 0.6, "waiting for input": 0.4})
    waits, slow = found.workers
    assert waits.seconds["waiting for others"] == pytest.approx(20 * 0.4)
    assert waits.seconds["computing"] == pytest.approx(20 * 0.6)
    assert "waiting for others" not in slow.seconds
    assert found.slowest is slow
    assert (found.culprit.worker, found.culprit.what) == ("worker 1", "waiting for input")
    assert found.culprit.seconds == pytest.approx(19 * 0.4, rel=0.1)


def test_a_wait_that_is_known_already_does_not_count_twice(tmp_path):
    found = two(tmp_path, {"computing": 0.6, "waiting for others": 0.4}, {"computing": 0.6, "checkpoint": 0.4})
    assert found.workers[0].seconds["waiting for others"] == pytest.approx(20 * 0.4)
    assert (found.culprit.worker, found.culprit.what) == ("worker 1", "checkpoint")


def profiled(own):
    return [{"at": BEGIN, "program": "train", "own": each, "step": 0.1} for each in own]


def test_profiles_tell_who_is_slow_inside_of_steps(tmp_path):
    found = two(tmp_path, BUSY, BUSY, (profiled([0.06] * 3), profiled([0.09, 0.091, 0.09])))
    assert found.workers[0].seconds["waiting for others"] == pytest.approx(20 * 10 * 0.03)
    assert [worker.own_step for worker in found.workers] == [0.06, 0.09]
    assert (found.culprit.worker, found.culprit.what) == ("worker 1", SLOW_DEVICES)


@pytest.mark.parametrize("own", [[0.06, 0.2, 0.06], [0.062, 0.061, 0.062], [0.09, 0.09]])
def test_profiles_that_do_not_tell_it_clearly_tell_nothing(tmp_path, own):
    found = two(tmp_path, BUSY, BUSY, (profiled([0.06] * 3), profiled(own)))
    assert "waiting for others" not in found.workers[0].seconds
    assert found.culprit is None


def test_waiting_that_nobodys_time_explains_is_no_ones_fault(tmp_path):
    found = two(tmp_path, *[{"computing": 0.5, "waiting for others": 0.5}] * 2)
    assert found.culprit is None
    assert found.unexplained == pytest.approx(20 * 0.5, rel=0.1)


def test_what_all_lose_alike_is_not_blamed_on_one(tmp_path):
    found = two(tmp_path, *[{"computing": 0.5, "callbacks and user code": 0.5}] * 2)
    assert (found.culprit.worker, found.culprit.what) == ("", "callbacks and user code")


def test_a_stall_that_others_wait_for_at_the_end(tmp_path):
    """Two workers with no collectives sleep for 3 s; one does not run for 5 s meanwhile."""
    own, stands = {"computing": 0.56, "callbacks and user code": 0.44}, {"stall": 1.0}
    tells = {"n": {"train": 10}}
    first = [*lines_of(0, 1.0, [own] * 7, **tells), *lines_of(0, 8.0, [{"ending": 1.0}] * 5)[1:]]
    second = lines_of(1, 1.0, [own] * 2 + [stands] * 5 + [own] * 5, **tells)
    second[3:8] = [{name: line[name] for name in ("at", "in", "s")} for line in second[3:8]]
    found = rx.ledger.read(write(tmp_path, job(2, 14.0), {"worker-0": first, "worker-1": second}))
    assert [worker.seconds["callbacks and user code"] for worker in found.workers] == pytest.approx([3.08, 3.08])
    assert (found.culprit.worker, found.culprit.what) == ("worker 1", "stall")
    assert found.culprit.seconds == pytest.approx(5.0)
    assert words(found)[1:4] == [
        "Before the first step: start 1.0 s, computing 0.6 s, callbacks and user code 0.4 s.",
        "The others have waited for worker 1.",
        "After it, lost: worker 1: stall, 5.0 s.",
    ]


@pytest.mark.parametrize("name", ["callbacks and user code", "waiting for input", "checkpoint"])
@pytest.mark.parametrize("other", ["callbacks and user code", "evaluation"])
def test_no_culprit_has_cost_more_than_a_worker_has_spent_on_it(tmp_path, name, other):
    """Who does the one while another does the other takes a little longer, by turns."""
    one, two = {"computing": 0.1, name: 0.9}, {"computing": 0.12, other: 0.88}
    files = {f"worker-{i}": lines_of(i, 1.0, [(one, two)[(i + n) % 2] for n in range(20)], **STEP) for i in (0, 1)}
    found = rx.ledger.read(write(tmp_path, job(2, 22.0), files))
    assert 0 < found.culprit.seconds <= max(worker.seconds[found.culprit.what] for worker in found.workers)


def compiling(folder, *made):
    """Returns the ledger of a worker that compiles, from second 4 on and every third one, programs of these shapes."""
    lines = lines_of(0, 1.0, [BUSY] * 20, **STEP)
    for number, notes in enumerate(made):
        second = 3 * number + 4
        lines[second - 1]["notes"] = notes
        lines[second].update(s={"compile": 1.0}, notes=[{"at": BEGIN, "made": "train"}])
    return rx.ledger.read(write(folder, job(1, 22.0), {"worker-0": lines}))


def makes(of, code="train.py:3"):
    return [{"at": BEGIN, "makes": "train", "code": code, "of": of}]


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ([makes("a"), makes("a"), makes("a")], RECOMPILING),
        ([makes("a"), makes("b"), makes("c")], NEW_SHAPES),
        ([makes("a"), makes("a", "other.py:3"), []], PREPARING),
    ],
)
def test_why_programs_are_compiled_is_told_apart(tmp_path, made, what):
    found = compiling(tmp_path, *made)
    assert (found.culprit.worker, found.culprit.what) == ("", what)
    assert found.culprit.seconds == pytest.approx({RECOMPILING: 2.0, NEW_SHAPES: 2.0, PREPARING: 3.0}[what])


def test_steps_are_calls_of_the_program_that_is_called_most(tmp_path):
    lines = lines_of(0, 1.0, [BUSY] * 20, n={"reset": 1, "train": 10})
    (worker,) = rx.ledger.read(write(tmp_path, job(1, 22.0), {"worker-0": lines})).workers
    assert (worker.steps, worker.program) == (200, "train")


def test_the_line_that_was_seen_most_is_named(tmp_path):
    where = [["waiting for input", "train.py:7 rows", 4], ["callbacks and user code", "train.py:9 <module>", 9]]
    lines = lines_of(0, 1.0, [{"computing": 0.5, "waiting for input": 0.5}] * 20, **STEP, where=where)
    found = rx.ledger.read(write(tmp_path, job(1, 22.0), {"worker-0": lines}))
    assert str(found.culprit) == "all workers: waiting for input, 9.5 s (train.py:7 rows)"


def killed(folder, saved, restores, told=10):
    """Returns the ledger of a worker that is killed in second 10, after a checkpoint of second `saved`.

    Its last line is of second `told`.
    """
    first = lines_of(5, 0.0, [BUSY] * told, **STEP)
    first[6]["notes"] = [{"at": BEGIN + saved, "saved": BEGIN + saved}]
    second = lines_of(6, 12.0, [BUSY] * 8, **STEP)
    if restores:
        second[1]["notes"] = [{"at": BEGIN + 12.0, "restored": True}]
    first[-1]["in"] = "checkpoint"  # by chance, as the line is written
    return rx.ledger.read(write(folder, restarted(10.0, 12.0, 20.0), {"worker-0": [*first, *second]}))


def test_what_was_done_since_the_last_checkpoint_is_lost(tmp_path):
    found = killed(tmp_path, 6.0, True)
    (worker,) = found.workers
    assert worker.seconds == pytest.approx({"computing": 6 + 8, "lost work": 4.0, "restart": 2.0})
    assert (found.attempts, found.culprit.what, found.culprit.worker) == (2, FAILING, "worker 0")
    assert found.culprit.seconds == pytest.approx(6.0)
    assert "Save more often" in found.culprit.advice


def elastic(folder, own, again_at):
    """Returns the ledger of two workers, each second of whom is `own`; one is lost in second 10 of 30.

    It comes again in second `again_at`, or never.
    """
    events = job(2, 30.0)
    events.insert(4, {"event": "exit", "task": "worker 1", "pid": 1, "code": -9, "at": 10.0})
    second = lines_of(1, 1.0, [own] * 9, **STEP)
    if again_at is None:
        del events[5]
    else:
        start = {"event": "start", "task": "worker 1", "attempt": 0, "life": 1, "pid": 3, "at": again_at}
        events[5:6] = [start, {**events[5], "pid": 3}]
        second += lines_of(3, again_at, [own] * (29 - again_at), **STEP)
    files = {"worker-0": lines_of(0, 1.0, [own] * 28, **STEP), "worker-1": second}
    return rx.ledger.read(write(folder, events, files))


MOSTLY_OWN = {"computing": 0.2, "callbacks and user code": 0.8}


def test_what_has_cost_most_is_named_also_when_a_worker_was_lost(tmp_path):
    found = elastic(tmp_path, MOSTLY_OWN, 14)
    assert found.workers[1].seconds["restart"] == pytest.approx(4.0)
    assert (found.culprit.worker, found.culprit.what) == ("", "callbacks and user code")


@pytest.mark.parametrize(("again_at", "seconds"), [(18, 8.0), (None, 20.0)])
def test_a_lost_worker_whose_work_the_others_have_costs_its_restart_and_nobody_has_to_save(tmp_path, again_at, seconds):
    found = elastic(tmp_path, BUSY, again_at)
    assert found.workers[1].seconds["restart"] == pytest.approx(seconds)
    assert found.workers[1].seconds.get("ending", 0.0) <= 1.0
    assert (found.culprit.worker, found.culprit.what) == ("worker 1", FAILING)
    assert "Save" not in found.culprit.advice
    assert found.workers[0].seconds["computing"] == pytest.approx(28.0)  # It has gone on alone.


def test_within_a_line_only_the_part_since_the_checkpoint_is_lost(tmp_path):
    (worker,) = killed(tmp_path, 6.25, True).workers
    assert worker.seconds["lost work"] == pytest.approx(3.75)


def test_what_was_done_since_the_last_line_is_lost_too(tmp_path):
    (worker,) = killed(tmp_path, 6.0, True, told=9).workers
    assert worker.seconds["lost work"] == pytest.approx(4.0)


def test_without_a_restored_checkpoint_all_is_lost(tmp_path):
    (worker,) = killed(tmp_path, 6.0, False).workers
    assert worker.seconds["lost work"] == pytest.approx(10.0)


def test_a_job_that_was_ended_because_it_stood_still_stood_still_since_its_last_step(tmp_path):
    worker = lines_of(0, 1.0, [BUSY] * 20, **STEP)
    for line in worker[9:]:
        del line["n"], line["last"]
    found = rx.ledger.read(write(tmp_path, job(1, 22.0, code=70), {"worker-0": worker}))
    assert found.workers[0].seconds["stall"] == pytest.approx(12.0)
    assert found.culprit.what == "stall"


def test_a_job_that_runs_is_read_as_far_as_it_has_come(tmp_path):
    lines = lines_of(0, 1.0, [BUSY] * 5, **STEP)
    write(tmp_path, job(1, 9.0)[:2], {"worker-0": lines})
    with (tmp_path / "ledger" / "worker-0.jsonl").open("a") as file:
        file.write('{"at": 1000')  # It is about to write a line.
    found = rx.ledger.read(tmp_path)
    assert (found.code, found.wall) == (None, 6.0)


def test_an_earlier_job_of_the_same_folder_is_left_out(tmp_path):
    earlier = [{**event, "at": event["at"] - 100} for event in job(1, 22.0)]
    lines = [*lines_of(0, -99.0, [BUSY] * 20), *lines_of(7, 1.0, [BUSY] * 20, **STEP)]
    events = [{**event, **({"pid": 7} if "pid" in event else {})} for event in job(1, 22.0)]
    found = rx.ledger.read(write(tmp_path, [*earlier, *events], {"worker-0": lines}))
    assert found.wall == 22.0
    assert sum(found.workers[0].seconds.values()) == pytest.approx(22.0)


def test_a_folder_without_a_ledger(tmp_path):
    with pytest.raises(LaunchError, match=r"There is no ledger in .*REPLICAX_LEDGER"):
        rx.ledger.read(tmp_path)


def test_a_job_whose_workers_have_not_started(tmp_path):
    with pytest.raises(LaunchError, match=r"No worker of the job in .* has started yet"):
        rx.ledger.read(write(tmp_path, job(0, 22.0)[:1], {}))


@pytest.mark.parametrize("text", ['{"event": "job"}\n', "[]\n", "no json\n", '{"event": "job", "at": 1.0}\n{"a": 2}\n'])
def test_files_of_something_else(tmp_path, text):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "job.jsonl").write_text(text)
    with pytest.raises(LaunchError, match="ledger"):
        rx.ledger.read(tmp_path)
