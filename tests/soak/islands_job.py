"""One island of `islands.py`: it changes a few arrays in each round, and meets the others.

    islands_job.py FOLDER ROUND_S STALL_S

What it adds in a round depends on its index and the round alone, so that the end can be computed from the journal: who
took part in which exchange. The journal has a line for each time that it comes, and for each exchange whose values it
has kept. It ends after the round that the file `target` names. A file `die-1` makes island 1 kill itself in the midst
of its next exchange.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.cluster import found_cluster
from replicax.group.membership.meeting import MemberLostError
from replicax.group.membership.opening import open_meeting

SHAPES = ((7,), (300, 40), (1,))
_START_TIMEOUT_S = 120.0
_LONGEST_EXCHANGE_S = 0.02


def part(index: int, round_number: int) -> list[np.ndarray]:
    """Returns what an island adds in a round."""
    generator = np.random.default_rng([index, round_number])
    return [generator.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def weight(index: int, round_number: int) -> int:
    """Returns the weight of an island in a round."""
    return 1 + (index + round_number) % 3


def die_if_told(order: Path) -> None:
    """Lets a thread kill this process soon."""
    if order.exists():
        order.unlink()
        delay = np.random.default_rng().uniform(0, _LONGEST_EXCHANGE_S)
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def run(folder: Path, round_s: float, stall_s: float) -> None:
    """Makes the rounds.

    Args:
        folder: Where the journal and the result go.
        round_s: How long each round takes, in seconds.
        stall_s: The time after which a stopped island is left out.
    """
    meeting = open_meeting(found_cluster(), _START_TIMEOUT_S, stall_s)
    own = meeting.index
    (folder / f"pid-{own}").write_text(str(os.getpid()))
    journal = (folder / f"journal-{own}.jsonl").open("a", buffering=1)
    target = folder / "target"
    state, done = [jnp.zeros(shape) for shape in SHAPES], -1
    while not (target.exists() and done >= int(target.read_text())):
        if done >= 0:
            time.sleep(round_s)
        came = time.time()
        roll = meeting.gather("the end of a round", str(done).encode())
        notes = [int(note) for note in roll.notes]
        newest = max(notes)
        old = [index for index, note in zip(roll.present, notes, strict=True) if note == newest]
        # At the start nobody has a state: that of the first island is taken.
        old = old if newest >= 0 else old[:1]
        shares = [weight(index, newest + 1) if newest >= 0 else 1 for index in old]
        mine = [jnp.zeros(shape) for shape in SHAPES]
        if own in old:
            share = np.float32(shares[old.index(own)] / sum(shares))
            added = part(own, newest + 1) if newest >= 0 else [np.zeros(shape) for shape in SHAPES]
            mine = [(value + new) * share for value, new in zip(state, added, strict=True)]
        die_if_told(folder / f"die-{own}")
        try:
            state = meeting.total(roll, mine)
        except MemberLostError:
            continue
        line = {"pid": os.getpid(), "roll": roll.number, "round": newest + 1, "old": old, "all": roll.present}
        journal.write(json.dumps({**line, "was": done, "came": came, "time": time.time()}) + "\n")
        done = newest + 1
    np.savez(folder / f"result-{own}.npz", *map(np.asarray, state))


if __name__ == "__main__":
    rx.config.set_virtual_devices(1)
    run(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
