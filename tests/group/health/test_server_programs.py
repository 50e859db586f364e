"""Workers compare their programs with those of others."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ArgumentMismatchError, ProgramMismatchError
from replicax.group.health.diagnosis import Limits
from replicax.group.health.monitor import Monitor
from replicax.group.health.programs import AnnouncedProgram, ProgramComparison, announced_program_from
from replicax.group.health.starting import stall_timeout_from
from replicax.group.health.status import status_of
from replicax.runtime.activity import now
from replicax.runtime.call_order import ArgumentValue, CallDescription
from replicax.runtime.calls import Calls, fingerprint, together
from tests.group.health.workers import Worker


def alarm_of(workers: list[Worker]) -> str:
    """Lets the first worker look, which ends both; returns the finding."""
    workers[0].monitor._look()
    assert workers[0].codes == [72]
    told = workers[1].monitor._told
    assert told is not None
    workers[1].monitor._obey(told)
    assert workers[1].codes == [72]
    return str(told["summary"]).splitlines()[0]


def run_programs(worker: Worker, *names: str) -> None:
    for name in names:
        worker.monitor.order.note(CallDescription.of(name))


def test_workers_that_run_known_programs_in_another_order_end(workers: list[Worker], capfd: Any):
    run_programs(workers[0], "A", "B", "A", "B", "A")
    run_programs(workers[1], "A", "B")
    workers[0].monitor._look()
    workers[1].monitor._look()  # One is ahead.
    assert (workers[0].codes, workers[1].codes) == ([], [])
    run_programs(workers[1], "B", "A")
    workers[0].monitor.on_error(RuntimeError("what came of it"))
    found = alarm_of(workers)
    assert found.startswith("replicax: the job would compute wrong numbers and is ended. worker:0 (here:1), worker:1")
    assert "have run different programs: as call number 3, worker:0 'A' and worker:1 'B'; all" in found


def test_a_difference_is_an_alarm_even_if_the_other_does_not_say_more(workers: list[Worker], capfd: Any):
    for worker, name in zip(workers, "AB", strict=True):
        run_programs(worker, name)
    workers[0].monitor.peers[0].history.answered(workers[1].monitor._own_status(), time.monotonic())
    workers[1].server.shutdown()
    workers[1].server.server_close()
    workers[0].monitor._look()
    assert workers[0].codes == [72]
    assert "have not run the same programs in the same order" in capfd.readouterr().err


@pytest.mark.parametrize("more", [0, 1])
def test_nobody_leaves_in_peace_after_a_call_more_or_less(
    workers: list[Worker], more: int, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    monkeypatch.setattr(now, "at", now.at)
    for worker in workers:
        run_programs(worker, "A")
        worker.monitor.peers[0].history.answered(status_of(), time.monotonic())
    run_programs(workers[1], *"B" * more)
    threads = [threading.Thread(target=worker.monitor.at_exit) for worker in workers]
    if more:  # What the thread of a monitor does, which would end the process.
        monkeypatch.setattr(Monitor, "_wait_for_looks", lambda monitor, *_: monitor._look())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [set(worker.codes) for worker in workers] == [{72} if more else set()] * 2
    if more:
        assert "as call number 2, worker:0 nothing more and worker:1 'B'" in capfd.readouterr().err


def test_each_call_of_a_program_is_noted(monkeypatch: pytest.MonkeyPatch):
    alone = Monitor(0, "worker:0", "", [], Limits(5.0))
    monkeypatch.setattr(now, "monitor", alone)
    programs = Calls("train", shared=True), Calls("test", shared=True)
    for i in (0, 1, 1, 0):
        with programs[i].one() as call:
            assert call is not None
            call.prepare(None)
    with together("reduction", "float32(2,)"):
        pass
    with Calls("own", shared=False).one():
        pass
    noted = [alone.order.get(i) for i in range(1, 7)]
    train, test = "'train' (program 1)", "'test' (program 2)"
    assert [n and n.program for n in noted] == [train, test, test, train, "'reduction' (float32(2,))", None]


def test_the_same_programs_run(workers: list[Worker]):
    for worker in workers:
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
        worker.monitor.programs.announce(AnnouncedProgram("train", "abc"))
    for worker in workers:
        worker.monitor.programs.compare(0, worker.monitor.peers, wait=True)


@pytest.mark.parametrize(
    "theirs", [AnnouncedProgram("train", "other"), AnnouncedProgram("test", "abc"), AnnouncedProgram("test", "")]
)
def test_different_programs_are_told_apart(workers: list[Worker], theirs: AnnouncedProgram):
    for worker, program in zip(workers, [AnnouncedProgram("train", "abc"), theirs], strict=True):
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
        worker.monitor.programs.announce(program)
    with pytest.raises(ProgramMismatchError, match="worker:0 is about to run 'train'") as raised:
        workers[0].monitor.programs.compare(0, workers[0].monitor.peers, wait=True)
    assert (raised.value.other_worker, raised.value.other_function) == ("worker:1", theirs.name)
    with pytest.raises(ProgramMismatchError):
        workers[1].monitor.programs.compare(0, workers[1].monitor.peers, wait=True)


def arguments(rate: float, training: bool = True) -> tuple[ArgumentValue, ...]:
    return ArgumentValue("rate", int(10 * rate), f"{rate}"), ArgumentValue(
        "training", int(training), f"{training}", True
    )


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (AnnouncedProgram("train", "abc", arguments(0.1)), "of its argument 'rate': worker:0 0.0, worker:1 0.1. "),
        (AnnouncedProgram("train", "", arguments(0.1)), "of its argument 'rate'"),
        (AnnouncedProgram("train", "other", arguments(0.0, False)), "'training': worker:0 True, worker:1 False"),
        (AnnouncedProgram("train", "other", arguments(0.0)), "fingerprint abc"),
        (AnnouncedProgram("test", "abc", arguments(0.1)), "worker:1 'test'"),
        (AnnouncedProgram("train", "abc", arguments(0.0, False)), ""),  # The flag changes nothing.
        (AnnouncedProgram("train", "abc"), ""),
    ],
)
def test_an_argument_that_differs_is_named(workers: list[Worker], theirs: AnnouncedProgram, says: str):
    for worker, program in zip(workers, [AnnouncedProgram("train", "abc", arguments(0.0)), theirs], strict=True):
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
        worker.monitor.programs.announce(program)
    compare = workers[0].monitor.programs.compare
    if not says:
        return compare(0, workers[0].monitor.peers, wait=True)
    with pytest.raises(ProgramMismatchError) as raised:
        compare(0, workers[0].monitor.peers, wait=True)
    assert says in str(raised.value)
    assert isinstance(raised.value, ArgumentMismatchError) == ("argument" in says or "training" in says)


def test_an_argument_that_differs_in_a_later_call_is_an_alarm(workers: list[Worker], capfd: Any):
    step = CallDescription.of("step", "program 1")
    for worker, rate in zip(workers, (0.0, 0.1), strict=True):
        worker.monitor.order.note(step)
        worker.monitor.order.note(step.given(arguments(0.5)))
        worker.monitor.order.note(step.given(arguments(rate)))
        worker.monitor.order.note(step)
    assert (
        "have called 'step' (program 1) with different arguments: as call number 3, worker:0 rate=0.0, training=True "
        "and worker:1 rate=0.1, training=True; all workers must call the same functions in the same order, with equal"
    ) in alarm_of(workers)


def test_workers_that_wait_in_different_things_are_told_at_once(workers: list[Worker], capfd: Any):
    for worker, folder in zip(workers, "ab", strict=True):
        worker.monitor.note_outside(f"Saving step 3 to {folder}", "checkpoint")
        worker.monitor.note_outside()
        worker.monitor._look()
    assert [worker.codes for worker in workers] == [[], []]
    workers[0].monitor.note_outside("Saving step 4 to a", "checkpoint")
    workers[1].monitor.note_outside("barrier 'data'")
    found = alarm_of(workers)
    assert "as call number 3, worker:0 'Saving step 4 to a' and worker:1 \"barrier 'data'\"; all workers must" in found


def test_of_many_arguments_a_report_shows_some():
    step = CallDescription.of("step", "program 1")
    many = [[ArgumentValue(f"x{i}", i + last * (i == 9), "0") for i in range(10)] for last in (0, 1)]
    one, other = (step.given(tuple(each)) for each in many)
    assert one.arguments.startswith("x0=0, x1=0, x2=0, x3=0 and 6 more (together ")
    assert one.arguments != other.arguments
    assert one.token != other.token != step.token


@pytest.mark.parametrize("given", [1, [["rate", 1, "1"]], [["rate", "1", "1", False]], [1]])
def test_what_are_no_arguments_is_refused(given: object):
    with pytest.raises(ValueError, match="not the arguments"):
        announced_program_from({"name": "step", "fingerprint": "", "arguments": given})


def test_who_has_no_part_in_a_program_does_not_know_its_fingerprint():
    assert not AnnouncedProgram("train", "abc").differs(AnnouncedProgram("train", ""))
    assert ProgramComparison(0, "worker:0").get(0) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_arrays_that_a_program_closes_over_count(dtype: str):
    def found(seed: int) -> str:
        closed_over = jnp.asarray((np.random.default_rng(seed).normal(size=(9, 9)) * 3).round()).astype(dtype)

        def step(x):
            return jax.lax.scan(lambda carry, _: ((carry * closed_over).astype(dtype), None), x, None, length=2)[0]

        return fingerprint(jax.jit(step).lower(jnp.ones((9, 9), dtype)))

    assert found(1) == found(1)
    assert found(1) != found(2)


def test_fingerprints():
    def lowered(factor: float, text: str = "x") -> Any:
        def f(x: jax.Array) -> jax.Array:
            jax.debug.print(text + " {}", x)
            return x * factor

        return jax.jit(f).lower(jnp.ones(3))

    assert fingerprint(lowered(2.0)) == fingerprint(lowered(2.0, "y"))  # Callbacks have other numbers.
    assert fingerprint(lowered(2.0)) != fingerprint(lowered(3.0))


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [(300.0, "", 300.0), (300.0, "7", 7.0), (5, "7", 5.0), (None, "7", None), (0, "7", None), (300.0, "0", None)],
)
def test_the_environment_sets_the_default(given: Any, environment: str, expected: float | None):
    assert stall_timeout_from(given, {"REPLICAX_STALL_TIMEOUT": environment}) == expected


@pytest.mark.parametrize("given", [-1, "soon", float("nan"), float("inf"), True])
def test_a_stall_timeout_is_a_number(given: Any):
    with pytest.raises(ArgumentError, match="stall_timeout"):
        stall_timeout_from(given, {})
    with pytest.raises(ArgumentError, match="REPLICAX_STALL_TIMEOUT"):
        stall_timeout_from(300.0, {"REPLICAX_STALL_TIMEOUT": str(given)})


def test_without_a_cluster_the_report_is_of_this_process():
    assert rx.health.report().startswith("  worker:0   phase ")
    assert dataclasses.replace(status_of(), seconds=0.0).phase == "idle"


def test_the_first_computation_of_a_name_outside_of_programs_waits_for_the_others(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
):
    for worker in workers:
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
    monkeypatch.setattr(now, "monitor", workers[0].monitor)
    other = workers[1].monitor.programs
    timer = threading.Timer(0.3, lambda: other.announce(AnnouncedProgram("reduction", "float32(2,)")))
    begun = time.monotonic()
    timer.start()
    with together("reduction", "float32(2,)"):
        assert time.monotonic() - begun >= 0.3
    with together("reduction", "float32(3,)"):  # The connections are there.
        pass
    timer.join()
    other.announce(AnnouncedProgram("step", "abc"))
    before = now.at[0]
    with pytest.raises(ProgramMismatchError, match="to run 'gathering'"), together("gathering", "float32(2,)"):
        pass
    assert now.at[0] == before
