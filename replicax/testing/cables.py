"""Network namespaces for the workers of a test, with cables that can be cut.

Each worker has a namespace of its own, and so has the launcher. A cable (a pair of virtual Ethernet cards) leads from
each worker to a bridge in the launcher's namespace. Nothing of it is connected with the machine's own network.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from replicax.errors import LaunchError

_CARD = "wire0"
_NAME = re.compile(r"rxt(\d+)-[0-9a-f]+-(?:hub|\d+)")
_SECONDS_FOR_A_COMMAND = 30.0  # of the system: it has hung


def why_no_cables() -> str | None:
    """Returns the sentence that says why this machine cannot make network namespaces; None where it can.

    Example:
        >>> reason = rx.testing.why_no_cables()
        >>> reason is None or reason.endswith(".")
        True
    """
    if shutil.which("ip") is None:
        return "There is no command `ip` here (Debian: iproute2), so no worker gets a cable that can be cut."
    if not hasattr(os, "geteuid"):
        return f"Network namespaces are Linux's, and this is {sys.platform}, so no worker gets a cable that can be cut."
    if os.geteuid() != 0:
        return f"Network namespaces need root, and this is user {os.geteuid()}, so no worker gets a cable."
    return None


class Cables:
    """A namespace and a cable for each worker, until the block ends."""

    def __init__(self, workers: int):
        problem = why_no_cables()
        if problem:
            raise LaunchError(problem)
        run = f"rxt{os.getpid()}-{secrets.token_hex(2)}"
        self.hub, self.hub_address = f"{run}-hub", "10.79.0.254"  # the launcher's namespace, and its IPv4 address
        self._prefix, self._workers = run, workers

    def __enter__(self) -> Cables:
        remove_left_behind()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    @property
    def prefix(self) -> str:
        """The beginning of the names of the workers' namespaces; `-` and the worker's index follow."""
        return self._prefix

    def cut(self, worker: int) -> None:
        """Cuts the cable of a worker: from now on nothing goes through it. Nothing that runs is told so."""
        self._set(worker, "down")

    def mend(self, worker: int) -> None:
        """Connects a worker again."""
        self._set(worker, "up")
        for name in (self.hub, self._name(worker)):  # Whoever asked in vain meanwhile for an address asks again.
            _run("ip", "-n", name, "neighbour", "flush", "all")

    def _set(self, worker: int, state: str) -> None:
        # At the bridge: the worker's own card keeps its address and routes.
        _run("ip", "-n", self.hub, "link", "set", f"port{worker}", state)

    def _make(self) -> None:
        for name in (self.hub, *map(self._name, range(self._workers))):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.hub, "address", "add", f"{self.hub_address}/24", "dev", "bridge")
        _run("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for worker in range(self._workers):
            name, port = self._name(worker), f"port{worker}"
            peer = ("peer", "name", port, "netns", self.hub)
            _run("ip", "link", "add", _CARD, "netns", name, "type", "veth", *peer)
            _run("ip", "-n", self.hub, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", name, "address", "add", f"{address_of(worker)}/24", "dev", _CARD)
            _run("ip", "-n", name, "link", "set", _CARD, "up")

    def _remove(self) -> None:
        for name in (self.hub, *map(self._name, range(self._workers))):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # The cables go with their ends.

    def _name(self, worker: int) -> str:
        return f"{self._prefix}-{worker}"


def address_of(worker: int) -> str:
    """Returns the IPv4 address of a worker behind a cable."""
    return f"10.79.0.{worker + 1}"


def remove_left_behind() -> None:
    """Removes namespaces of tests whose process was killed."""
    for line in _run("ip", "netns", "list").splitlines():
        found = _NAME.match(line)
        if found and not Path(f"/proc/{found[1]}").exists():
            with contextlib.suppress(LaunchError):  # Another test has removed it.
                _run("ip", "netns", "delete", found[0])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_FOR_A_COMMAND)
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}`: {done.stderr.strip() or f'code {done.returncode}'}")
    return done.stdout
