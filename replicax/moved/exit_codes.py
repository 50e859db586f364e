"""The old path of `rx.exit_codes`."""

from replicax.moved import moved

moved(__name__, "errors.exit_codes")
