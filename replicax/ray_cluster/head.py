"""The head of a Ray cluster: the process (Ray's GCS) that holds it together, and without which nothing is replaced."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from replicax.cluster.patience import Patience
from replicax.errors import ParameterServerLost
from replicax.ray_cluster.nodes import HEAD_LIMIT_NAME, answers, refuses
from replicax.ray_cluster.ray_environment import import_ray
from replicax.runtime.threads import StoppedAtEnd

# Ray ends a process, without an error that Python could see, when the head has been gone for so many seconds.
_RAYS_OWN_LIMIT = "60"
_LONGER_THAN_OTHERS_S = 300  # So long a coordinator or client can say what is wrong, and save.
_PART_OF_LIMIT = 0.8  # Before Ray's nodes end, since what they end looks like other faults.
_LOOKS = 2


def limit(environ: Mapping[str, str] = os.environ, default: str = _RAYS_OWN_LIMIT) -> float:
    """Returns for how many seconds Ray's processes go on without the head, as the user has set it or by default."""
    value = environ.get(HEAD_LIMIT_NAME, default)
    return float(value) if value.isdecimal() else float(default)


def outliving(seconds: float) -> dict[str, str]:
    """Returns Ray's variables for a process that outlives nodes which go on for so many seconds without the head."""
    return {HEAD_LIMIT_NAME: str(int(seconds) + _LONGER_THAN_OTHERS_S)}


class Head(NamedTuple):
    """The head of a cluster."""

    name: str  # in messages
    address: str  # `"host:port"`
    patience: float = 0.0  # seconds for which it may refuse connections before that is an error
    outage: float = 60.0  # and at least for which its network may be down: only who refuses has surely ended

    def is_gone(self) -> bool:
        """Returns whether nobody listens there, at two looks."""
        return not any(answers(self.address) for _ in range(_LOOKS))

    def is_given_up(self, seconds: float) -> bool:
        """Returns whether a training goes on no more when the head has been gone for so many seconds."""
        return seconds >= (self.patience if refuses(self.address) else max(self.patience, self.outage))

    def lost(self) -> ParameterServerLost:
        """Returns the error for a training that goes on no more without it."""
        return ParameterServerLost(
            f"{self.name} is gone: nobody answers there any more. It holds the Ray cluster together, so workers and "
            "parameter servers are lost, and what the variables learned since the newest checkpoint. Start the job "
            "again: it goes on from that checkpoint (manager.restore_or_initialize())."
        )


def head_of_connection(patience: float) -> Head | None:
    """Returns the head of the cluster that this process is connected with; None if it is a client of another driver."""
    ray = import_ray()
    if ray.util.client.ray.is_connected():
        return None
    address = ray.get_runtime_context().gcs_address
    return Head(f"Ray's head at {address}", address, patience * _PART_OF_LIMIT)


class HeadWatch:
    """Looks again and again whether the head is still there; calls `tell` once, in a thread, when it is lost."""

    def __init__(self, head: Head, tell: Callable[[ParameterServerLost], None], patience: Patience):
        self._head, self._tell, self._patience = head, tell, patience
        self._end = threading.Event()
        self._thread = StoppedAtEnd("replicax-head-watch", self._run, stop=self._end.set)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        gone_since: float | None = None
        while not self._end.wait(self._patience.again):
            now = time.monotonic()
            if not self._head.is_gone():
                gone_since = None
            elif gone_since is None:
                gone_since = now
            elif self._head.is_given_up(now - gone_since):
                self._tell(self._head.lost())
                return
