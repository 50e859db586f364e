"""Workers that have done their work end with the exit code that they have; the soak does so a thousand times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.normal_ends import LONGEST_S, Case, soak

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(2 * LONGEST_S)]


@pytest.mark.nightly
def test_workers_of_each_kind_end_as_they_should():
    cases = [Case("notebook", "exception", 2), Case("elastic", "exit", 2), Case("preemptible", "last", 2)]
    found = soak(cases, at_once=len(cases))
    assert [each.wrong for each in found.values()] == [""] * len(cases)
    assert [len(each.ends) for each in found.values()] == [case.processes for case in cases]


FORKS = """
import atexit, os, sys, warnings
import jax.numpy as jnp
import replicax as rx
warnings.simplefilter("ignore")  # JAX's, of forks
strategy = rx.MultiWorkerMirroredStrategy()
def step():
    replica = rx.get_replica_context()
    return replica.all_reduce("SUM", jnp.float32(replica.replica_id_in_sync_group))
for i in range(20):
    assert float(strategy.run(step)) == 1.0
    if i == 5 and not (child := os.fork()):
        atexit.register(print, "the child's own", flush=True)
        if strategy.is_chief:
            raise ValueError("only the child's")
        sys.exit(0)
    if i == 10:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (1 if strategy.is_chief else 0)
print("done", flush=True)
"""


@pytest.mark.timeout(120)
def test_the_end_of_a_forked_child_is_not_that_of_its_worker(tmp_path: Path):
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, "-m", "replicax", "run", "--workers", "2", "--log-dir", tmp_path / "log", "forks.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("done") == said.count("the child's own") == 2, said
    assert said.count("ValueError: only the child's") == 1, said
