"""One island of `islands.py`: it changes a few arrays in each round, and meets the others.

What it adds in a round depends on its index and the round alone, so that the end can be computed from the journal: who
took part in which exchange. The journal has a line for each exchange whose values this process has kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.cluster import found_cluster
from replicax.membership import MemberLostError, open_meeting

SHAPES = ((7,), (300, 40), (1,))
_START_TIMEOUT_S = 120.0


def part(index: int, round_number: int) -> list[np.ndarray]:
    """Returns what an island adds in a round."""
    generator = np.random.default_rng([index, round_number])
    return [generator.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def weight(index: int, round_number: int) -> int:
    """Returns the weight of an island in a round."""
    return 1 + (index + round_number) % 3


def run(rounds: int, round_s: float, stall_s: float, folder: Path) -> None:
    """Makes the rounds.

    Args:
        rounds: How many.
        round_s: How long each of them takes, in seconds.
        stall_s: The time after which a stopped island is left out.
        folder: Where the journal and the result go.
    """
    meeting = open_meeting(found_cluster(), _START_TIMEOUT_S, stall_s)
    journal = (folder / f"journal-{meeting.index}.jsonl").open("a", buffering=1)
    state, done = [jnp.zeros(shape) for shape in SHAPES], -1
    while done < rounds:
        if done >= 0:
            time.sleep(round_s)
        roll = meeting.gather("the end of a round", str(done).encode())
        notes = [int(note) for note in roll.notes]
        newest = max(notes)
        old = [index for index, note in zip(roll.present, notes, strict=True) if note == newest]
        # At the start nobody has a state: that of the first island is taken.
        old = old if newest >= 0 else old[:1]
        shares = [weight(index, newest + 1) if newest >= 0 else 1 for index in old]
        mine = [jnp.zeros(shape) for shape in SHAPES]
        if meeting.index in old:
            share = np.float32(shares[old.index(meeting.index)] / sum(shares))
            added = part(meeting.index, newest + 1) if newest >= 0 else [np.zeros(shape) for shape in SHAPES]
            mine = [(value + own) * share for value, own in zip(state, added, strict=True)]
        try:
            state = meeting.total(roll, mine)
        except MemberLostError:
            continue
        line = {"pid": os.getpid(), "roll": roll.number, "round": newest + 1, "old": old, "all": roll.present}
        journal.write(json.dumps({**line, "was": done, "time": time.time()}) + "\n")
        done = newest + 1
    np.savez(folder / f"result-{meeting.index}.npz", *map(np.asarray, state))


if __name__ == "__main__":
    rx.config.set_virtual_devices(1)
    run(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
