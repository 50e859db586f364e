"""The processes that a strategy's devices belong to: who they are, and how they are started and watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax

import replicax.group.health as health
from replicax.cluster import ClusterConfig, ClusterResolver, Task, cluster_of, detect_cluster
from replicax.compat.jax_processes import connected_as
from replicax.contracts.group import current_group
from replicax.contracts.strategy import StrategyBase
from replicax.errors import ArgumentError, ClusterError
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S, stall_timeout_from, start
from replicax.runtime.devices import chosen_devices
from replicax.runtime.memory import keep_freed_memory

START_TIMEOUT_S = 300.0  # of the strategies: a scheduler may start machines one after the other


class Workers(NamedTuple):
    """The processes that train together."""

    resolver: ClusterResolver | None  # that was given, or found
    config: ClusterConfig  # the place of this process among them
    names: tuple[str, ...]  # in their order, such as ("worker:0", "worker:1")

    @classmethod
    def joined(cls, resolver: ClusterResolver | None, start_timeout: float, stall_timeout: float | None) -> Workers:
        """Waits for the other processes of the cluster, and lets them be watched from then on."""
        resolver, config = cluster_of(resolver)
        if config.num_processes > 1:
            keep_freed_memory()
        # Both in seconds: how long to wait for the others, and how long a worker may do nothing while others wait for
        # it; None or 0 for no watch.
        peers = start(config, start_timeout, stall_timeout_from(stall_timeout))
        return cls(resolver, config, tuple(peer.name for peer in peers) or ("worker:0",))

    @classmethod
    def of(
        cls,
        devices: Iterable[jax.Device],
        resolver: ClusterResolver | None,
        start_timeout: float,
        stall_timeout: float | None,
    ) -> Workers:
        """Returns the processes of devices that a user has chosen: this one alone, or all that are connected."""
        processes = [device.process_index for device in devices]
        if set(processes) == {jax.process_index()}:
            if resolver is not None and jax.process_count() > 1:
                raise ArgumentError(
                    "`cluster_resolver` was given with devices that all belong to this process, which then waits for "
                    "no other. Leave out one of the two; without devices those of all workers are used."
                )
            return ALONE
        _check_all_take_part(processes)
        resolver, config = cluster_of(resolver)
        if (config.process_id, config.num_processes) == (jax.process_index(), jax.process_count()):
            return cls.joined(resolver, start_timeout, stall_timeout)
        # JAX was connected by other means than the environment's.
        config = ClusterConfig(processes=jax.process_count(), task=Task("worker", jax.process_index()))
        return cls(None, config, tuple(f"worker:{index}" for index in range(jax.process_count())))

    def devices(self) -> list[jax.Device]:
        """Returns the devices of all of them, those of each process together."""
        devices: list[jax.Device] = jax.devices() if len(self.names) > 1 else jax.local_devices()
        return sorted(devices, key=lambda device: device.process_index)


ALONE = Workers(None, ClusterConfig(), ("worker:0",))


def is_default(devices: int | Sequence[str | jax.Device] | None) -> bool:
    """Returns whether a user leaves it to the strategy which devices it takes."""
    return devices is None or (not isinstance(devices, int) and not len(devices))


def own_devices(
    strategy: StrategyBase, devices: int | Sequence[str | jax.Device] | None, argument: str
) -> list[jax.Device]:
    """Returns the devices of a strategy of one process. One of several processes has to ask for its own."""
    # Beside a strategy of all workers, which watches them, this one is for something of this process.
    is_watched = health.running() is not None or current_group().may_change
    if is_default(devices) and not strategy.waits_for_workers and not is_watched:
        found = _one_of_several()
        if found:
            name = type(strategy).__name__
            raise ClusterError(
                f"{name}()",
                problem=f"trains on the devices of one process, but this process is {found}: each would train a model "
                "of its own on all the data",
                cure="Use rx.MultiWorkerMirroredStrategy() to train one model together, or, if each is to train alone, "
                f"rx.{name}({argument}=jax.local_devices()).",
            )
    return chosen_devices(devices)


def _one_of_several() -> str:
    """Returns which one of several processes that train together this is; empty if it is the only one."""
    if (
        jax.distributed.is_initialized()
    ):  # By the script itself, perhaps with numbers that the environment does not have.
        process, count = connected_as()
        return f"process {process} of {count} that jax.distributed connects" if count > 1 else ""
    found = detect_cluster()
    # Of a cluster with parameter servers the coordinator alone runs the script.
    return str(found) if "ps" not in found.config.spec.jobs and found.config.num_processes > 1 else ""


def patience(stall_timeout: float | None, timeout_seconds: float | None) -> float | None:
    """Returns the stall timeout, which tf.distribute has among the communication options."""
    if timeout_seconds is None:
        return stall_timeout
    if stall_timeout not in (DEFAULT_STALL_TIMEOUT_S, timeout_seconds):
        raise ArgumentError(
            f"stall_timeout={stall_timeout!r} and timeout_seconds={timeout_seconds!r} of the communication options are "
            "one setting. Give one of them."
        )
    return timeout_seconds


def _check_all_take_part(processes: Sequence[int]) -> None:
    missing = sorted(set(range(jax.process_count())) - set(processes))
    if missing:
        raise ArgumentError(
            f"The devices belong to the processes {sorted(set(processes))}, and the processes {missing} have none of "
            "them. A strategy takes devices of one process, or of all that are connected."
        )
    if processes[0] != 0:
        raise ArgumentError(
            f"The first device belongs to process {processes[0]}. It must be one of process 0, which gives the others "
            "what only it has: put its devices first."
        )
