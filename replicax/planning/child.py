"""The process that plans a script: it runs it as Python does, with devices that do not exist and arrays without values.

    python -m replicax.planning.child PLAN.json SETTINGS train.py [ARGUMENTS]

`SETTINGS` are JSON: `on`, `hosts`, `steps`, `whole`, and the `variation` in which it trains, or null. The plans are
written to the file, one object for each, when the last step that was asked for has been planned; then the process ends.
With `--call` in the place of the script a pickled function is called.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import replicax.context as context
from replicax.errors import PlanError
from replicax.planning.compiling import PATIENCE_S
from replicax.planning.planner import kind_of, plan_of, variables_of
from replicax.planning.process import CALL
from replicax.planning.report import Plan
from replicax.planning.topologies import Topology
from replicax.planning.variations import Variation
from replicax.program.lifting import Program

_SECONDS_TO_END = 10.0  # for a script whose step has been planned


class Planned(BaseException):
    """Ends the script: no `except Exception` of its own holds it up."""


class Planner:
    """Plans the first step of each kind that is wanted, and then tells the plans and ends the script."""

    def __init__(
        self,
        on: Topology,
        wanted: Sequence[str],
        compiles_all: bool,
        patience: float | None,
        tell: Callable[[Sequence[Plan]], None],
    ):
        self._on, self._hosts, self._wanted = on, on.num_hosts(), list(wanted)
        self._compiles_all, self._patience, self._tell = compiles_all, patience, tell
        self.plans: list[Plan] = []

    @property
    def is_done(self) -> bool:
        """Whether all plans have been told."""
        return not self._wanted

    def __call__(self, program: Program, arrays: Sequence[Any]) -> None:
        kind = kind_of(program, arrays, program.trace(arrays))
        if kind not in self._wanted:
            return
        plan = plan_of(
            program, arrays, self._on, self._hosts, _unused(program),
            compiles_all=self._compiles_all, patience=self._patience,
        )  # fmt: skip
        self.plans.append(plan)
        if self._wanted == [kind]:
            self._tell(self.plans)
            # The script may catch `Planned`, and go on.
            ending = threading.Timer(_SECONDS_TO_END, os._exit, [0])
            ending.daemon = True
            ending.start()
        self._wanted.remove(kind)
        if self.is_done:
            raise Planned


def _unused(program: Program) -> list[Any]:
    """Returns the variables that live on the devices and that a program does not use: they take memory, too."""
    from replicax.compat.jax_abstract import is_abstract
    from replicax.contracts.variable_access import array_of, has_array

    used = {id(each): each for each in variables_of(program)}
    kinds = tuple({type(each) for each in used.values()})
    return [
        each
        for each in gc.get_objects()
        if kinds and type(each) in kinds and id(each) not in used and has_array(each) and is_abstract(array_of(each))
    ]


def _refuse_others() -> None:
    """Refuses strategies that start processes of their own."""
    from replicax.islands.strategy import IslandStrategy
    from replicax.parameter_server import ParameterServerStrategy

    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        name = type(self).__name__
        raise PlanError(
            f"{name} cannot be planned: its workers run programs of their own, and exchange values outside of them. "
            "Each worker holds what one device of rx.OneDeviceStrategy does; plan that, and count the variables once "
            "more for each copy that the exchange keeps."
        )

    IslandStrategy.__init__ = refuse  # type: ignore[method-assign]
    ParameterServerStrategy.__init__ = refuse  # type: ignore[method-assign]


def prepare(on: Topology) -> None:
    """Has this process plan from now on: arrays have no values, and its devices are those of `on`."""
    import jax

    import replicax.config
    import replicax.runtime.devices as devices
    from replicax.compat.jax_abstract import install

    jax.devices()  # JAX starts on the CPU before libtpu is loaded.
    install(on.devices() if on.platform == "tpu" else None, on.platform)

    def set_virtual_devices(count: int) -> None:
        del count  # There are those that the plan is for.

    replicax.config.set_virtual_devices = devices.set_virtual_devices = set_virtual_devices
    _refuse_others()


def main(arguments: list[str]) -> int:
    """Runs the script and writes the plans; returns an exit code."""
    out, told, target, *rest = arguments
    settings = json.loads(told)
    on = Topology.of(settings["on"], settings["hosts"])
    begin, planner = time.perf_counter(), None
    finished: Callable[[Plan], Plan] = lambda plan: plan  # noqa: E731
    sys.argv = [target, *rest]

    def tell(plans: Sequence[Plan], failed: str = "") -> None:
        seconds = time.perf_counter() - begin
        found = {"plans": [finished(plan).as_dict() for plan in plans], "failed": failed, "seconds": seconds}
        Path(out).write_text(json.dumps(found), encoding="utf-8")

    failed = ""
    try:
        prepare(on)
        varied = settings["variation"]
        if varied is not None and target != CALL:
            finished = Variation(**varied).install()
        patience = None if settings["whole"] else PATIENCE_S if varied is None else 0.0
        planner = Planner(on, settings["steps"], varied is None, patience, tell)
        with context.entered(planner=planner):
            _run(target)
    except PlanError as error:
        failed = str(error)
    except BaseException as error:
        ends = isinstance(error, SystemExit) and (error.code in (None, 0) or (planner is not None and planner.plans))
        if not ends and (planner is None or not planner.is_done):
            raise
    if planner is None or not planner.is_done:
        tell(planner.plans if planner is not None else [], failed)
    return 0


def _run(target: str) -> None:
    if target == CALL:
        import cloudpickle

        cloudpickle.load(sys.stdin.buffer)()
        return
    sys.path[0] = os.path.dirname(os.path.abspath(target))
    runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except SystemExit as error:  # of the script's, before its step
        code = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Threads are not waited for: those that prefetch for the script, and one that may still compile.
