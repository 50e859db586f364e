"""Starting the process that plans, and what it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from replicax.errors import PlanError
from replicax.errors.exit_codes import ExitCode, describe, from_returncode
from replicax.planning.report import Plan
from replicax.planning.topologies import Topology

#: How long a script may take to its first step: it reads its data as ever.
TIMEOUT_S = 1800.0
KINDS = ("train", "predict")


class ScriptFailedError(PlanError):
    """The script ended with an error of its own before the step.

    Attributes:
        code: Its exit code.
    """

    def __init__(self, code: int):
        super().__init__(f"It has failed before its step was planned ({describe(code)}); its output says why.")
        self.code = code


def planned(
    on: Topology,
    target: str,
    arguments: Sequence[str] = (),
    *,
    steps: Sequence[str] = KINDS[:1],
    pickled: bytes | None = None,
    timeout: float = TIMEOUT_S,
) -> list[Plan]:
    """Returns the plans of a script's first steps, one for each kind; its output goes to standard error.

    Raises:
        PlanError: It comes to no such step, or uses what cannot be planned; or takes longer than `timeout` seconds.
        ScriptFailedError: It fails.
    """
    environ = dict(os.environ)
    on.prepare(environ)
    found_in = [*environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in found_in if path))
    told = json.dumps({"on": on.name, "hosts": None if on.platform == "tpu" else on.hosts, "steps": list(steps)})
    with tempfile.TemporaryDirectory(prefix="replicax-plan-") as folder:
        out = Path(folder, "plans.json")
        command = [sys.executable, "-m", "replicax.planning.child", str(out), told, target, *arguments]
        stdin = None if pickled is None else subprocess.PIPE
        with subprocess.Popen(command, env=environ, stdin=stdin, stdout=_error_output()) as process:
            try:
                process.communicate(pickled, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise PlanError(
                    f"{target} has not come to its step after {timeout:g} s. It runs as ever until then: let it read "
                    "less data, or give it more time."
                ) from None
            except BaseException:
                process.kill()
                raise
        if process.returncode or not out.exists():
            raise ScriptFailedError(from_returncode(process.returncode) or ExitCode.FAILED)
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
