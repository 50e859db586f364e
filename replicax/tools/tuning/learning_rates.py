"""The outcome of a learning-rate range test, and learning rates for larger batches."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

import numpy as np

from replicax.checks import checked, checked_int, is_real
from replicax.contracts.shown import html_table, in_columns
from replicax.errors import ArgumentError
from replicax.tools import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 12  # lines of the table
_HARDLY = 0.01


@checked
@dataclasses.dataclass(frozen=True)
class LearningRates:
    """The outcome of `rx.tuning.find_learning_rate`.

    Attributes:
        learning_rates: The learning rate of each step, ascending.
        losses: The loss of each step, before its update; all finite.
        smoothed: The exponentially smoothed losses, without the bias to their beginning.
        diverged: Whether the test ended early because the loss rose, or was not finite any more.

    Example:
        >>> found = LearningRates((0.1, 0.2, 0.4, 0.8), (3.0, 2.9, 1.5, 1.4), (3.0, 2.9, 1.5, 1.4), False)
        >>> found.suggestion
        0.2
    """

    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    diverged: bool

    @property
    def suggestion(self) -> float:
        """The learning rate at which the smoothed loss falls most steeply, before its minimum.

        The slope is that over a tenth of the steps, and the first tenth does not count: noise would decide there.

        Raises:
            ArgumentError: It falls nowhere.
        """
        curve, count = np.asarray(self.smoothed), len(self.smoothed)
        lowest, reach = int(np.argmin(curve)), max(1, count // 20)
        at = np.arange(min(count // 10, lowest), lowest + 1)
        left, right = np.maximum(at - reach, 0), np.minimum(at + reach, lowest)
        slopes = (curve[right] - curve[left]) / np.maximum(right - left, 1)
        steepest = int(np.argmin(slopes))
        if not slopes[steepest] < 0:
            raise ArgumentError(
                f"The loss falls at no learning rate between {self.learning_rates[0]:.2g} and "
                f"{self.learning_rates[-1]:.2g}. {self.remark or 'Look at the plot, and try more steps.'}"
            )
        return self.learning_rates[int(at[steepest])]

    @property
    def remark(self) -> str | None:
        """Advice where the range of learning rates was of no use; None where it was of use.

        It is of no use if the smoothed loss falls by less than a hundredth, or rises from the beginning.
        """
        curve, count = np.asarray(self.smoothed), len(self.smoothed)
        lowest = int(np.argmin(curve))
        if self.diverged and lowest <= count // 10:
            return (
                f"The loss rises from the beginning, at {self.learning_rates[0]:.2g}: the learning rates are too "
                "large. Try a smaller `min_learning_rate`."
            )
        if not self.diverged and curve[0] - curve[lowest] < _HARDLY * np.max(np.abs(curve)):
            return (
                f"The loss hardly falls, from {curve[0]:.4g} to {curve[lowest]:.4g}: learning rates up to "
                f"{self.learning_rates[-1]:.2g} are too small. Try a larger `max_learning_rate`, or see whether the "
                "step changes the weights."
            )
        return None

    @property
    def lowest(self) -> float:
        """The learning rate with the smallest smoothed loss: mostly too large, a tenth of it is a careful choice."""
        return self.learning_rates[int(np.argmin(self.smoothed))]

    def plot(self, path: str | os.PathLike[str] | None = None, dark: bool = False, axes: Axes | None = None) -> Figure:
        """Draws the losses over the learning rates, with the suggestion; see `rx.plots.learning_rates`."""
        return plots.learning_rates(
            self.learning_rates, self.losses, self.smoothed, self._suggested(), path=path, dark=dark, axes=axes
        )

    def _suggested(self) -> float | None:
        try:
            return self.suggestion
        except ArgumentError:
            return None

    def _rows(self) -> list[list[str]]:
        count = len(self.losses)
        at = sorted({round(i) for i in np.linspace(0, count - 1, min(count, _SHOWN))})
        columns = self.learning_rates, self.losses, self.smoothed
        return [[f"{column[i]:.3g}" for column in columns] for i in at]

    def _summary(self) -> str:
        suggested = self._suggested()
        said = "no suggestion: the loss falls nowhere" if suggested is None else f"suggestion {suggested:.3g}"
        end = "the loss rose and ended the test" if self.diverged else "the loss did not diverge"
        return f"{said} ({len(self.losses)} steps, {end}){'' if self.remark is None else f'. {self.remark}'}"

    def __str__(self) -> str:
        return f"{self._summary()}\n{in_columns([['learning rate', 'loss', 'smoothed'], *self._rows()])}"

    def _repr_html_(self) -> str:
        return html_table(("learning rate", "loss", "smoothed"), self._rows(), self._summary())


_RULES = {"linear": 1.0, "sqrt": 0.5}


def scaled_learning_rate(learning_rate: float, *, batch_size: int, base_batch_size: int, rule: str = "linear") -> float:
    """Returns a learning rate for another global batch size than the one that it was chosen for.

    `"linear"` multiplies by `batch_size / base_batch_size`: right for SGD as long as steps are small, with a warm-up of
    some epochs (Goyal et al., 2017, arXiv:1706.02677). `"sqrt"` multiplies by the root of that, which keeps the
    variance of the updates (Krizhevsky, 2014, arXiv:1404.5997) and suits Adam and the like (Malladi et al., 2022,
    arXiv:2205.10287). Beyond some thousand rows neither holds for long: LARS (You et al., 2017, arXiv:1708.03888) and
    LAMB (You et al., 2019, arXiv:1904.00962) then scale each layer's step by its own norm.

    Args:
        learning_rate: The one that suits `base_batch_size`.
        batch_size: The global batch size of the training: the rows of all replicas together.
        base_batch_size: The global batch size for which `learning_rate` was chosen.
        rule: `"linear"` or `"sqrt"`.

    Raises:
        ArgumentError: A size is not an int of at least 1, `learning_rate` is negative or not a number, or `rule`
            is unknown.

    Example:
        >>> scaled_learning_rate(0.1, batch_size=1024, base_batch_size=256)
        0.4
        >>> scaled_learning_rate(1e-3, batch_size=1024, base_batch_size=256, rule="sqrt")
        0.002
    """
    if not is_real(learning_rate) or not 0 <= learning_rate < math.inf:
        raise ArgumentError(f"`learning_rate` is a number of at least 0, got {learning_rate!r:.100}.")
    if rule not in _RULES:
        raise ArgumentError(f"`rule` is one of {', '.join(map(repr, _RULES))}, got {rule!r:.100}.")
    new = checked_int("batch_size", batch_size, least=1)
    old = checked_int("base_batch_size", base_batch_size, least=1)
    return float(learning_rate) * float((new / old) ** _RULES[rule])
