"""Makes steps of `fit` again after which copies differed, on devices that change places: chip or program?

A program sees which replica it is, and not on which device. A fault that stays with a replica is the program's, one
that moves with a device is the device's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, NamedSharding

from replicax.checks import checked, is_int
from replicax.errors import ArgumentError, ReplicaDriftError
from replicax.keras.kept_steps import KeptFile, KeptStep, spec_of
from replicax.runtime.devices import device_name, parse_devices
from replicax.strategies.replica_digest import ReplicaDigests

Verdict = Literal["device", "program", "equal", "unknown"]


class ReplayRun(NamedTuple):
    """The steps, made once.

    Attributes:
        devices: The devices, by the replica that they were.
        step: The first step after which copies differed; None if they were always equal.
        replicas: The replicas whose copies were wrong; all that differ, where no majority agrees.
        variables: The variables that differed.
        digests: Those of each replica after the last step that was made, by variable.
    """

    devices: tuple[str, ...]
    step: int | None
    replicas: tuple[int, ...]
    variables: tuple[str, ...]
    digests: Mapping[str, Sequence[int]]

    @property
    def blamed(self) -> frozenset[str]:
        """The devices that had the wrong copies."""
        return frozenset(self.devices[replica] for replica in self.replicas)

    def bits_of(self, replica: int) -> tuple[int, ...]:
        """The digests of a replica."""
        return tuple(values[replica] for values in self.digests.values())


class Replay(NamedTuple):
    """The result of `rx.replay`.

    Attributes:
        verdict: `"device"`, `"program"`, `"equal"` (copies differ in no run), or `"unknown"`.
        devices: The devices to suspect; empty unless the verdict is `"device"`.
        why: The finding, as a sentence.
        runs: What was found in each run.
    """

    verdict: Verdict
    devices: tuple[str, ...]
    why: str
    runs: tuple[ReplayRun, ...]

    def __str__(self) -> str:
        return self.why


@checked
def replay(
    file: str | os.PathLike[str],
    devices: Sequence[str] | None = None,
    times: int = 2,
    progress: Callable[[str], None] = lambda line: None,
) -> Replay:
    """Makes steps again after which copies of variables differed: is a device broken, or the program?

    `rx.keras.ReplicaDigest(keep=FOLDER)` has kept them in a file, with their program. They run `times` times on the
    devices, and as often with each replica on the device of the next one. All copies are compared after every step.

    Args:
        file: The file.
        devices: Names such as `"gpu:1"`, as many as there were; by default those of the training. Another one in the
            place of a suspect shows whether it is that one.
        times: How often the steps are made on the devices in one order; more finds what comes and goes.
        progress: Gets a line for each run.

    Raises:
        ArgumentError: There is no such file, it is another kind of file or damaged, or `times` is below 1.
        DeviceError: There are no such devices.

    Example:
        >>> rx.replay("no_such_file.npz")
        Traceback (most recent call last):
        replicax.errors.ArgumentError: no_such_file.npz cannot be read: No such file or directory. Name a file that \
