"""`replicax migrate --prove`: a script on TensorFlow against its conversion on replicax."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from replicax.errors import ArgumentError
from replicax.tensorflow.proof.comparing import Difference, first_difference, loss_differences
from replicax.tensorflow.proof.recording import Recording
from replicax.tensorflow.proof.running import Run, RunFailedError, on_replicax, on_tensorflow

#: How much closer than the tables of the corpus a proof looks: it reads the variables after every step.
OF_UPDATE = 1e-4


class Verdict(NamedTuple):
    """The result of comparing a script with its conversion on one number of replicas."""

    replicas: int
    steps: int  # how many were compared
    difference: Difference | None  # the first number that differs
    largest_loss: float  # the largest relative difference of a loss
    failure: str = ""  # how TensorFlow failed on as many replicas; the conversion was compared with one then

    @property
    def is_inconclusive(self) -> bool:
        """Whether nothing was proved: batches may depend on the number of replicas, and TensorFlow had only one."""
        return bool(self.failure) and self.difference is not None

    def __str__(self) -> str:
        where, failure = replicas_text(self.replicas), f" {self.failure}" if self.failure else ""
        if self.difference is None:
            other = " from TensorFlow on 1 replica" if self.failure else ""
            within = f"(losses within {self.largest_loss:.1e})"
            return f"{where}: no tensor differs{other} in {self.steps} steps {within}.{failure}"
        if self.failure:
            return (
                f"{where}: not proved.{failure} Compared with TensorFlow on 1 replica: {self.difference.detail} "
                "This is right if batches grow with the number of replicas. Give --replicas 1 to leave it out."
            )
        return f"{where}: {self.difference.detail}"


def replicas_text(count: int) -> str:
    """Returns such as `"1 replica"`."""
    return f"{count} replica{'s' if count != 1 else ''}"


def tensorflow_python(given: Path | None) -> Path:
    """Returns an interpreter with TensorFlow: the given one, or this one if it has it."""
    if given is not None:
        if not given.exists():
            raise ArgumentError(f"--tensorflow-python {given}: there is no such file. Name an interpreter.")
        return given
    if importlib.util.find_spec("tensorflow") is None:
        raise ArgumentError(
            "A proof runs the script on TensorFlow, and this Python has none. Name an interpreter that has: "
            "--tensorflow-python PATH."
        )
    return Path(sys.executable)


def prove(
    script: Path,
    converted: Path,
    python: Path,
    steps: int = 20,
    arguments: Sequence[str] = (),
    replicas: Sequence[int] = (1, 8),
    legacy_keras: bool = False,
    limit_s: float = 300.0,
    say: Callable[[str], None] = print,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Verdict]:
    """Runs a script on TensorFlow and its conversion on replicax, with the same initial values and batches."""
    if steps < 1:
        raise ArgumentError(f"A proof needs at least 1 step, not {steps}.")
    if not replicas or min(replicas) < 1:
        raise ArgumentError(f"A proof runs on 1 replica or more, not on {list(replicas)}.")
    wanted = Run(script, arguments, {}, 1, steps, stop=True, every=True, limit_s=limit_s)
    alone: Recording | None = None
    verdicts = []

    def tensorflow(count: int) -> Recording:
        run = wanted._replace(devices=count)  # As many as replicax has: batches may depend on it.
        return _timed(lambda: on_tensorflow(run, python, legacy_keras), run, "TensorFlow", progress)

    for count in replicas:
        failure = ""
        try:
            before = alone if count == 1 and alone else tensorflow(count)
        except RunFailedError as error:
            if count == 1:
                raise
            failure = str(error)
            before = alone = alone or tensorflow(1)
        alone = before if count == 1 else alone
        run = wanted._replace(script=converted, devices=count)
        after = _timed(partial(on_replicax, run), run, "replicax", progress)
        verdicts.append(verdict(before, after, count)._replace(failure=failure))
        say(str(verdicts[-1]))
    return verdicts


def verdict(before: Recording, after: Recording, replicas: int) -> Verdict:
    """Compares two recordings closely."""
    losses = loss_differences(before, after)
    return Verdict(replicas, len(losses), first_difference(before, after, of_update=OF_UPDATE), max(losses, default=0))


def _timed(start: Callable[[], Recording], run: Run, library: str, progress: Callable[[str], None]) -> Recording:
    """Makes a run, says so, and returns its recording if it is whole."""
    where = f"{run.script.name} on {library}, {replicas_text(run.devices)}"
    progress(f"{where}: running, for at most {run.limit_s:g} s")
    began = time.monotonic()
    recording = start()
    progress(f"{where}: {len(recording.objectives)} steps in {time.monotonic() - began:.0f} s")
    if recording.error:
        raise RunFailedError(
            f"{library} failed to run {run.script.name} on {replicas_text(run.devices)}, after "
            f"{len(recording.objectives)} steps: {error_line(recording.error)}"
        )
    if not recording.objectives or not all(map(math.isfinite, recording.objectives)):
        raise RunFailedError(
            f"{run.script.name} made {len(recording.objectives)} steps on {replicas_text(run.devices)}, or its loss is "
            "not finite: there is nothing to compare. A proof sees Model.fit and what tf.GradientTape or "
            "rx.value_and_grad differentiates."
        )
    return recording


def error_line(error: str) -> str:
    """Returns the line of a traceback that says what was wrong: the last one, or TensorFlow's last status.

    >>> error_line("Traceback:\\n  a.py\\nValueError: no data\\n")
    'ValueError: no data'
    """
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    # A status, such as `(1) INVALID_ARGUMENT: ...`, is followed by names of nodes and counts of errors.
    statuses = [line for line in lines if re.match(r"(\(\d+\)\s+)?[A-Z]+(_[A-Z]+)+: ", line)]
    return (statuses or lines or [""])[-1]
