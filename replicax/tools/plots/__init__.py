"""Plots in one style: loss curves, memory, bytes, staleness, workers. matplotlib is imported when one is drawn."""

from replicax.tools.plots.bars import bytes_per_step, memory_per_device, staleness
from replicax.tools.plots.curves import history, learning_rates, losses
from replicax.tools.plots.style import COLORS, DARK_COLORS, style
from replicax.tools.plots.timeline import Period, worker_timeline

__all__ = [
    "COLORS",
    "DARK_COLORS",
    "Period",
    "bytes_per_step",
    "history",
    "learning_rates",
    "losses",
    "memory_per_device",
    "staleness",
    "style",
    "worker_timeline",
]
