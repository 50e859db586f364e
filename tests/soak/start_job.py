"""The job that `start.py` starts: `start_job.py MEGABYTES TENSORS STALL_TIMEOUT`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import replicax as rx


def main() -> None:
    megabytes, tensors, stall_timeout = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=120)
    elements = megabytes * 2**20 // 4 // tensors
    begin = time.monotonic()
    with strategy.scope():
        variables = [rx.Variable(np.full(elements, i, np.float32), name=f"v{i}") for i in range(tensors)]
    print(f"values took {time.monotonic() - begin:.1f} s", flush=True)

    def step() -> Any:
        for variable in variables:
            variable.assign(variable.value + 1.0)
        return variables[0].value[0]

    run = rx.function(lambda: strategy.run(step))
    for _ in range(2):
        run()
    # What is made long after the last program is not late either.
    time.sleep(1.5 * stall_timeout)
    with strategy.scope():
        late = rx.Variable(np.zeros(min(elements, 10 * 2**18), np.float32), name="late")
    value = float(np.asarray(strategy.local_results(run())[0]))
    assert value == 3.0, value
    assert late.shape[0] > 0


if __name__ == "__main__":
    main()
