"""Settings of the process: virtual devices and eager execution."""

from typing import TYPE_CHECKING

from replicax.context import run_eagerly, runs_eagerly
from replicax.contracts.advice import not_found
from replicax.runtime.devices import set_virtual_devices

__all__ = ["run_eagerly", "runs_eagerly", "set_virtual_devices"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise not_found(__name__, name)
