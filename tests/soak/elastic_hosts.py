"""The servers of `elastic.py --hosts`: real nodes of Ray on this machine, each with room for one worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from replicax.testing import free_ports

TOKEN = "0123456789abcdef" * 2
_FOLDER = b"REPLICAX_RAY_FOLDER="
_SECONDS_TO_END = 60.0


class Servers:
    """Servers that are killed and started again. The first one has the head of the cluster, and stays.

    Args:
        count: How many.
        folder: For their output.
        environment: Theirs, and so that of the workers.
    """

    def __init__(self, count: int, folder: Path, environment: Mapping[str, str]):
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self._folder, self._environment = folder, {**environment, "REPLICAX_TOKEN": TOKEN}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(count):
            self.start(index)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `replicax run`."""
        return "--hosts", ",".join(self.addresses)

    def start(self, index: int) -> None:
        """Starts one."""
        task = ["--cluster", json.dumps({"worker": self.addresses}), "--job", "worker", "--index", str(index)]
        with (self._folder / f"server-{index}.txt").open("ab") as output:
            self._processes[index] = subprocess.Popen(
                [sys.executable, "-m", "replicax", "server", "--no-dashboard", *task],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def with_worker(self, pid: int) -> int:
        """Returns the server on whose node a process runs; 0 if it has ended."""
        node = _node_of(pid)
        children = {index: _children(process.pid) for index, process in self._processes.items()}
        return next((index for index, found in children.items() if node and node in map(_node_of, found)), 0)

    def lose(self, index: int) -> None:
        """Kills one. Its node, with the agent and the worker there, is killed at once by what watches over it."""
        self._processes[index].kill()
        self._processes[index].wait(_SECONDS_TO_END)

    def close(self) -> None:
        """Ends all of them, the head last."""
        for index in sorted(self._processes, reverse=True):
            self._processes[index].send_signal(signal.SIGTERM)
            self._processes[index].wait(_SECONDS_TO_END)


def _node_of(pid: int) -> bytes:
    """Returns the folder of the node to which a process belongs; `b""` if there is none, or the process has ended."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((each for each in variables if each.startswith(_FOLDER)), b"")


def _children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid:
            found.append(int(folder.name))
    return found
