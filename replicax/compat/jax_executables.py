"""One compiled program for several devices: JAX compiles a function anew for each device that it runs on."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler as jax_compiler
from jax.experimental import serialize_executable as jax_serialize


def on_each(compiled: jax.stages.Compiled, devices: Sequence[jax.Device]) -> list[jax.stages.Compiled]:
    """Returns a program that is compiled for the first of some devices, for each of them: the same machine code."""
    if len(devices) == 1:
        return [compiled]
    serialized, in_tree, out_tree = jax_serialize.serialize(compiled)
    return [compiled, *(_loaded(serialized, in_tree, out_tree, device) for device in devices[1:])]


def _loaded(serialized: bytes, in_tree: Any, out_tree: Any, device: jax.Device) -> jax.stages.Compiled:
    # `deserialize_and_load` wants the devices that the program was compiled for.
    executable, args_info, no_kwargs = _ForDevice(serialized, device).load()
    return jax.stages.Compiled(executable.load(), [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)


class _ForDevice(pickle.Unpickler):
    """Reads what `jax_serialize.serialize` has written, with another device in the place of its one."""

    def __init__(self, serialized: bytes, device: jax.Device):
        super().__init__(io.BytesIO(serialized))
        self._device = device

    def persistent_load(self, pid: Any) -> Any:
        client = self._device.client
        if pid[0] == "exec":
            devices = jax.sharding.SingleDeviceSharding(self._device)._internal_device_list
            options = jax_compiler.get_compile_options(1, 1, np.array([[self._device.id]]), backend=client)
            return client.deserialize_executable(pid[1], executable_devices=devices, compile_options=options)
        return self._device if pid[0] == "device" else client
