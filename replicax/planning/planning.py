"""`rx.plan`: a step that is planned, on the devices of its strategy or on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import replicax.context as context
from replicax.contracts.strategy import StrategyBase
from replicax.errors import ArgumentError
from replicax.planning.planner import plan_of
from replicax.planning.process import KINDS, TIMEOUT_S, called, planned
from replicax.planning.report import Plan
from replicax.planning.search import search
from replicax.planning.topologies import Topology
from replicax.program.call_checks import check_function
from replicax.program.function import Function, function
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    import keras


def plan(
    step: PyTreeFunction,
    args: Sequence[PyTree] = (),
    *,
    strategy: StrategyBase | Callable[[], StrategyBase] | None = None,
    on: str | None = None,
    hosts: int | None = None,
    steps: str = KINDS[0],
    timeout: float = TIMEOUT_S,
    whole: bool = False,
) -> Plan:
    """Returns what is known of a step before it runs: its memory, its collectives, its work.

    Without `on` the step is traced and compiled for the devices that there are, and not run: `step` is an
    `rx.function`, or what `strategy.run` would be given. With `on` it is planned for devices that need not exist, in a
    process of its own whose arrays have no values: `step` then makes all that it needs, and trains, as a script does.
    It comes to its first step, and no further.

    Args:
        step: The function.
        args: Its arguments, in a list or tuple. With `on` they are pickled.
        strategy: The strategy; by default the current one. With `on`, a function that makes one, such as
            `rx.MirroredStrategy`: `step` is called in its scope.
        on: The devices: TPUs as `"v5e:4x4"`, `"v5p:2x2x2"` or `"v6e:16x16"`, which need `replicax[plan]`; `"cpu:64"`;
            or `"gpu:8x80GiB"`, where XLA's compiler for CPUs estimates what it would be on GPUs.
        hosts: How many hosts the devices belong to, where `on` does not say it.
        steps: With `on`, the kind of step: `"train"`, or `"predict"` for the first that changes no state.
        timeout: With `on`, the seconds that it may take.
        whole: With `on`, for TPUs: whether to wait until libtpu has generated the code of a large program, which takes
            it minutes. All else in a plan is known before that, but for the size of the code.

    Raises:
        ArgumentError: `step` cannot be called; `strategy` does not go with `on`, or is missing.
        PlanError: The devices are unknown; or the function comes to no such step, or uses a strategy that cannot be
            planned, such as parameter servers.
        ProgramError: The strategy cuts steps in parts.

    `rx.plan.search(step, args, on=...)` tries strategies, layouts and meshes, and ranks them.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy()
        >>> with strategy.scope():
        ...     w = rx.Variable([[1.0, 2.0]])
        >>> def step(x):
        ...     _, [gradient] = rx.value_and_grad(lambda: (x @ w.value.T).sum() / 8, [w])()
        ...     w.assign_sub(gradient)
        >>> found = rx.plan(step, (np.ones((4, 2), np.float32),), strategy=strategy)
        >>> found.bytes_of("parameters"), [each.kind for each in found.collectives], found.fits
        (8, ['all-reduce'], True)
    """
    check_function("`step`", step)
    if not isinstance(args, (list, tuple)):
        raise ArgumentError(f"`args` is a list or a tuple of arguments, got {args!r:.100}.")
    if steps not in KINDS:
        raise ArgumentError(f"`steps` is one of {KINDS}, got {steps!r:.100}.")
    if on is not None:
        if isinstance(strategy, StrategyBase):
            raise ArgumentError(
                f"{strategy!r} is one of the devices here. With on={on!r} give a function that makes a strategy there, "
                f"such as strategy=rx.{type(strategy).__name__}, and let `step` make the model, too."
            )
        script = called(step, args, strategy)
        (found,) = planned(Topology.of(on, hosts), script, steps=(steps,), timeout=timeout, whole=whole)
        return found
    if hosts is not None:
        raise ArgumentError(f"hosts={hosts!r} goes with `on`.")
    if not isinstance(step, Function):
        strategy = strategy or context.current().strategy
        if not isinstance(strategy, StrategyBase):
            raise ArgumentError(f"Give the strategy whose `run` would get the step, got strategy={strategy!r:.100}.")
        step = _under(strategy, step)
    program, arrays = step.program(*args)
    return plan_of(program, arrays, Topology.present(_devices_of(program, strategy)))


plan.search = search  # type: ignore[attr-defined]  # `rx.plan.search`


def _under(strategy: StrategyBase, step: PyTreeFunction) -> Function[..., PyTree]:
    run: Any = strategy

    def planned_step(*args: PyTree) -> PyTree:
        return run.run(step, args)

    planned_step.__name__ = getattr(step, "__name__", "step")
    return function(planned_step)


def _devices_of(program: Any, strategy: object) -> Sequence[Any]:
    import jax

    of_strategy = strategy if isinstance(strategy, StrategyBase) else program.strategy
    return (
        list(of_strategy.placement.mesh_for(of_strategy.placement.replicas).devices.flat)
        if (of_strategy is not None and of_strategy.placement.replicas > 1)
        else jax.local_devices()[:1]
    )


def plan_training(strategy: StrategyBase, model: keras.Model, batch: PyTree) -> Plan:
    """Returns the plan of a training step of `fit`."""
    from replicax.keras.models import strategy_of, training_program

    if strategy_of(model) is not strategy:
        raise ArgumentError(f"{model!r:.100} belongs to {strategy_of(model)!r}, not to {strategy!r}.")
    if getattr(model, "optimizer", None) is None:
        raise ArgumentError(f"Model {model.name!r} is not compiled: call model.compile first.")
    program, arrays = training_program(model, batch)
    return plan_of(program, arrays, Topology.present(_devices_of(program, strategy)))
