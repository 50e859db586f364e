"""The old path of `rx.notebook`."""

from replicax.moved import moved

moved(__name__, "tools.notebook")
