"""`replicax doctor --choose`: the strategy and the command for this machine, from devices, memory and hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from replicax.tools.doctor.found_devices import FoundDevice

#: Bytes for each parameter while Adam trains it in float32: value, gradient and two moments.
BYTES_PER_PARAMETER = 16
#: The part of a device's memory that those may take; the rest is for activations.
USABLE = 0.8


class Choice(NamedTuple):
    """A strategy, and how to start it."""

    strategy: str  # the line for the script
    command: str
    reasons: tuple[str, ...]  # a sentence each


def choose(devices: Sequence[FoundDevice], hosts: int = 1, parameters: float | None = None) -> Choice:
    """Returns the strategy for a model of so many parameters on this host's devices, and others like it."""
    # Without a number of parameters it is taken to fit on a device.
    kinds = {device["platform"] for device in devices}
    accelerators = [device for device in devices if device["platform"] != "cpu"] or list(devices)
    platform, count = accelerators[0]["platform"], len(accelerators) * hosts
    noun = {"gpu": "GPU", "tpu": "TPU core"}.get(platform, "CPU device")
    reasons = [f"{len(accelerators)} {noun}(s) on {f'each of {hosts} hosts' if hosts > 1 else 'this host'}."]
    if kinds == {"cpu"}:
        reasons.append("Several CPU devices share the same cores: they help to test, not to train faster.")
    needed, memory = _memory(accelerators, parameters)
    if needed is not None:
        reasons.append(f"Adam in float32 needs {_gib(needed)} for {parameters:,.0f} parameters.")
        reasons.append("For all that a step of your script needs, ask: replicax plan train.py --on v5e:4x4.")
    if needed is not None and memory is None:
        reasons.append(f"JAX does not say how much memory a {noun} has, so whether it fits is unknown.")
    command = "python train.py"
    if hosts > 1:
        command = f"replicax run --hosts {','.join(f'host{number + 1}' for number in range(hosts))} train.py"
    if needed is not None and memory is not None and needed > memory:
        return _sharded(reasons, command, count, needed, memory)
    if memory is not None and needed is not None:
        reasons.append(f"That fits on one: {_gib(memory)} of it are for parameters and optimizer.")
    if platform == "tpu":
        return Choice("rx.TPUStrategy()", "python train.py" + ("  # on each host" if hosts > 1 else ""), tuple(reasons))
    if hosts > 1:
        return Choice("rx.MultiWorkerMirroredStrategy()", command, tuple(reasons))
    if len(accelerators) > 1:
        return Choice("rx.MirroredStrategy()", command, tuple(reasons))
    return Choice(f'rx.OneDeviceStrategy("{platform}:0")', command, tuple(reasons))


def _memory(devices: Sequence[FoundDevice], parameters: float | None) -> tuple[float | None, float | None]:
    """Returns the bytes that a training needs, and those that the smallest device has for them."""
    sizes = [device["memory"] for device in devices if device["memory"]]
    needed = None if parameters is None else BYTES_PER_PARAMETER * parameters
    return needed, USABLE * min(sizes) if len(sizes) == len(devices) else None


def _sharded(reasons: list[str], command: str, count: int, needed: float, memory: float) -> Choice:
    reasons.append(
        f"One has {_gib(memory)} for it" + (f", so the model is sharded over all {count}." if count > 1 else ".")
    )
    if needed > count * memory:
        devices = math.ceil(needed / memory)
        reasons.append(
            f"There are {_gib(count * memory)}: use at least {devices} such devices, or train fewer parameters "
            "(LoRA), or keep the optimizer's state on the hosts (offload_optimizer=True)."
        )
    reasons.append("If a single layer does not fit on a device, use rx.LayoutStrategy.")
    return Choice("rx.FullyShardedStrategy()", command, tuple(reasons))


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
