"""How long a process waits for others. Whoever starts a job or a service hands it down; tests hand in less."""

from __future__ import annotations

import math
from typing import NamedTuple


class Patience(NamedTuple):
    """How long a process waits for others, in seconds."""

    start: float  # for those that are about to connect
    silence: float  # for a sign of one that is there; afterwards it counts as silent
    end: float  # for those that are about to end
    again: float  # until it asks once more
    stall: float = math.inf  # for progress of one that is there; by default it may take any time


# For processes that connect with each other. Their work has at least a minute when all are there, and so has the name
# service of a machine that has just started. A process answers within 5 s, even on a busy machine. At the end process 0
# waits until the others have heard why, and they wait a little longer than it does.
CONNECTING = Patience(start=60.0, silence=5.0, end=2.0, again=1.0)
