"""The old path of `rx.trackers`."""

from replicax.moved import moved

moved(__name__, "tools.trackers")
