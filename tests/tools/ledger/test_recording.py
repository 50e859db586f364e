"""The notes of a process of its own time."""

from __future__ import annotations

import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.runtime import activity, clock
from replicax.runtime.calls import Calls
from replicax.tools.ledger.lines import AGAIN, SHAPES, read_lines

SHORT = 0.05


def recorded(folder):
    (worker,) = rx.ledger.read(folder).workers
    return worker


def test_the_sum_is_the_wall_clock(tmp_path):
    with rx.ledger.recording(tmp_path):
        begin = time.monotonic()
        with rx.ledger.section("evaluation"):
            time.sleep(SHORT)
        time.sleep(SHORT)
        wall = time.monotonic() - begin
    worker = recorded(tmp_path)
    assert worker.seconds["evaluation"] >= SHORT
    assert worker.seconds["callbacks and user code"] + worker.seconds.get("import", 0.0) >= SHORT
    assert wall <= sum(worker.seconds.values())
    assert sum(worker.seconds.values()) == pytest.approx(worker.wall, rel=1e-3, abs=1e-4)


def test_a_step_is_traced_compiled_computed_and_counted(tmp_path):
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        weight = rx.Variable(jnp.ones((64, 64)))

    @rx.function
    def step(x):
        weight.assign(jnp.tanh(weight.value @ weight.value) + x)
        return weight.value

    with rx.ledger.recording(tmp_path):
        for _ in range(5):
            step(0.5).block_until_ready()
    worker = recorded(tmp_path)
    assert (worker.steps, worker.program) == (
        4,
        "step",
    )  # The first call only compiles it.
    assert min(worker.seconds[name] for name in ("trace", "compile", "computing")) > 0


def notes_of(folder, kind):
    return [note[kind] for each in read_lines(folder).processes for note in each.notes if kind in note]


def test_shapes_that_are_new_and_programs_that_are_made_again_are_told_apart(tmp_path):
    def double(x):
        return 2 * x

    with rx.ledger.recording(tmp_path):
        for rows, fn in ((2, step := rx.function(double)), (3, step), (3, step), (3, rx.function(double))):
            fn(jnp.ones(rows)).block_until_ready()
    assert notes_of(tmp_path, "of") == ["float32[2]", "float32[3]", "float32[3]"]
    (process,) = read_lines(tmp_path).processes
    prepared = dict.fromkeys(("", SHAPES, AGAIN), 0.0)
    for each in process.slices:
        prepared[each.making] += each.seconds.get("compile", 0.0)
    assert min(prepared.values()) > 0
    assert process.slices[-1].making == ""


def test_a_call_of_an_own_program_is_no_wait_for_other_processes(tmp_path):
    calls, phases = Calls("own", False), []
    with rx.ledger.recording(tmp_path):
        for _ in range(2):
            with calls.one():
                phases.append(activity.now.at[0])
    assert phases == [activity.COMPILE, activity.IDLE]
    assert recorded(tmp_path).steps == 1


def test_saves_and_restores_are_noted_whoever_writes_them(tmp_path):
    source = rx.Checkpoint(w=np.ones(2, np.float32))
    with rx.ledger.recording(tmp_path):
        begin = time.time()
        path = source.write(tmp_path / "own")
        source.restore(path)
        source.restore(None)
    (saved,) = notes_of(tmp_path, "saved")
    assert begin <= saved <= time.time()
    assert notes_of(tmp_path, "restored") == [True]


def test_sections_keep_their_time_but_what_prepares_programs_stays_what_it_is(tmp_path):
    with rx.ledger.recording(tmp_path), rx.ledger.section("evaluation"):
        with activity.phase(activity.INPUT), activity.phase(activity.WAIT):
            time.sleep(SHORT)
        with activity.phase(activity.COMPILE):
            time.sleep(SHORT)
        with activity.phase(activity.CHECKPOINT), activity.phase(activity.WAIT):
            time.sleep(SHORT)
    seconds = recorded(tmp_path).seconds
    assert min(seconds[name] for name in ("evaluation", "trace", "checkpoint")) >= SHORT
    assert not {"waiting for input", "waiting for others"} & seconds.keys()


def test_work_of_the_host_costs_nothing_while_the_devices_compute(tmp_path):
    with rx.ledger.recording(tmp_path):
        clock.running.sent("step", lambda: True, clock.USER, time.monotonic())
        time.sleep(SHORT)
        clock.running.sent("step", lambda: False, clock.USER, time.monotonic())
        time.sleep(SHORT)
    seconds = recorded(tmp_path).seconds
    assert seconds["computing"] >= SHORT
    assert seconds["callbacks and user code"] + seconds.get("import", 0.0) >= SHORT


def test_after_a_call_that_has_waited_for_the_devices_they_do_not_compute(tmp_path):
    with rx.ledger.recording(tmp_path):
        clock.running.took("step", 60.0)  # as long as such calls take
        for _ in range(3):
            clock.running.step("step", time.monotonic())
            clock.running.sent("step", lambda: False, clock.USER, time.monotonic())
            time.sleep(SHORT)
    seconds = recorded(tmp_path).seconds
    assert seconds["callbacks and user code"] + seconds.get("import", 0.0) >= 3 * SHORT


def test_functions_that_are_traced_inside_of_others_count_once(tmp_path):
    with rx.ledger.recording(tmp_path):
        begin = time.monotonic()
        time.sleep(SHORT)
        clock.running.compiled(clock.TRACE, SHORT / 2)
        clock.running.compiled(clock.TRACE, time.monotonic() - begin)
    worker = recorded(tmp_path)
    assert worker.seconds["trace"] + worker.seconds.get("import", 0.0) >= SHORT
    assert min(worker.seconds.values()) >= 0
    assert sum(worker.seconds.values()) == pytest.approx(worker.wall, rel=1e-3, abs=1e-4)


def test_other_threads_do_not_count(tmp_path):
    def elsewhere():
        with rx.ledger.section("evaluation"):
            time.sleep(SHORT)

    with rx.ledger.recording(tmp_path):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert "evaluation" not in recorded(tmp_path).seconds


def test_a_class_that_there_is_not():
    with (
        pytest.raises(ArgumentError, match=r"`what` is one of 'start', .*got 'evaluating'"),
        rx.ledger.section("evaluating"),
    ):
        pass


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="No ledger can be kept"), rx.ledger.recording(tmp_path / "file"):
        pass
