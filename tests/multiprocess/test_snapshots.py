"""A job that is started again goes on from its snapshot in memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from replicax.job.launching import Options, launch
from tests.multiprocess.stalls import ROOT

pytestmark = pytest.mark.nightly

JOB = """
import os, signal, sys, time
import numpy as np, jax.numpy as jnp
import replicax as rx

attempt, folder = int(os.environ["REPLICAX_ATTEMPT"]), sys.argv[1]
strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = rx.Variable(jnp.zeros((4, 2)))

@rx.function
def step(batch):
    def replica(x):
        w.assign_add(rx.get_replica_context().all_reduce("sum", x.sum(0)) * jnp.ones((4, 1)))
    strategy.run(replica, args=(batch,))

manager = rx.CheckpointManager(folder, objects={"w": w}, save_interval_steps=1_000_000)
done = manager.restore_or_initialize() or 0
print("from", done, flush=True)
for batch in strategy.distribute_dataset([np.ones((4, 2), np.float32)] * (300 - done)):
    step(batch)
    done += 1
    manager.save(done)
    time.sleep(0.003)
    if done >= 100 * (attempt + 1) and attempt < 2 and strategy.worker_index == attempt:
        os.kill(os.getpid(), signal.SIGKILL)
assert done == 300 and np.all(w.numpy() == 1200.0), w
print("done", manager.all_steps(), flush=True)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_workers_that_are_killed_lose_some_steps_and_not_all(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(JOB)
    memory = tmp_path / "memory"
    memory.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "REPLICAX_SNAPSHOTS": str(memory),
    }
    options = Options(str(script), (str(tmp_path / "disk"),), workers=2, restarts=2, log_dir=tmp_path / "logs")
    code = launch(options, environment=environment)
    logs = [(tmp_path / "logs" / f"worker-{worker}.log").read_text() for worker in range(2)]
    assert code == 0, logs
    begun = [[int(step) for step in re.findall(r"(?m)^from (\d+)$", log)] for log in logs]
    assert begun[0] == begun[1]
    assert begun[0][0] == 0
    assert all(0 < step <= 100 * attempt for attempt, step in enumerate(begun[0]) if attempt), begun
    assert "done []" in logs[0]
    assert list(memory.iterdir()) == []
