"""Starting the process that plans, and what it reports."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replicax.compat.systems import kill_group
from replicax.contracts.strategy import StrategyBase
from replicax.errors import PlanError
from replicax.errors.exit_codes import ExitCode, describe, from_returncode
from replicax.planning.report import Plan
from replicax.planning.topologies import Topology
from replicax.planning.variations import Variation
from replicax.typing import PyTree, PyTreeFunction

#: How long a script may take to its first step: it reads its data as ever.
TIMEOUT_S = 1800.0
KINDS = ("train", "predict")
CALL = "--call"  # in the place of a script's path


@dataclasses.dataclass(frozen=True)
class Script:
    """The script that a process runs to be planned."""

    target: str  # the path of a script, or `CALL`
    arguments: Sequence[str] = ()
    pickled: bytes | None = None  # the function that is called with `CALL`


class _Call:
    """A function that plays a script."""

    def __init__(self, step: PyTreeFunction, args: tuple[PyTree, ...], make: Callable[[], StrategyBase] | None):
        self._step, self._args, self._make = step, args, make

    def __call__(self) -> None:
        if self._make is None:
            self._step(*self._args)
            return
        strategy: Any = self._make()
        with strategy.scope():
            self._step(*self._args)


def called(step: PyTreeFunction, args: Sequence[PyTree], make: Callable[[], StrategyBase] | None) -> Script:
    """Returns a function as a script, called in the scope of the strategy that `make` makes, if that is given."""
    import cloudpickle

    return Script(CALL, pickled=cloudpickle.dumps(_Call(step, tuple(args), make)))


def planned(
    on: Topology,
    script: Script,
    *,
    steps: Sequence[str] = KINDS[:1],
    timeout: float = TIMEOUT_S,
    variation: Variation | None = None,
    running: set[int] | None = None,
    whole: bool = False,
) -> list[Plan]:
    """Returns the plans of a script's first steps, one for each kind; its output goes to standard error.

    With a `variation` it trains in that way, and is not compiled if its state alone does not fit. `whole` waits for the
    code of TPUs, however long that takes. While it runs, its
    process is in `running`, for `kill_group`.

    Raises:
        PlanError: It fails, comes to no such step, or uses what cannot be planned; or takes longer than `timeout`
            seconds.
    """
    environ = dict(os.environ)
    on.prepare(environ)
    found_in = [*environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in found_in if path))
    varied = None if variation is None else dataclasses.asdict(variation)
    hosts = None if on.platform == "tpu" else on.hosts
    told = json.dumps({"on": on.name, "hosts": hosts, "steps": list(steps), "variation": varied, "whole": whole})
    with tempfile.TemporaryDirectory(prefix="replicax-plan-") as folder:
        out = Path(folder, "plans.json")
        command = [sys.executable, "-m", "replicax.planning.child", str(out), told, script.target, *script.arguments]
        stdin = None if script.pickled is None else subprocess.PIPE
        # In a group of its own: Ctrl-C in the terminal is for the process that asked, which ends this one and its own.
        with subprocess.Popen(
            command, env=environ, stdin=stdin, stdout=_error_output(), start_new_session=True
        ) as process:
            running = set() if running is None else running
            running.add(process.pid)
            try:
                process.communicate(script.pickled, timeout)
            except subprocess.TimeoutExpired:
                raise PlanError(
                    f"{script.target} has not come to its step after {timeout:g} s. It runs as ever until then: let it "
                    "read less data, or give it more time."
                ) from None
            finally:
                running.discard(process.pid)
                if process.returncode is None:
                    kill_group(process.pid)
        if process.returncode or not out.exists():
            code = from_returncode(process.returncode) or ExitCode.FAILED
            raise PlanError(f"It has failed before its step was planned ({describe(code)}); its output says why.")
        found = json.loads(out.read_text(encoding="utf-8"))
    if found["failed"]:
        raise PlanError(found["failed"])
    plans = [Plan.from_dict(each) for each in found["plans"]]
    missing = [kind for kind in steps if kind not in {plan.kind for plan in plans}]
    if missing:
        raise PlanError(
            f"The script has ended without a step of the kind {', '.join(missing)}. A plan is made of the first call "
            "of fit, strategy.run or an rx.function: one that trains assigns trainable variables, or returns the state "
            "that it was given."
        )
    return plans


def _error_output() -> int | None:
    """Returns where the script's output goes: beside the report, which has standard output."""
    try:
        return sys.stderr.fileno()
    except (OSError, AttributeError):  # In a notebook, and in tests, it is no file.
        return subprocess.DEVNULL
