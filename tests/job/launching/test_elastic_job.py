"""Elastic jobs whose workers really train: one joins and leaves, and all of them are ended."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.job.launching.conftest import wait_for

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

LIMIT_S = 120.0
SCRIPT = """
import os, sys, time
os.environ.setdefault("KERAS_BACKEND", "jax")
import jax.numpy as jnp
import numpy as np
import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = rx.Variable(np.zeros(3, np.float32), name="total")
    steps = rx.Variable(0, name="steps")
folder, last = sys.argv[1], int(sys.argv[2])

@rx.function
def train(x):
    def step(x):
        total.assign_add(x)
        steps.assign_add(1)
    strategy.run(step, args=(x,))

checkpoint = rx.Checkpoint(total=total, steps=steps)
"""


class Job:
    """A launcher, and those that join it."""

    def __init__(self, folder):
        self.folder, self.logs = folder, folder / "logs"
        self.started = []

    def start(self, body, *options, arguments=()):
        script = self.folder / "script.py"
        script.write_text(SCRIPT + textwrap.dedent(body))
        command = [sys.executable, "-m", "replicax", "run", *options, str(script), str(self.folder), *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        environment.pop("REPLICAX_JOIN", None)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(process)
        return process

    def worlds(self):
        path = self.logs / "members.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == "world"]

    def wait_for_world(self, *members):
        for _ in range(4):  # On a busy machine a start takes longer than one limit of that function.
            try:
                wait_for(lambda: self.worlds() and self.worlds()[-1]["members"] == [*members])
                return
            except AssertionError:
                continue
        raise AssertionError(f"No world of {members} came; there were {self.worlds()}.")

    def end(self, process):
        said, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, said


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


JOINS = """
def last_step():  # All of them see it long before they come to that step.
    path = os.path.join(folder, "over")
    return int(open(path).read()) if os.path.exists(path) else sys.maxsize

strategy.join(checkpoint)
while (done := int(steps.numpy())) < last_step():
    train(jnp.ones(3))
    strategy.join()
    if strategy.is_chief:
        with open(os.path.join(folder, "progress"), "a") as progress:
            progress.write(f"{done}\\n")
    time.sleep(0.02)
print("ends with", int(steps.numpy()), float(total.numpy()[0]), flush=True)
"""


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_worker_joins_takes_the_state_and_leaves(job):
    first = job.start(JOINS, "--elastic", "1:2", "--workers", "1", "--log-dir", str(job.logs), arguments=["0"])
    job.wait_for_world(0)
    own_logs = ["--log-dir", str(job.folder / "own-logs")]
    second = job.start(JOINS, "--join", str(job.logs), *own_logs, arguments=["0"])
    job.wait_for_world(0, 1)
    second.send_signal(signal.SIGTERM)
    assert job.end(second)[0] == 75
    job.wait_for_world(0)
    third = job.start(JOINS, "--join", str(job.logs), *own_logs, arguments=["0"])
    job.wait_for_world(0, 1)
    done = int((job.folder / "progress").read_text().splitlines()[-2])
    (job.folder / "over.new").write_text(str(done + 100))
    (job.folder / "over.new").rename(job.folder / "over")
    code, said = job.end(first)
    assert code == 0, said
    assert job.end(third)[0] == 0
    assert [world["why"] for world in job.worlds()][:4] == [  # One may lag at the end, in a world of its own.
        "the job has begun",
        "worker 1 has joined",
        "worker 1 has left (preempted: SIGTERM)",
        "worker 1 is back",
    ]


SAVES = """
with rx.PreemptionCheckpointHandler(strategy, checkpoint, os.path.join(folder, "checkpoints")) as handler:
    print("begins with", handler.total_run_calls, float(total.numpy()[0]), flush=True)
    while handler.total_run_calls < last:
        handler.run(train, jnp.ones(3))
        time.sleep(0.01)
print("ends with", int(steps.numpy()), float(total.numpy()[0]), flush=True)
"""


@pytest.mark.timeout(400)
@pytest.mark.nightly
def test_all_save_the_same_step_when_the_launcher_is_told_to_end(job):
    options = ["--elastic", "1:2", "--log-dir", str(job.logs)]
    first = job.start(SAVES, *options, arguments=["1000000"])
    job.wait_for_world(0, 1)
    logs = [job.logs / f"worker-{index}.log" for index in (0, 1)]
    wait_for(lambda: all("begins with" in log.read_text() for log in logs))
    first.send_signal(signal.SIGTERM)
    code, said = job.end(first)
    assert code == 75, said
    (job.logs / "members.jsonl").unlink()
    code, said = job.end(job.start(SAVES, *options, arguments=["0"]))
    assert code == 0, said
    begins = {line.split("] ")[1] for line in said.splitlines() if "begins with" in line}
    assert len(begins) == 1
    words = begins.pop().split()
    assert float(words[2]) == float(words[3])
