"""One way in which a script could train: another strategy in the place of its own, remat, accumulation."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from replicax.errors import PlanError
from replicax.planning.report import Plan
from replicax.tools.certifying.targets import replace_strategies

#: Strategies of a script that another can stand for.
REPLACED = (
    "MirroredStrategy", "FullyShardedStrategy", "LayoutStrategy", "TPUStrategy", "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
)  # fmt: skip
_LONGEST_MODEL_AXIS = 8


@dataclasses.dataclass(frozen=True)
class Variation:
    """A way in which a script could train.

    Attributes:
        strategy: The name of the strategy.
        options: Its options.
        remat: Whether activations of Keras's layers are computed again in the backward pass.
        accumulation: The number of micro-batches of a global batch.
    """

    strategy: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    remat: bool = False
    accumulation: int = 1

    def __str__(self) -> str:
        """Returns it as a line says it."""
        more = [*(["remat"] if self.remat else []), *([f"{self.accumulation} micro-batches"] * (self.accumulation > 1))]
        return ", ".join([self._call, *more])

    @property
    def _call(self) -> str:
        return f"{self.strategy}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"

    def lines(self) -> list[str]:
        """Returns the lines for the script."""
        found = [f"strategy = rx.{self._call}"]
        if self.remat:
            found.append('with strategy.scope(), keras.RematScope("full"):  # around the making of the model')
        if self.accumulation > 1:
            n = self.accumulation
            found.append(f"# fit: batch_size // {n}, and keras.optimizers.Adam(..., gradient_accumulation_steps={n})")
            found.append(f"# a loop: rx.accumulate_gradients(rx.value_and_grad(loss, variables), steps={n})")
        return found

    def make(self) -> Any:
        """Returns the strategy."""
        rx: Any = importlib.import_module("replicax")

        return getattr(rx, self.strategy)(**self.options)

    def install(self) -> Callable[[Plan], Plan]:
        """Has the script that runs next in this process train so; returns what makes its plan that of a global batch.

        `--call` makes its strategy itself (`make`).
        """
        rx: Any = importlib.import_module("replicax")

        replace_strategies(rx, self.strategy, lambda strategy: None, REPLACED, self.options)
        if self.remat:
            import keras

            keras.RematScope("full").__enter__()
        return _accumulate(rx, self.accumulation) if self.accumulation > 1 else lambda plan: plan


def variations(devices: int, platform: str) -> list[Variation]:
    """Returns the strategies, layouts, shapes of meshes and kinds of update there are for a number of devices."""
    if devices == 1:
        return [Variation("OneDeviceStrategy", {"device": f"{platform}:0"})]
    found = [
        Variation("MirroredStrategy", {"shard_update": False}),
        Variation("MirroredStrategy", {"shard_update": True}),
        Variation("FullyShardedStrategy"),
    ]
    model = 2
    while model <= min(devices, _LONGEST_MODEL_AXIS) and devices % model == 0:
        shape = {"batch": devices // model, "model": model}
        found += [Variation("LayoutStrategy", {"mesh_shape": shape, "layout": kind}) for kind in ("auto", "tensor")]
        model *= 2
    return found


def smaller(variation: Variation) -> list[Variation]:
    """Returns what can be tried where a variation does not fit for its temporaries: each computes more, or waits."""
    change = functools.partial(dataclasses.replace, variation)
    return [change(remat=True), change(accumulation=4), change(remat=True, accumulation=4)]


def _accumulate(rx: Any, steps: int) -> Callable[[Plan], Plan]:
    """Makes `fit` and `rx.value_and_grad` take their batches in micro-batches."""
    import keras

    in_fit: list[bool] = []
    fit, gradients_of = keras.Model.fit, rx.value_and_grad
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_in_parts(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        rows = bound.arguments.get("batch_size") or 32
        if self.optimizer.built or not hasattr(bound.arguments.get("x"), "shape") or rows % steps:
            raise PlanError(
                f"`fit` cannot be tried with {steps} micro-batches: that needs arrays, an optimizer that is not built, "
                f"and a batch_size that {steps} divides."
            )
        self.optimizer.gradient_accumulation_steps = steps
        bound.arguments["batch_size"] = rows // steps
        in_fit.append(True)
        return fit(*bound.args, **bound.kwargs)

    @functools.wraps(gradients_of)
    def gradients_in_parts(*args: Any, **kwargs: Any) -> Any:
        made = gradients_of(*args, **kwargs)
        in_parts = rx.accumulate_gradients(made, steps)
        return lambda *rows, **more: in_parts(*rows, **more) if rows or more else made()

    keras.Model.fit = fit_in_parts
    vars(rx)["value_and_grad"] = gradients_in_parts

    def of_global_batch(plan: Plan) -> Plan:
        """A step of `fit` is one micro-batch; one of a loop has them all."""
        if not in_fit or plan.seconds is None:
            return plan
        low, high = plan.seconds
        return dataclasses.replace(plan, seconds=(steps * low, steps * high), note=f"In {steps} steps of fit.")

    return of_global_batch