rx.keras.ReplicaDigest(keep=FOLDER) has written.
    """
    if not is_int(times) or times < 1:
        raise ArgumentError(f"`times` is a number of runs, at least 1, got {times!r}.")
    kept = KeptFile.read(file)
    chosen = parse_devices(list(devices) if devices is not None else kept.devices)
    if len(chosen) != len(kept.devices) or chosen[0].platform != kept.platform:
        raise ArgumentError(
            f"The steps in {file} are a program for {len(kept.devices)} devices of platform {kept.platform!r}, got "
            f"{[device_name(each) for each in chosen]}. Name as many of those."
        )
    runs = []
    for order in (chosen, [*chosen[1:], chosen[0]]):
        steps = _Steps(kept, order)
        for _ in range(times):
            last = kept.first + len(kept.steps) - 1
            progress(f"steps {kept.first} to {last} on {', '.join(map(device_name, order))}")
            runs.append(steps.run())
    return judged(kept, runs)


class _Steps:
    """The kept steps on devices in one order."""

    def __init__(self, kept: KeptFile, devices: Sequence[jax.Device]):
        self._kept = kept
        self._devices = tuple(map(device_name, devices))
        self._mesh = Mesh(
            np.array(devices).reshape([size for _, size in kept.mesh]), tuple(name for name, _ in kept.mesh)
        )
        self._digests = ReplicaDigests()
        self._calls = [jax.jit(_exported(each.code).call) for each in kept.programs]

    def run(self) -> ReplayRun:
        """Makes the steps until copies differ."""
        state: dict[int, jax.Array | np.ndarray] = dict(enumerate(self._kept.values))
        digests: dict[str, list[int]] = {}
        for number, step in enumerate(self._kept.steps, self._kept.first):
            made = self.made(step, state)
            state |= made
            found = self._digests.of((self._kept.names[variable], array) for variable, array in made.items())
            digests = {name: values for each in found for name, values in each.by_name.items()}
            try:
                for each in found:
                    each.check(number)
            except ReplicaDriftError as error:
                return ReplayRun(self._devices, number, error.replicas, error.variables, digests)
        return ReplayRun(self._devices, None, (), (), digests)

    def made(self, step: KeptStep, state: dict[int, jax.Array | np.ndarray]) -> dict[int, jax.Array]:
        """Returns the new values of the variables that a step assigns, by number."""
        program = self._kept.programs[step.program]
        places = iter([NamedSharding(self._mesh, spec_of(entries)) for entries in program.places])
        updated = [jax.device_put(state[each], next(places)) for each in program.updated]
        constant = [jax.device_put(state[each], next(places)) for each in program.constant]
        written = [next(places) for _ in program.written]
        batch = [jax.device_put(array, next(places)) for array in step.batch]
        values, _ = self._calls[step.program](updated, constant, [], batch)
        # As they are, under a sharding that says which copies are to be equal.
        return {
            variable: jax.make_array_from_single_device_arrays(
                value.shape, place, [shard.data for shard in value.addressable_shards]
            )
            for variable, value, place in zip(program.written, values, written, strict=True)
        }


def _exported(code: bytes) -> jax.export.Exported:
    try:
        return jax.export.deserialize(bytearray(code))
    except Exception as error:  # The reader of flatbuffers raises many kinds. (The checksum of the file was right.)
        raise ArgumentError(f"JAX {jax.__version__} cannot read the program in the file: {error!r:.300}") from error


def judged(kept: KeptFile, runs: Sequence[ReplayRun]) -> Replay:
    """Says what runs on devices in two orders mean."""
    found, runs = [run for run in runs if run.step is not None], tuple(runs)
    if not found:
        return _all_equal(kept, runs)
    steps = sorted({run.step for run in found if run.step is not None})
    when = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    where, blamed = {run.replicas for run in found}, {run.blamed for run in found}
    of_program = len(where) == 1 and len(found) == len(runs)
    of_device = len(blamed) == 1 and _is_steady(runs, found)
    suspects = sorted(*blamed) if of_device else []
    if of_program and of_device:  # All replicas differ, which are all devices.
        of_program, suspects = _by_bits(runs)
    if of_program:
        replicas = ", ".join(map(str, *where))
        return Replay(
            "program", (), f"Replica {replicas} gives other bits in {when} whichever device it is: the program.", runs
        )
    if suspects:
        told = f"{' or '.join(suspects)} gives other bits in {when}, and other devices as the same replica do not"
        hint = "" if len(suspects) == 1 else " Of two it is unknown which: name a third in the place of one."
        return Replay("device", tuple(suspects), f"{told}: the device (a broken chip, or its memory).{hint}", runs)
    devices = ", ".join(sorted({device for each in blamed for device in each}))
    return Replay(
        "unknown",
        (),
        f"Copies differ in {len(found)} of {len(runs)} runs, in {when}, on {devices}: a device whose fault comes and "
        "goes, or a program that computes other bits each time. More runs say more.",
        runs,
    )


def _is_steady(runs: Sequence[ReplayRun], found: Sequence[ReplayRun]) -> bool:
    """Returns whether copies differ in more than one run, and with devices in both orders, or in one of them always."""
    orders = {run.devices for run in found}
    return len(found) > 1 and (len(orders) > 1 or len(found) == sum(run.devices in orders for run in runs))


def _by_bits(runs: Sequence[ReplayRun]) -> tuple[bool, list[str]]:
    """Returns whether each replica has the same bits in all runs; and the devices to suspect, if it is a device."""
    devices = runs[0].devices
    if len({run.step for run in runs}) > 1:
        return False, []
    if all(len({run.bits_of(replica) for run in runs}) == 1 for replica in range(len(devices))):
        return True, []
    unsteady = [each for each in devices if len({run.bits_of(run.devices.index(each)) for run in runs}) > 1]
    if len(devices) == 2 and len(unsteady) < 2:
        return False, unsteady or sorted(devices)
    return False, []


def _all_equal(kept: KeptFile, runs: tuple[ReplayRun, ...]) -> Replay:
    for run in runs:
        if any(run.devices == other.devices and run.digests != other.digests for other in runs):
            return Replay(
                "unknown",
                (),
                "All copies are equal in each run, and two runs on the same devices have other bits: the program "
                "computes other bits each time, or a device fails before values are summed over all.",
                runs,
            )
    now = runs[0].digests
    names = [name for name in kept.digests if name in now and kept.names.count(name) == 1]
    right = [
        device
        for replica, device in enumerate(kept.devices)
        if all(kept.digests[name][replica] == now[name][replica] for name in names)
    ]
    wrong = [device for device in kept.devices if device not in right]
    then = (
        f"In the training, {', '.join(wrong)} had other bits than now."
        if right
        else "No copy had these bits in the training: the fault went into sums, or a callback changed variables."
    )
    return Replay(
        "equal",
        (),
        f"All copies are equal in {len(runs)} runs: the fault was passing, as of a flipped bit in memory, or is not in "
        f"these steps. {then}",
        runs,
    )
