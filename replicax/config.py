"""Settings of the process: virtual devices and eager execution."""

from replicax.context import run_eagerly, runs_eagerly
from replicax.runtime.devices import set_virtual_devices

__all__ = ["run_eagerly", "runs_eagerly", "set_virtual_devices"]
