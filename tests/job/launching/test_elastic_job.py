"""Elastic jobs whose workers really train: one joins and leaves, and all of them are ended."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from replicax.testing import free_ports
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
    """A launcher."""

    def __init__(self, folder):
        self.folder, self.logs = folder, folder / "logs"
        self.started = []

    def start(self, body, *options, arguments=(), **more):
        script = self.folder / "script.py"
        script.write_text(SCRIPT + textwrap.dedent(body))
        command = [sys.executable, "-m", "replicax", "run", *options, str(script), str(self.folder), *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), **more}
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


TOKEN = "0123456789abcdef" * 2


# Tells Ray that a node is about to go, as `ray drain-node` does, which takes no loopback address.
DRAIN = """
import sys, time
from ray._private import services
services.get_node_ip_address = lambda *_: "127.0.0.1"
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
client = GcsClient(address=sys.argv[1])
(node,) = [node.hex() for node, info in client.get_all_node_info().items() if sys.argv[2] in info.resources_total]
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
accepted, why = client.drain_node(node, reason, "a test", time.time_ns() // 1_000_000 + 60_000)
assert accepted, why
"""


def drain(address, resource):
    """Tells Ray that the node with a resource is about to go."""
    own = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    subprocess.run([sys.executable, "-c", DRAIN, address, resource], env=own, check=True, timeout=LIMIT_S)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_machines_join_are_lost_and_are_to_go(job, tmp_path):
    """Real nodes of Ray on this machine; what they train goes on."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    own = {**os.environ, **cache, "REPLICAX_TOKEN": TOKEN}

    def server(index):
        task = ["--cluster", json.dumps({"worker": addresses}), "--job", "worker", "--index", str(index)]
        with (tmp_path / f"server-{index}.log").open("wb") as log:
            command = [sys.executable, "-m", "replicax", "server", "--no-dashboard", *task]
            return subprocess.Popen(command, env=own, stdout=log, stderr=log)

    servers = [server(0)]
    try:
        options = ["--elastic", "1:2", "--hosts", addresses[0], "--log-dir", str(job.logs)]
        launcher = job.start(JOINS, *options, arguments=["0"], REPLICAX_TOKEN=TOKEN)
        job.wait_for_world(0)
        servers.append(server(1))
        job.wait_for_world(0, 1)
        servers[1].kill()
        job.wait_for_world(0)
        servers.append(server(2))
        job.wait_for_world(0, 1)
        drain(addresses[0], "replicax_worker_2")
        job.wait_for_world(0)
        done = int((job.folder / "progress").read_text().splitlines()[-2])
        (job.folder / "over.new").write_text(str(done + 50))
        (job.folder / "over.new").rename(job.folder / "over")
        code, said = job.end(launcher)
        assert code == 0, said
    finally:
        for each in reversed(servers):
            each.terminate()
            each.wait(LIMIT_S)
    assert [world["why"] for world in job.worlds()] == [
        "the job has begun",
        "worker 1 has joined",
        "worker 1 was lost (nothing is heard of its machine)",
        "worker 1 is back",
        "worker 1 has left (preempted: SIGTERM)",
    ]
    assert f"ends with {done + 50} " in said


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
