"""Devices that need not exist: what `--on` names, and what is published about them."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import jax

from replicax.checks import is_int
from replicax.errors import PlanError

_GIB = 2**30
#: JAX's names of TPUs.
_KINDS = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e"}
_TPU = re.compile(r"(?P<kind>v[0-9]+[a-z]*):(?P<shape>[0-9]{1,9}(?:x[0-9]{1,9}){0,2})")
_PLAIN = re.compile(r"(?P<kind>cpu|gpu):(?P<count>[0-9]{1,18})(?:x(?P<gib>[0-9]{1,9}(?:\.[0-9]{1,9})?)GiB)?")
#: One process holds all virtual devices. Of 4096, XLA has 8000 threads and 1 GiB before the script has made an array,
#: and needs half a minute for that.
_MOST_VIRTUAL = 4096
_POWERS, _FOURS = "powers of 2", "1, 2 or multiples of 4"  # of sides of slices
_FORMS = "'v5e:4x4', 'v5p:2x2x2', 'v6e:16x16', 'gpu:8x80GiB' or 'cpu:64'"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of a device: upper limits, which no program reaches."""

    memory: int  # bytes
    flops: float  # a second, in bfloat16
    memory_bandwidth: float  # bytes a second
    link_bandwidth: float  # bytes a second, into and out of the device together
    most: int  # the chips of the largest slice
    sides: str  # which sides of a slice there can be


