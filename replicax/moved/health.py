"""The old path of `rx.health`."""

from replicax.moved import moved

moved(__name__, "group.health")
