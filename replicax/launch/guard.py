"""Kills what the launcher leaves behind when it is itself killed with SIGKILL and can no longer do so.

A process of its own, started by its path. It reads from a pipe which process groups there are (`+123`), and which are
gone (`-123`). The pipe ends when the launcher does, however that happens; then the groups that are left are killed. The
workers themselves have died with the launcher already (`child.py`); this is for the processes that they started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Follows the launcher's news to their end, and kills the groups that are left then.

    Args:
        lines: The news, one process group a line.
    """
    groups: set[int] = set()
    for line in lines:
        number = int(line)
        groups.add(number) if number > 0 else groups.discard(-number)
    for group in groups:
        with contextlib.suppress(OSError):  # Gone already.
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.stdin)