#: By the name in `--on`. Source: https://cloud.google.com/tpu/docs/v4, v5e, v5p and v6e (peak compute in bf16, HBM
#: capacity and bandwidth, bandwidth of the interconnect between chips; sizes of a Pod, and topologies), read in
#: November 2026.
CHIPS = {
    "v4": Chip(32 * _GIB, 275e12, 1228e9, 300e9, 4096, _FOURS),
    "v5e": Chip(16 * _GIB, 197e12, 819e9, 200e9, 256, _POWERS),
    "v5p": Chip(95 * _GIB, 459e12, 2765e9, 600e9, 8960, _FOURS),
    "v6e": Chip(32 * _GIB, 918e12, 1640e9, 448e9, 256, _POWERS),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices that a plan is for.

    Attributes:
        name: As it was given, such as `"v5e:4x4"`.
        platform: `"tpu"`, `"gpu"` or `"cpu"`.
        shape: How many devices there are along each dimension.
        memory: The bytes of one device; None if that is not known.
        hosts: How many hosts they belong to; None where the topology says it.
    """

    name: str
    platform: str
    shape: tuple[int, ...]
    memory: int | None
    hosts: int | None = None

    @classmethod
    def of(cls, name: str, hosts: int | None = None) -> Topology:
        """Returns the topology of a name.

        Raises:
            PlanError: The name is unknown, or the devices do not divide by the hosts.
        """
        found = _TPU.fullmatch(name) if isinstance(name, str) else None
        if found is not None and found["kind"] in CHIPS:
            if hosts is not None:
                raise PlanError(f"{name!r} says itself how many hosts it has; leave out hosts={hosts!r}.")
            shape = tuple(map(int, found["shape"].split("x")))
            if not all(shape):
                raise PlanError(f"There is no slice {name!r}: each of its dimensions has a chip at least, one has 0.")
            chip = CHIPS[found["kind"]]
            if math.prod(shape) > chip.most or not all(_is_side(side, chip.sides) for side in shape):
                raise PlanError(
                    f"There is no slice {name!r}: those of {found['kind']} have at most {chip.most} chips, and sides "
                    f"that are {chip.sides}."
                )
            return cls(name, "tpu", shape, chip.memory)
        if found is not None:
            raise PlanError(f"Nothing is known of TPU {found['kind']!r} in {name!r}: there are {', '.join(CHIPS)}.")
        found = _PLAIN.fullmatch(name) if isinstance(name, str) else None
        if found is None or not int(found["count"]):
            raise PlanError(f"Devices are written like {_FORMS}, got {name!r}.")
        count = int(found["count"])
        if count > _MOST_VIRTUAL:
            raise PlanError(
                f"{name!r} has too many devices: there can be {_MOST_VIRTUAL}, as one process of this machine holds "
                "virtual ones for all of them. Plan for fewer, with as many rows for each."
            )
        if hosts is not None and (not is_int(hosts) or hosts < 1 or count % hosts):
            raise PlanError(f"The {count} devices of {name!r} do not divide by hosts={hosts!r}.")
        memory = int(float(found["gib"]) * _GIB) if found["gib"] else None
        if memory == 0:
            raise PlanError(f"Devices of 0 GiB in {name!r} hold nothing: leave the memory out if it is not known.")
        return cls(name, found["kind"], (count,), memory, hosts or 1)

    @classmethod
    def present(cls, devices: Sequence[jax.Device]) -> Topology:
        """Returns the topology of devices that there are."""
        first = devices[0]
        memory = memory_stats(first).get("bytes_limit")
        kind = _KINDS.get(first.device_kind, first.platform)
        hosts = len({device.process_index for device in devices})
        return cls(f"{kind}:{len(devices)}", first.platform, (len(devices),), memory, hosts)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def chip(self) -> Chip | None:
        """Returns the published figures of a device; None where nothing is known."""
        return CHIPS.get(self.name.split(":")[0])

    def prepare(self, environ: MutableMapping[str, str]) -> None:
        """Sets the environment of a process that is about to start JAX and plan for these devices.

        Raises:
            PlanError: They are TPUs, and libtpu is not installed.
        """
        environ["JAX_PLATFORMS"] = "cpu"
        environ["JAX_NUM_CPU_DEVICES"] = str(1 if self.platform == "tpu" else self.size)
        environ["NPROC"] = str(max(2 * self.size, os.cpu_count() or 1)) if self.platform != "tpu" else ""
        if self.platform == "tpu":
            check_libtpu()
            # libtpu would ask the machine, and then the network, which TPU it is on; and let no other process compile.
            environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-8")
            environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
            # It ends the process for a flag of CPUs or GPUs that it does not know. Those of TPUs are LIBTPU_INIT_ARGS.
            environ.pop("XLA_FLAGS", None)

    def devices(self) -> list[jax.Device]:
        """Returns the devices: for TPUs ones that cannot run anything, otherwise virtual ones."""
        if self.platform != "tpu":
            return jax.local_devices(backend="cpu")
        from jax.experimental import topologies

        # The devices of one host that has them all, since one process plans for all, in the order of the real hosts.
        bounds = (*self.shape, *[1] * (3 - len(self.shape)))
        try:
            hosts = topologies.get_topology_desc(platform="tpu", topology_name=self.name).devices
            one = topologies.get_topology_desc(
                platform="tpu", topology_name=self.name, chips_per_host_bounds=bounds
            ).devices
        except Exception as error:  # XLA's errors have many classes here
            raise PlanError(f"libtpu refuses the topology {self.name!r}: {error}") from error
        places = {_place(device): device for device in one}
        return [places[_place(device)] for device in hosts]

    def num_hosts(self) -> int:
        """Returns how many hosts the devices belong to."""
        if self.hosts is not None:
            return self.hosts
        from jax.experimental import topologies

        found: Any = topologies.get_topology_desc(platform="tpu", topology_name=self.name).devices
        return len({device.process_index for device in found})


def memory_stats(device: jax.Device) -> Mapping[str, int]:
    """Returns what a device says about its memory; empty where it does not say."""
    try:
        return device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # Not every kind of device tells.
        return {}


def _is_side(side: int, sides: str) -> bool:
    """Returns whether a slice can have a side; which of them go together, libtpu knows."""
    return side & (side - 1) == 0 if sides is _POWERS else side in (1, 2) or side % 4 == 0


def _place(device: jax.Device) -> tuple[int, ...]:
    return (*device.coords, device.core_on_chip)


def check_libtpu() -> None:
    """Checks that the compiler for TPUs is there.

    Raises:
        PlanError: It is not.
    """
    if importlib.util.find_spec("libtpu") is None:
        there_is = "" if sys.platform == "linux" else f" There is none for {sys.platform}: plan on Linux."
        raise PlanError(
            f"Plans for TPUs need their compiler, libtpu: pip install 'replicax[plan]'.{there_is} cpu:64 needs none."
        )
