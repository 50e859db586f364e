"""The folder of a Ray node that this process starts. No process of the node outlives the folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from replicax.ray_cluster import node_reaper
from replicax.ray_cluster.deadline import PATIENCE

_LONGEST_BASE = 20  # The path of a Unix socket has 107 bytes at most, of which Ray needs about 64.


class Folder:
    """A new folder for the logs and sockets of a Ray node; `close`, or any end of this process, ends both."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        self.root = tempfile.mkdtemp(prefix=f"rx-{os.getpid()}-", dir=base if len(base) <= _LONGEST_BASE else "/tmp")
        # For Ray, which lets everybody write to what it is given; only this user can get past `root`.
        self.path = os.path.join(self.root, "r")
        os.mkdir(self.path, 0o700)
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", node_reaper.__file__, self.root], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the node's processes must have in their environment."""
        return {node_reaper.VARIABLE: self.root}

    def close(self) -> None:
        """Kills the processes that are left, and removes the folder."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait(3 * PATIENCE.end)  # It tries for as long as twice that.
