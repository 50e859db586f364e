"""The old path of `rx.plots`."""

from replicax.moved import moved

moved(__name__, "tools.plots")
