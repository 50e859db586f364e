"""Certifies a script: runs it on one device and on targets, and compares."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from replicax.checks import checked
from replicax.errors import ArgumentError
from replicax.tools.certifying.catalogue import REFUSED, Case, with_rule
from replicax.tools.certifying.certificate import Certificate, Outcome, same_verdicts, script_digest, versions
from replicax.tools.certifying.comparing import Difference, Tolerances, compare, rows_usable
from replicax.tools.certifying.recording import Recording
from replicax.tools.certifying.starting import NotRunError, Run, Runner
from replicax.tools.certifying.targets import Target, targets

#: The seeds of the runs with other last bits.
SEEDS = (1, 2)


@checked
def certify(
    script: str | os.PathLike[str],
    steps: int = 5,
    on: str = "mirrored:8",
    arguments: Sequence[str] = (),
    limit_s: float = 600.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Runs a script on one device and on each target, and finds the first tensor that differs.

    Each run is a process of its own, on virtual CPU devices; the strategies of the script become the target's. By how
    much tensors may differ is measured: the script runs on one device again, with other last bits and with the rows of
    each batch in another order.

    Args:
        script: The script. It makes a strategy, and trains by `Model.fit` or `strategy.run`.
        steps: How many training steps are compared; then the script ends.
        on: Targets with commas between them: `mirrored:N`, `fully_sharded:N`, `central_storage:N`, `workers:N`.
        arguments: The arguments of the script.
        limit_s: Seconds that each run may take.
        progress: Gets a line for each thing that is done.

    Returns:
        The certificate: its `is_certified` is True if no target differs. It can be written to a file.

    Raises:
        ArgumentError: There is no such script, a target is unknown, or `steps` is no number of at least 1.
        NotRunError: The script fails on one device, or makes no step there, so that there is nothing to compare with.

    Example:
        >>> rx.certify("no_such_file.py", on="mirrored:2")
        Traceback (most recent call last):
        replicax.errors.ArgumentError: There is no script 'no_such_file.py'. Name a file.
    """
    with Runner() as runner:
        return certified_by(runner, script, steps, on, arguments, limit_s, progress)


def certified_by(
    runner: Callable[[Run], Recording],
    script: str | os.PathLike[str],
    steps: int,
    on: str,
    arguments: Sequence[str] = (),
    limit_s: float = 600.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Certifies a script by a runner that may have run others before."""
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"There is no script {str(script)!r}. Name a file.")
    if not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"A certificate needs at least 1 step, got {steps!r}.")
    wanted = targets(on)
    digest = script_digest(path)
    run = Run(path.resolve(), tuple(arguments), steps, limit_s)

    def done(run: Run, where: str) -> Recording:
        progress(f"{path.name} on {where}")
        return runner(run)

    base = _whole(done(run, "one device"), path)
    dtype = str(base.facts["dtype"])
    perturbed, names = [], []
    for seed in SEEDS:
        names.append(f"last bits of {dtype}, seed {seed}")
        perturbed.append(_whole(done(run._replace(seed=seed, dtype=dtype), f"one device, {names[-1]}"), path))
    rows = done(run._replace(reverses_rows=True), "one device, rows in the opposite order")
    if rows_usable(base, perturbed, rows):
        perturbed.append(rows)
        names.append("rows of each batch in the opposite order")
    tolerances = Tolerances(base, perturbed)
    outcomes = tuple(
        _outcome(base, path, lambda each=each: done(run._replace(target=each), str(each)), each, tolerances)  # type: ignore[misc]
        for each in wanted
    )
    return Certificate(
        str(path), digest, tuple(arguments), min(steps, base.steps), dtype, tuple(names), versions(), outcomes
    )


def certify_again(path: Path, limit_s: float = 600.0, progress: Callable[[str], None] = print) -> list[str]:
    """Verifies a certificate: its digest, its script's, and that the script still computes what it says.

    Returns:
        A sentence for each thing that is not as the certificate says; none if all is.
    """
    before = Certificate.read(path)
    script = Path(before.script)
    if not script.is_file():
        return [f"The script {before.script!r} is not there."]
    if script_digest(script) != before.script_digest:
        return [f"{script.name} has changed since it was certified."]
    on = ",".join(outcome.target for outcome in before.outcomes)
    now = certify(script, before.steps, on, before.arguments, limit_s, progress)
    others = [
        f"{name} was {number}, and is {now.versions.get(name)}."
        for name, number in before.versions.items()
        if now.versions.get(name) != number
    ]
    for line in others:
        progress(line)  # Another version may compute the same.
    wrong = same_verdicts(before.outcomes, now.outcomes)
    return wrong if wrong or before.is_certified else [f"{script.name} was not certified: {before.outcomes[0]}"]


def _outcome(
    base: Recording, script: Path, run: Callable[[], Recording], target: Target, tolerances: Tolerances
) -> Outcome:
    replicas = target.number
    try:
        other = run()
    except NotRunError as error:
        failed = Difference(0, "script", "the script", "", math.inf, 0.0, str(error))
        return Outcome(str(target), replicas, "", 0, 0, (), 0.0, failed)
    compared, left_out, found, largest = compare(base, other, tolerances)
    difference = None
    if found is not None:
        here, there, difference = found
        if there is not None:
            difference = with_rule(difference, Case(here, there, base, other, replicas, tolerances))
    if other.error and (difference is None or difference.step > other.steps):
        raised, line = _raised(other.error, script)
        detail = f"The script fails after {other.steps} steps: {raised}"
        difference = Difference(other.steps, "script", "the script", line, math.inf, 0.0, detail, REFUSED, "it raised")
    mesh = str(other.facts["mesh"])
    return Outcome(str(target), replicas, mesh, other.steps, compared, left_out, largest, difference)


def _whole(recording: Recording, script: Path) -> Recording:
    """Returns a recording of one device that can be compared with."""
    if recording.error:
        raised, line = _raised(recording.error, script)
        raise NotRunError(f"{script.name} fails on one device{line and f' ({line})'}: {raised}")
    if not recording.steps or not recording.facts["strategies"]:
        raise NotRunError(
            f"{script.name} made {recording.steps} training steps and {recording.facts['strategies']} strategies on "
            "one device: there is nothing to compare. A certificate sees Model.fit, and the gradients in strategy.run, "
            "under a strategy of replicax."
        )
    return recording


def _raised(text: str, script: Path) -> tuple[str, str]:
    """Returns the line of a traceback that names the error, and the script's innermost line in it."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    # Notes may follow.
    named = [line.strip() for line in lines[last + 1 :] if line.strip() and not line[0].isspace()]
    places = re.findall(rf'File ".*{re.escape(script.name)}", line (\d+)', text)
    return (named or [lines[-1].strip()])[0], f"{script.name}:{places[-1]}" if places else ""
