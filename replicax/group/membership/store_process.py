"""The process that keeps the job store of a meeting and the services of its cliques, as whoever starts it sees it.

It is a process of its own, since JAX aborts whoever is connected with a service that goes. On its standard input it
reads which incarnations are over (`gone 1 0`: incarnation 0 of island 1), and whether the whole job is to end
(`ending`). When that has ended, so does it, as soon as nobody is connected any more: so the others can go on if the
process that started it is lost.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from replicax.checks.environment_names import TOKEN
from replicax.contracts.group import Incarnation

_MODULE = "replicax.group.membership.store_main"


class Host:
    """The process of a meeting's host, as the process that started it uses it."""

    def __init__(self, address: str, token: str):
        self.address = address
        self._popen = subprocess.Popen(
            [sys.executable, "-m", _MODULE, address],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the launcher.
            # Without the warning that recoverable tasks are experimental, at each service; JAX itself sets 1.
            env={**os.environ, TOKEN: token, "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu"},
        )

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._popen.pid

    def tell_end(self, incarnation: Incarnation) -> None:
        """Tells all processes that an incarnation is over."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Then the processes have lost the job store, and fail.
            self._popen.stdin.write(f"gone {incarnation.index} {incarnation.number}\n".encode())
            self._popen.stdin.flush()

    def tell_ending(self) -> None:
        """Tells all processes that the whole job is to end."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(b"ending\n")
            self._popen.stdin.flush()

    def let_go(self) -> None:
        """Lets it end when nobody is connected with it any more."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    def close(self) -> None:
        """Ends it. All processes of the meeting must have ended."""
        self._popen.kill()
        self._popen.wait()
        self.let_go()
