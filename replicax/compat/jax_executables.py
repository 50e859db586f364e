"""Compiled programs: one for several devices, where JAX would compile anew for each; and what one costs."""

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


def cost_of_hlo(module: bytes, what: str) -> float:
    """Returns a figure of XLA's for a program that it has stored (`HloModuleProto`), such as `"bytes accessed"`."""
    import jaxlib._hlo as jaxlib_hlo
    from jax._src.lib import _jax as jaxlib

    # Without the names: `replicax plan --whole` alone plans large programs for TPUs.
    found = jaxlib_hlo.HloModule.from_serialized_hlo_module_proto(module)
    return float(jaxlib.hlo_module_cost_analysis(jax.local_devices(backend="cpu")[0].client, found).get(what, 0.0))
