"""Attempts one after the other, with processes that are no more than their events."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicax.job.processes.events import Events, ProcessEnded, ScriptEnded
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.restart_policy import RestartPolicy
from replicax.job.supervision.run_job import JobPolicy, Outcome, Tasks, run_job, show_end


class Process:
    """A process that ends with a code as soon as it is looked at."""

    pid, meets, has_left, told = 4, 0, False, None
    waits = is_lost = False
    log_path = Path("worker.log")

    def __init__(self, code: int, words: str = "", index: int = 0):
        self.task, self.code, self.last_words = PlannedTask("worker", index, None, {}), code, words
        self.killed = self.tidied = False

    def send(self, number: int) -> None:
        raise AssertionError(f"It ends by itself, without signal {number}.")

    def kill(self) -> None:
        self.killed = True

    def tidy_up(self) -> int:
        self.tidied = True
        return self.code


class Job:
    """A job of one worker, whose attempts end with these codes."""

    def __init__(self, *codes: int):
        self.codes, self.events, self.out = list(codes), Events[Any](), io.StringIO()
        self.terminal = Terminal(self.out, self.out)
        self.processes: list[Process] = []

    @contextlib.contextmanager
    def __call__(self, workers: int, attempt: int) -> Iterator[Tasks]:
        process = Process(self.codes[attempt], f"ValueError: in attempt {attempt}")
        self.processes.append(process)
        self.events.put(ProcessEnded(process, time.monotonic()))
        yield Tasks([process])

    def run(self, restarts: int) -> Outcome:
        policy = JobPolicy(1, restarts=RestartPolicy(restarts))
        return run_job(self, policy, self.terminal, self.events)


def test_attempts_go_on_until_one_ends_well():
    job = Job(1, 137, 0)
    outcome = job.run(restarts=2)
    assert (outcome.attempt.code, outcome.failure, len(job.processes)) == (0, None, 3)
    assert "worker 0 ended with exit code 1: an error in the script (ValueError: in attempt 0). restart 1 of 2." in (
        job.out.getvalue()
    )


def test_the_last_failure_is_shown_below_everything_else():
    job = Job(1, 1)
    outcome = job.run(restarts=1)
    assert show_end(outcome, job.terminal) == 1
    assert job.out.getvalue().endswith(
        "──────── worker 0 failed first: exit code 1: an error in the script ────────\n"
        "Its log: worker.log\n\nValueError: in attempt 1\n"
    )


def test_what_a_process_of_an_earlier_attempt_says_late_fails_no_later_one():
    class Late(Job):
        @contextlib.contextmanager
        def __call__(self, workers: int, attempt: int) -> Iterator[Tasks]:
            if attempt:  # Its last message was read only now.
                self.events.put(ScriptEnded(self.processes[0], 1, time.monotonic()))
            with super().__call__(workers, attempt) as tasks:
                yield tasks

    assert Late(1, 0).run(restarts=1).attempt.code == 0


def test_nobody_is_left_if_a_task_cannot_be_started():
    first, events = Process(0), Events[Any]()

    def processes() -> Iterator[Process]:
        yield first
        raise OSError("no more processes")

    @contextlib.contextmanager
    def start(workers: int, attempt: int) -> Iterator[Tasks]:
        yield Tasks(processes())

    terminal = Terminal(io.StringIO(), io.StringIO())
    with pytest.raises(OSError, match="no more processes"):
        run_job(start, JobPolicy(2), terminal, events)
    assert first.killed
    assert first.tidied
