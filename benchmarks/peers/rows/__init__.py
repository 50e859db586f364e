"""One module for each row of the table; each has a function `measure`."""

from peers.row import Measure
from peers.rows import allreduce, central2, fit, fit8, loop8, ps2, single, startup, workers2

ROWS: dict[str, Measure] = {
    "single": single.measure,
    "fit": fit.measure,
    "epoch": fit.measure_starts,
    "loop8": loop8.measure,
    "fit8": fit8.measure,
    "workers2": workers2.measure,
    "allreduce_4kib": allreduce.measure_4kib,
    "allreduce_4mib": allreduce.measure_4mib,
    "allreduce_64mib": allreduce.measure_64mib,
    "central2": central2.measure,
    "ps2": ps2.measure,
    "startup": startup.measure,
}
"""By the name that `--only` takes."""
