"""Noticing that the process is gone that keeps the job store of a meeting.

JAX aborts whoever is connected with such a process, in a thread of its own, with a message that says nothing to a user.
So a thread of ours keeps a connection with it that carries nothing: when the system closes that, it says what happened,
and ends the process with a code of ours, while JAX still collects its stack. Where many processes share a core, JAX may
be faster; nothing else than these words is lost then.

A machine that does not answer any more, since a cable is cut, closes nothing. JAX's questions to the job store would
wait for it without end. So the system asks whether it is there, and after a while this process ends as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from replicax.cluster import parse_address
from replicax.cluster.outages import end_if_silent
from replicax.cluster.patience import Patience
from replicax.compat.jax_cliques import board_is_gone, board_is_silent
from replicax.errors import MeetingError

PATIENCE = Patience(start=10.0, silence=300.0, end=11.0, again=1.0)
_BYTES = 4096
_STDERR = 2


class StoreWatcher:
    """Ends this process, with a message, when the job store of the meeting is gone, or silent for too long."""

    def __init__(self, address: str, name: str, patience: Patience = PATIENCE, end: Callable[[int], object] = os._exit):
        self._address, self._patience, self._end = address, patience, end
        self._name = name
        self._stopped = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="replicax-meeting-lookout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):  # It was closed meanwhile.
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(self._patience.end)

    def _run(self) -> None:
        host, port = parse_address(self._address, "meeting")
        answered = time.monotonic()
        while not self._stopped.is_set():
            try:
                with socket.create_connection((host, port), timeout=self._patience.start) as connection:
                    self._connection, answered = connection, time.monotonic()
                    self._await_end(connection)
                    answered = time.monotonic()  # Otherwise it was silent for as long as it may be.
            except ConnectionRefusedError:
                return None if self._stopped.is_set() else self.tell(board_is_gone(self._address))
            except OSError:  # No answer in time: its machine is busy, or gone, or the cable is cut.
                if time.monotonic() - answered > self._patience.silence and not self._stopped.is_set():
                    return self.tell(board_is_silent(self._address, self._patience.silence))
            finally:
                self._connection = None
            if self._is_listening(host, port):  # It has only closed a connection on which nothing came.
                self._stopped.wait(self._patience.again)

    def _await_end(self, connection: socket.socket) -> None:
        if self._stopped.is_set():
            return
        connection.settimeout(None)
        end_if_silent(connection, self._patience.silence)
        peer = connection.getpeername()
        with socket.socket(connection.family) as again:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(_BYTES):
                    pass
            again.settimeout(self._patience.start)
            again.connect(peer)  # At once: JAX is fast.

    def _is_listening(self, host: str, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=self._patience.start):
            return True
        return False

    def tell(self, why: MeetingError) -> None:
        """Says why this process cannot go on, and ends it."""
        with contextlib.suppress(OSError):  # Nobody reads it.
            os.write(_STDERR, f"\n{self._name}: {why}\n".encode())  # At once: what Python buffers would be lost.
        self._end(why.exit_code)
