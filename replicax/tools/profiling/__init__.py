"""`replicax profile`: a trace of a few steps of a script on all its workers, and the operations that took the time."""

from replicax.tools.profiling.hot_spots import (
    INPUT as INPUT,
    HotSpot as HotSpot,
    hot_spots as hot_spots,
    traces as traces,
)
