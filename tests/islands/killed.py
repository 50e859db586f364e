"""An island's training, for `test_lost_workers.py`: the second one kills itself in its first life.

killed.py FOLDER
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import replicax as rx
from tests.islands.test_strategy import BATCHES, Training

STEPS = 400


def main(folder: Path) -> None:
    strategy = rx.DiLoCoStrategy(4, stall_timeout=60)
    training = Training(strategy)
    mine, incarnation = strategy.island_index == 1, os.environ.get("REPLICAX_LIFE", "0")
    steps = []
    while strategy.steps < STEPS:
        training.train(BATCHES[strategy.steps % len(BATCHES)])
        steps.append(strategy.steps)
        time.sleep(0.02)
        if mine and incarnation == "0" and strategy.steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
    strategy.synchronize()
    found = {"steps": steps, "life": incarnation, "values": [np.asarray(value).tolist() for value in training.values()]}
    (folder / f"{strategy.island_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
