"""A contest: contestants in processes of their own, which make turns of steps, one contestant after the other."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

BENCHMARKS = Path(__file__).resolve().parent.parent
OURS = "replicax"


class ContestError(Exception):
    """A contestant failed, took too long, or computes something else than the others."""


@dataclass(frozen=True)
class Entry:
    """A contestant before it is started.

    Attributes:
        name: For the table; what begins with `replicax` is ours.
        program: `module:function`; the function gets `options` and returns what makes steps.
        options: Keyword arguments of the function.
        python: The interpreter; empty: this one.
        workers: How many processes it consists of. Each finds `TF_CONFIG`, `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
            `MASTER_PORT` in its environment, if there are several.
        environment: Variables for its processes.
        steps_per_call: How many training steps one call makes (an epoch of `fit` makes many).
        checked: Whether its losses are compared with those of the first entry.
    """

    name: str
    program: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    workers: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    steps_per_call: int = 1
    checked: bool = True

    @property
    def ours(self) -> bool:
        """Whether it is ours and not a peer."""
        return self.name.startswith(OURS)


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: Turns of each contestant in a launch; one more comes first and is not counted.
        steps: Calls in a turn.
        launches: How often all processes are started anew.
        tolerance: How far the losses of the first steps may be apart, relative. Keras and TensorFlow add Adam's epsilon
            before the correction of the bias, JAX and torch after it, and Adam's first steps make much of little: that
            is up to 2e-3 after 5 steps, while a gradient that was not summed, say, makes a tenth.
        check_steps: How many steps' losses are compared.
        deadline: Seconds until an answer must have come.
    """

    rounds: int = 11
    steps: int = 30
    launches: int = 3
    tolerance: float = 5e-3
    check_steps: int = 5
    deadline: float = 180.0

    def shorter(self) -> Plan:
        """Returns the plan of `--quick`: one launch, half the rounds."""
        return Plan(max(5, self.rounds // 2), self.steps, 1, self.tolerance, self.check_steps, self.deadline)


class Outcome:
    """Seconds of a training step: for each contestant the median of each launch."""

    def __init__(self) -> None:
        self.medians: dict[str, list[float]] = {}

    def add(self, name: str, seconds: Sequence[float]) -> None:
        """Notes the turns of a launch."""
        self.medians.setdefault(name, []).append(statistics.median(seconds))

    def seconds(self, name: str) -> float:
        """Returns the median over launches."""
        return statistics.median(self.medians[name])

    def best(self, names: Sequence[str]) -> str:
        """Returns the quickest of these contestants."""
        return min(names, key=self.seconds)

    def ratios(self, name: str, by: str) -> list[float]:
        """Returns in each launch the time of `name` by the time of `by`."""
        return [a / b for a, b in zip(self.medians[name], self.medians[by], strict=True)]

    def ratio(self, name: str, by: str) -> float:
        """Returns the median over launches of the ratio: both ran in turns in the same seconds."""
        return statistics.median(self.ratios(name, by))


class Process:
    """One started process of a contestant."""

    def __init__(self, entry: Entry, environment: Mapping[str, str], log: IO[bytes]):
        command = [entry.python or sys.executable, "-m", "peers.contestant", entry.program, json.dumps(entry.options)]
        self._log, self._name = log, entry.name
        self._popen = subprocess.Popen(
            command, cwd=BENCHMARKS, env={**os.environ, "KERAS_BACKEND": "jax", **environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._answers.put(line)
        self._answers.put("")

    def tell(self, do: str, steps: int) -> None:
        """Sends a command."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why it has ended.
            self._popen.stdin.write(json.dumps({"do": do, "steps": steps}) + "\n")
            self._popen.stdin.flush()

    def answer(self, deadline: float) -> Any:
        """Waits for the answer to the last command."""
        try:
            line = self._answers.get(timeout=deadline)
        except queue.Empty:
            raise ContestError(f"{self._name} did not answer within {deadline:.0f} s.\n{self._tail()}") from None
        if not line:
            raise ContestError(f"{self._name} ended with {self._popen.wait()}:\n{self._tail()}")
        return json.loads(line)

    def end(self) -> None:
        """Ends the process: by the end of its input, else by a signal."""
        with contextlib.suppress(BrokenPipeError):
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        try:
            self._popen.wait(20)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-6000:]


class Started:
    """A contestant that runs."""

    def __init__(self, entry: Entry, logs: Sequence[IO[bytes]]):
        self.entry = entry
        environments = _cluster_environments(entry.workers)
        self._processes = [
            Process(entry, {**each, **entry.environment}, log) for each, log in zip(environments, logs, strict=True)
        ]

    def ready(self, deadline: float) -> None:
        """Waits until all its processes have built their step."""
        for process in self._processes:
            process.answer(deadline)

    def ask(self, do: str, steps: int, deadline: float) -> Any:
        """Lets all processes do something and returns the answer of the first."""
        for process in self._processes:
            process.tell(do, steps)
        answers = [process.answer(deadline) for process in self._processes]
        return answers[0]

    def end(self) -> None:
        """Ends its processes."""
        for process in self._processes:
            process.end()


def hold(entries: Sequence[Entry], plan: Plan) -> Outcome:
    """Holds a contest.

    Raises:
        ContestError: A contestant failed, did not answer in time, or its losses are not those of the first one.
    """
    outcome = Outcome()
    for _ in range(plan.launches):
        with _started(entries, plan) as contestants:
            _compare([(each.entry, each.ask("losses", plan.check_steps, plan.deadline)) for each in contestants], plan)
            times: dict[str, list[float]] = {}
            for turn in range(plan.rounds + 1):
                shift = turn % len(contestants)
                for each in [*contestants[shift:], *contestants[:shift]]:
                    found = each.ask("turn", plan.steps, plan.deadline)
                    parts = found if isinstance(found, dict) else {"": found}
                    for part, seconds in parts.items() if turn else ():
                        times.setdefault(each.entry.name + part, []).append(seconds / each.entry.steps_per_call)
        for name, seconds in times.items():
            outcome.add(name, seconds)
    return outcome


@contextlib.contextmanager
def _started(entries: Sequence[Entry], plan: Plan) -> Iterator[list[Started]]:
    with contextlib.ExitStack() as stack:
        contestants = []
        for entry in entries:
            logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(entry.workers)]
            contestants.append(Started(entry, logs))
            stack.callback(contestants[-1].end)
            if entry.workers > 1:  # Its ports are free until it has taken them.
                contestants[-1].ready(plan.deadline)
        for contestant in contestants:
            if contestant.entry.workers == 1:
                contestant.ready(plan.deadline)
        yield contestants


def _compare(losses: Sequence[tuple[Entry, list[float]]], plan: Plan) -> None:
    first, expected = losses[0]
    for entry, found in losses[1:]:
        if not entry.checked:
            continue
        apart = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(found, expected, strict=True))
        if not apart <= plan.tolerance:
            raise ContestError(
                f"{entry.name} does not compute what {first.name} does: the losses of {plan.check_steps} steps are "
                f"{apart:.1e} apart, {plan.tolerance:.0e} is allowed.\n{entry.name}: {found}\n{first.name}: {expected}"
            )


def _cluster_environments(workers: int) -> list[dict[str, str]]:
    if workers == 1:
        return [{}]
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return [
        {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
            "RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]),
        }
        for rank in range(workers)
    ]  # fmt: skip
