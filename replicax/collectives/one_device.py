"""A sum on one device, copied back to the others."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

import jax

from replicax.checks import is_int
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.trees import copy_from_heads
from replicax.compat.jax import vary
from replicax.compat.jax_primitives import assert_equal_over_axis
from replicax.errors import ArgumentError, ContextError, DeviceError, ReduceError
from replicax.runtime.devices import device_name, parse_devices

AccumulationFn = Callable[[list[jax.Array]], jax.Array]


@dataclasses.dataclass(frozen=True)
class ReductionToOneDevice(CrossDeviceOps):
    """Sends every replica's values to one device, accumulates them there in replica order, and copies the result back.

    Because of the fixed order the result does not depend on the hardware. It is the slowest of the algorithms, and the
    device needs memory for every replica's values.

    Attributes:
        reduce_to_device: The number of the replica that accumulates, or its device (a `jax.Device` or a string such as
            `"gpu:1"`), which the strategy looks up among its own. `None`: the first replica.
        accumulation_fn: Combines the list of all replicas' values, in replica order, into one value of the same shape
            and dtype; by default it adds them up. It must work element by element, because values may come packed. The
            mean divides its result by the number of replicas. Reductions with a function of your own have no gradient.

    Raises:
        ArgumentError: `reduce_to_device` is neither a replica number nor a device, or `accumulation_fn` not callable.
        ReduceError: (in `all_reduce`) There is no such replica, or `accumulation_fn` returned another shape or dtype.
        ContextError: (in `all_reduce`) A device was named, but no strategy has looked it up.

    Example:
        >>> strategy = rx.MirroredStrategy(cross_device_ops=rx.ReductionToOneDevice("cpu:0"))
    """

    reduce_to_device: int | str | jax.Device | None = None
    accumulation_fn: AccumulationFn | None = None

    def __post_init__(self) -> None:
        target = self.reduce_to_device
        is_index = is_int(target) and target >= 0
        if not (target is None or is_index or isinstance(target, str | jax.Device)):
            raise ArgumentError(
                "`reduce_to_device` must be a replica id of at least 0, a jax.Device, a string such as 'cpu:0', or "
                f"None for the first replica, got {target!r}."
            )
        if self.accumulation_fn is not None and not callable(self.accumulation_fn):
            raise ArgumentError(
                f"`accumulation_fn` must be a function of a list of arrays, or None to add them up, got "
                f"{self.accumulation_fn!r}."
            )

    def for_devices(self, devices: Sequence[jax.Device]) -> ReductionToOneDevice:
        if self.reduce_to_device is None or isinstance(self.reduce_to_device, int):
            return self
        [device] = parse_devices([self.reduce_to_device])
        if device not in devices:
            raise DeviceError(
                f"`reduce_to_device` must be one of the strategy's devices {list(map(device_name, devices))}, got "
                f"{device_name(device)!r}."
            )
        return dataclasses.replace(self, reduce_to_device=list(devices).index(device))

    def _all_reduce_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        root = self._root(num_replicas)
        everyone = [[root, *(replica for replica in range(num_replicas) if replica != root)]]

        def total(buffer: jax.Array) -> jax.Array:
            buffer = self._accumulated(_components(buffer, root, axis_name, num_replicas))
            # The sums of the other replicas are incomplete; the root's result replaces them.
            buffer = copy_from_heads(vary(buffer, axis_name), everyone, axis_name)
            return assert_equal_over_axis(buffer, axis_name)

        return [total(buffer) for buffer in buffers]

    def _root(self, num_replicas: int) -> int:
        root = self.reduce_to_device or 0
        if not isinstance(root, int):
            raise ContextError(
                f"It is not known which replica lives on {root!r}. Give these ops to a strategy, or call "
                "`.for_devices(devices)` with the replicas' devices in order, or name the replica by its id."
            )
        if root >= num_replicas:
            raise ReduceError(
                f"`reduce_to_device` must be a replica number below {num_replicas}, the number of replicas, got {root}."
            )
        return root

    def _accumulated(self, components: list[jax.Array]) -> jax.Array:
        if self.accumulation_fn is None:
            return functools.reduce(operator.add, components)
        result = self.accumulation_fn(components)
        got, wanted = jax.typeof(result), components[0]
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            raise ReduceError(
                f"`accumulation_fn` must keep the shape and dtype {wanted.dtype}{list(wanted.shape)} of the values it "
                f"combines, but returned {got.dtype}{list(got.shape)}."
            )
        return result

    def _sum_tangents(self, tangents: list[jax.Array], axis_name: str) -> list[jax.Array]:
        if self.accumulation_fn is not None:
            raise ReduceError(
                f"A reduction with an `accumulation_fn` of your own has no gradient, got {self.accumulation_fn!r}. Use "
                "jax.lax.stop_gradient on its values, or leave `accumulation_fn` out to add them up."
            )
        return super()._sum_tangents(tangents, axis_name)


def _components(buffer: jax.Array, root: int, axis_name: str, num_replicas: int) -> list[jax.Array]:
    """Returns on the root every replica's buffer, in replica order; zeros elsewhere."""
    return [
        buffer if replica == root else jax.lax.ppermute(buffer, axis_name, [(replica, root)])
        for replica in range(num_replicas)
    ]
