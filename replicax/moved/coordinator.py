"""The old path of `rx.coordinator`."""

from replicax.moved import moved

moved(__name__, "parameter_server.namespace")
