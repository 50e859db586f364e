"""How a notebook shows a strategy: as a table of facts."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import jax

from replicax.runtime.devices import device_name
from replicax.contracts.shown import html_facts

_MOST_DEVICES = 16


class Showing:
    """The table of a strategy in a notebook.

    Attributes:
        devices: The devices, one for each replica.
    """

    devices: Sequence[jax.Device]

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""

    def _facts(self) -> dict[str, object]:
        """Returns the table's lines. Making them asks no other process and computes nothing."""
        return {"replicas in sync": self.num_replicas_in_sync, "devices": listed(self.devices)}

    def _repr_html_(self) -> str:
        return html_facts(type(self).__name__, self._facts())


def listed(devices: Sequence[jax.Device]) -> str:
    """Returns the names of devices; of many, how many there are and the first and the last."""
    names = [device_name(device) for device in devices]
    if len(names) <= _MOST_DEVICES:
        return ", ".join(names)
    return f"{len(names)}: {', '.join(names[:2])} ... {names[-1]}"
