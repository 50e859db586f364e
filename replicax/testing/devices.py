"""Virtual devices for the process of a test."""

from __future__ import annotations

import jax

from replicax.checks import checked
from replicax.config import set_virtual_devices
from replicax.errors import DeviceError


@checked
def simulated_devices(count: int) -> list[jax.Device]:
    """Splits this process's CPU into `count` virtual devices and returns them.

    Call it at the top of `conftest.py`, or of a function that runs in its own workers. The number is for the
    whole process: JAX cannot change it after its start.

    Args:
        count: Number of devices, at least 1.

    Raises:
        DeviceError: JAX has already started in this process with another number of CPU devices.

    Example:
        >>> [device.platform for device in simulated_devices(8)][:2]
        ['cpu', 'cpu']
    """
    try:
        set_virtual_devices(count)
    except DeviceError as error:
        error.add_note(
            "In tests: call rx.testing.simulated_devices once, at the top of conftest.py, with the largest number that "
            "a test needs, and give strategies some of the devices. A test that needs another number can run in "
            "its own processes: @rx.testing.distributed(workers=1, devices=n)."
        )
        raise
    return jax.local_devices(backend="cpu")
