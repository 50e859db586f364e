"""A client of XLA that takes the place of JAX's own: other devices, and other processes, in the same process.

JAX makes its client once. Where workers come and go, each set of them needs a client of its own: the collectives of one
whose process is lost are of no use any more. JAX looks its client up in one place, so another one can be put there.
Arrays of the old one live on, and can be read. Guard: tests/compat/test_jax_worlds.py.

Without the names: workers that come or go end the job, and it starts again (`replicax run --restarts`).
"""

from __future__ import annotations

import os
from typing import Any

import jax
from jax._src import (
    config as jax_config,
    distributed as jax_distributed,
    hardware_utils,
    mesh as jax_mesh,
    named_sharding,
    sharding_impls,
    xla_bridge,
)
from jaxlib import xla_client

from replicax.compat.jax_cliques import Clique

_CPU, _CUDA = "cpu", "cuda"
_GPU_FLAGS = (
    "--xla_gpu_nccl_terminate_on_error=false",
    "--xla_gpu_nccl_async_execution=true",
    "--xla_gpu_nccl_blocking_communicators=false",
)


def num_local_devices() -> int | None:
    """Returns how many devices `jax.config` asks for in this process; None leaves it to XLA's flags."""
    number = int(xla_bridge.num_cpu_devices.value)
    return number if number >= 0 else None


class WorldClique(Clique):
    """The processes of a world: they sum vectors to agree on it, and then JAX takes their devices for its own."""

    def __init__(self, address: str, rank: int, size: int, ip: str, timeout_s: float):
        super().__init__(address, rank, size, ip, timeout_s, num_local_devices())
        self._rank = rank

    def install(self) -> None:
        """Makes these devices JAX's own, and this service the one that connects its processes."""
        state = jax_distributed.global_state
        state.client, state.process_id, state.num_processes = self._store.client, self._rank, self._size
        _install(self._client)


def install_alone() -> None:
    """Makes new devices JAX's own that are those of this process alone."""
    state = jax_distributed.global_state
    state.client, state.process_id, state.num_processes = None, 0, 1
    make_client: Any = xla_client.make_cpu_client
    asynchronous = bool(xla_bridge._CPU_ENABLE_ASYNC_DISPATCH.value)
    _install(make_client(asynchronous=asynchronous, num_devices=num_local_devices()))


def prepare_gpus() -> None:
    """Lets NCCL's collectives fail where another process is lost, and clients share the memory of a GPU."""
    # Called before JAX looks for devices. The flags are those of JAX's page on fault tolerance. Untested: no machine
    # with several GPUs was at hand.
    if not _gpus_are_wanted():
        return
    given = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = " ".join(
        [given, *(flag for flag in _GPU_FLAGS if flag.split("=")[0] not in given)]
    ).strip()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _gpus_are_wanted() -> bool:
    told = str(jax_config.jax_platforms.value or "").split(",")
    xla_bridge._discover_and_register_pjrt_plugins()
    registered = _CUDA in xla_bridge._backend_factories and hardware_utils.has_visible_nvidia_gpu()
    return bool(registered and (told == [""] or {"cuda", "gpu"} & set(told)))


def _install(client: Any) -> None:
    backends, default = {_CPU: client}, client
    if _gpus_are_wanted():  # JAX's own way to make a client knows who its processes are from its state.
        backends[_CUDA] = default = xla_bridge._init_backend(_CUDA)
    with xla_bridge._backend_lock:
        xla_bridge._backends = backends
        xla_bridge._backend_errors = {}
        xla_bridge._default_backend = default
    # Programs are compiled for a client, and keep it; so do meshes, which `clear_caches` leaves where they are.
    jax.clear_caches()
    for module in (xla_bridge, jax_mesh, named_sharding, sharding_impls):
        for function in list(vars(module).values()):
            if hasattr(function, "cache_clear"):
                function.cache_clear()


def is_lost_connection(error: BaseException) -> bool:
    """Returns whether a program has failed because another process is lost, or the connections with it are."""
    # Without the words: such an error ends the process, and the job goes on without it.
    said = str(error).lower()
    return isinstance(error, (RuntimeError, ValueError)) and ("gloo" in said or "nccl" in said)


def is_of_present_client(array: jax.Array) -> bool:
    """Returns whether an array lives on devices that JAX has now."""
    if not xla_bridge.backends_are_initialized():
        return True
    device: Any = next(iter(array.sharding.device_set))
    return device.client is xla_bridge.get_backend(device.platform)
