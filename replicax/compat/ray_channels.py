"""Ray's mutable objects: shared memory that one actor writes again and again and another one on its node reads.

An alpha interface of Ray. Read in Ray 2.60. Without the names: arrays travel with the calls of actors.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

CHANNELS = "ray.experimental.channel.shared_memory_channel"


class Channel(Protocol):
    """A mutable object. It can be pickled, for its reader."""

    def write(self, value: object, timeout: float | None = None) -> None:
        """Writes a value when the one before has been read, within so many seconds."""

    def read(self, timeout: float | None = None) -> object:
        """Returns a value that has not been read, which comes within so many seconds."""


def has_channels() -> bool:
    """Returns whether this Ray has mutable objects."""
    try:
        return hasattr(importlib.import_module(CHANNELS), "Channel")
    except ImportError:
        return False


def channel_to(reader: object, nbytes: int) -> Channel | None:
    """Makes a mutable object that this actor writes for another one on its node; None if there is no memory for it."""
    # Ray does not free it, nor close its two semaphores in `/dev/shm`, before the process of its writer ends.
    import ray

    context = ray.get_runtime_context()
    try:
        made = importlib.import_module(CHANNELS).Channel(
            context.current_actor, [(reader, context.get_node_id())], nbytes
        )
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
        return None
    return cast(Channel, made)


def write_within(channel: Channel, value: object, timeout_s: float) -> bool:
    """Writes a value; returns whether that was possible within so many seconds."""
    import ray

    try:
        channel.write(value, timeout=timeout_s)
    except (ray.exceptions.RayChannelError, ray.exceptions.RayChannelTimeoutError):
        return False
    return True


def read_within(channel: Channel, timeout_s: float) -> object | None:
    """Returns the value that was written; None if there is none within so many seconds."""
    import ray

    try:
        return channel.read(timeout=timeout_s)
    except (ray.exceptions.RayChannelError, ray.exceptions.RayChannelTimeoutError):
        return None
