"""An Ethernet switch in a thread: cables can be cut and mended, lose what goes one way, or be long and thin."""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import threading
import time
from collections.abc import Sequence

_TUNSETCARRIER = 0x400454E2
_LARGEST_FRAME = 2**16
_LONGEST_QUEUE = 1000  # frames; what comes then is dropped, as in any switch
_FRAMES_AT_ONCE = 64


class Cable:
    """The cable between a host and the switch.

    Args:
        file: The host's card; it is closed with the switch.
        mac: The card's address.
    """

    def __init__(self, file: int, mac: str):
        self.file, self.mac = file, bytes.fromhex(mac.replace(":", ""))
        self.loses_to_host = self.loses_from_host = False
        self._delay_s, self._bytes_per_s = 0.0, 0.0
        self._free_at = 0.0  # when the last frame towards the host has left the switch
        self.queued = 0

    def cut(self) -> None:
        """Nothing goes through, and the host's card notices."""
        self.lose()
        self._carrier(False)

    def lose(self, to_host: bool = True, from_host: bool = True) -> None:
        """Loses all frames of one direction or both; nobody notices."""
        self.loses_to_host, self.loses_from_host = to_host, from_host

    def mend(self) -> None:
        """Everything goes through again."""
        self._carrier(True)
        self.lose(False, False)

    def slow(self, delay_s: float, bytes_per_s: float) -> None:
        """Each frame towards the host takes longer, and they come one after the other."""
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s

    def arrival(self, size: int, now: float) -> float:
        """Returns when a frame that is sent now will be at the host."""
        if self._bytes_per_s:
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            now = self._free_at
        return now + self._delay_s

    def _carrier(self, on: bool) -> None:
        fcntl.ioctl(self.file, _TUNSETCARRIER, struct.pack("i", on))


class Switch:
    """Passes frames on between cables until it is closed."""

    def __init__(self) -> None:
        self._cables: tuple[Cable, ...] = ()
        self._woken, self._wake = os.pipe()
        self._order = itertools.count()
        self._on_the_way: list[tuple[float, int, Cable, bytes]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        self._thread.start()

    def plug_in(self, cable: Cable) -> None:
        """Connects a cable."""
        self._cables = (*self._cables, cable)
        os.write(self._wake, b".")

    def close(self) -> None:
        """Ends the thread and closes all cables."""
        self._closed = True
        os.write(self._wake, b".")
        self._thread.join()
        for file in (self._woken, self._wake, *(cable.file for cable in self._cables)):
            os.close(file)

    def _run(self) -> None:
        while not self._closed:
            cables = self._cables
            self._deliver(time.monotonic())
            wait = max(self._on_the_way[0][0] - time.monotonic(), 0.0) if self._on_the_way else None
            ready = select.select([self._woken, *(cable.file for cable in cables)], [], [], wait)[0]
            if self._woken in ready:
                os.read(self._woken, 100)
            for cable in cables:
                if cable.file in ready:
                    self._take_from(cable, cables)

    def _take_from(self, cable: Cable, cables: Sequence[Cable]) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(cable.file, _LARGEST_FRAME)
            except OSError:  # No more frames; or the host is off.
                return
            if not cable.loses_from_host:
                self._pass_on(frame, [other for other in cables if other is not cable])

    def _pass_on(self, frame: bytes, others: Sequence[Cable]) -> None:
        target, now = frame[:6], time.monotonic()
        to_all = bool(target[0] & 1)
        for cable in others:
            if (to_all or cable.mac == target) and not cable.loses_to_host and cable.queued < _LONGEST_QUEUE:
                cable.queued += 1
                heapq.heappush(self._on_the_way, (cable.arrival(len(frame), now), next(self._order), cable, frame))
        self._deliver(now)

    def _deliver(self, now: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, _, cable, frame = heapq.heappop(self._on_the_way)
            cable.queued -= 1
            if not cable.loses_to_host:
                with contextlib.suppress(OSError):  # The host is off, or its card is.
                    os.write(cable.file, frame)
