"""Variables in one place, computation on several devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from replicax.checks import explained
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.contracts.variable_access import VariableLike, is_per_replica_variable
from replicax.program.cut.two_devices import Halves, Places
from replicax.program.results import marked_like
from replicax.runtime.devices import device_name, parse_devices
from replicax.runtime.precision import checked_precision
from replicax.runtime.transfer import put
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.workers import own_devices
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values import is_per_replica


@explained
class CentralStorageStrategy(MeshStrategy):
    """Keeps variables and optimizer state on one device, the host's CPU, and computes on several.

    Each step copies the variables that it reads to the compute devices, which compute their parts of the gradients
    there; the sum goes back, and one device updates the variables. So an optimizer's state takes no memory on an
    accelerator, and the update is computed once instead of on every device. The results are those of
    `MirroredStrategy`; numbers among them, such as a loss, lie where the variables are. With one compute device and no
    other place given, everything lives on that.

    Args:
        compute_devices: Device names or JAX devices; by default every accelerator of the process, or every (virtual)
            CPU where there is none.
        parameter_device: Where variables live; by default the host's first CPU, or the only compute device.
        cross_device_ops: The algorithm that combines gradients.
        communication_options: How gradients are packed and compressed on the way.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.

    Attributes:
        parameter_device: Where variables live.

    Raises:
        DeviceError: A device does not exist or comes twice.

    Example:
        >>> strategy = CentralStorageStrategy(["cpu:0"])
        >>> strategy.num_replicas_in_sync, strategy.parameter_device
        (1, CpuDevice(id=0))
    """

    cuts_steps = True
    placement: CentralPlacement

    def __init__(
        self,
        compute_devices: int | Sequence[str | jax.Device] | None = None,
        parameter_device: str | jax.Device | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        precision: str | None = None,
    ):
        devices = own_devices(self, compute_devices, "compute_devices")
        if parameter_device is not None:
            (self.parameter_device,) = parse_devices([parameter_device])
        else:
            self.parameter_device = devices[0] if len(devices) == 1 else jax.local_devices(backend="cpu")[0]
        placement = CentralPlacement(devices, self.parameter_device)
        super().__init__(placement, cross_device_ops, communication_options)
        self.precision = checked_precision(precision, self.devices)

    def compile_cut(
        self, step: PyTreeFunction, variables: Sequence[VariableLike], written: Sequence[VariableLike], replicas: int
    ) -> Halves:
        """Returns a program's pure function as a program that computes on the devices and updates on the host."""
        position = {id(variable): i for i, variable in enumerate(variables)}
        place = functools.partial(self.placement.place_of_its_own, replicas=replicas)
        places = Places(
            home=self.placement.home,
            compute=self.placement.sharding(stacked=False, replicas=replicas),
            read=[place(variable) for variable in variables],
            written=[place(variable) for variable in written],
        )
        assigned = [position.get(id(variable)) for variable in written]
        return Halves(step, assigned, places, in_place=replicas == self.num_replicas_in_sync)

    def _facts(self) -> dict[str, object]:
        return {**super()._facts(), "variables on": device_name(self.parameter_device)}

    def __repr__(self) -> str:
        names = ", ".join(device_name(device) for device in self.devices)
        return f"{type(self).__name__}([{names}], parameter_device={device_name(self.parameter_device)!r})"


class CentralPlacement(MeshPlacement):
    """Variables live on one device, and what each replica has of its own on the replicas' devices."""

    def __init__(self, devices: Sequence[jax.Device], parameter_device: jax.Device):
        self._home = SingleDeviceSharding(parameter_device)
        super().__init__(devices)

    @property
    def home(self) -> SingleDeviceSharding:
        """Where variables live, and what is computed from them."""
        return self._home

    def variable_sharding(self, variable: VariableLike) -> Sharding:
        return super().variable_sharding(variable) if is_per_replica_variable(variable) else self.home

    def described(self, variable: VariableLike) -> str:
        if is_per_replica_variable(variable):
            return super().described(variable)
        return f"on {device_name(*self.home.device_set)}"

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        return self.place_of_its_own(variable, replicas) or self.home

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding:
        return self.place_of_its_own(variable, replicas) or self.sharding(stacked=False, replicas=replicas)

    def place_of_its_own(self, variable: VariableLike, replicas: int) -> Sharding | None:
        """Returns where a program on `replicas` replicas has a variable that does not live at home; None for others."""
        return super().program_sharding(variable, replicas) if is_per_replica_variable(variable) else None

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        """Moves the mirrored results of `replicas` replicas to all devices, and numbers home, beside the variables."""
        joined = super().rejoined(tree, replicas)
        return jax.tree_util.tree_map(self._number_at_home, joined, is_leaf=is_per_replica)

    def _number_at_home(self, leaf: Leaf) -> Leaf:
        is_number = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.ndim == 0
        return marked_like(put(leaf, self.home), leaf) if is_number else leaf

    def _shrunk_value(self, value: jax.Array, replicas: int) -> jax.Array:
        return value if value.sharding == self.home else super()._shrunk_value(value, replicas)
