"""`replicax run --ps`: one process runs the script, and nothing of its Ray cluster outlives the job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import pytest

from tests.job.launching.conftest import Done, Launcher, wait_for
from tests.ray_cluster.conftest import assert_nothing_left

pytestmark = pytest.mark.multiprocess
Launch = Callable[..., Launcher]

# A cluster with an actor that is stopped: such a process does not notice anybody's end.
CLUSTER = """
import glob, ray
from replicax.ray_cluster import connect
cluster = connect(dashboard=False)
class Task:
    def pid(self):
        return os.getpid()
actors = [ray.remote(Task).options(**cluster.actor_options("worker", i)).remote() for i in range(cluster.workers)]
pids = ray.get([actor.pid.remote() for actor in actors])
os.kill(pids[0], signal.SIGSTOP)
(folder,) = glob.glob(f"/tmp/rx-{os.getpid()}-*")
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "folder"), "w").write(folder)
print(cluster.workers, cluster.servers)
"""


def test_the_script_runs_once_and_its_failure_is_the_jobs(run: Callable[..., Done]):
    body = "print(os.environ['REPLICAX_PS_WORKERS'], os.environ['REPLICAX_PS_SERVERS'], attempt)\nsys.exit(3 * attempt)"
    done = run(body, workers=3, ps=2)
    assert (done.code, done.out) == (0, "[chief 0] 3 2 0\n")
    done = run("raise ValueError('no')", workers=3, ps=2, restarts=1)
    assert done.code == 1
    assert "chief 0 failed first" in done.err
    assert "ValueError: no" in done.err
    assert done.log("chief-0").count("ValueError: no") == 2


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM], ids=["end", "SIGKILL", "SIGTERM"])
def test_nothing_of_the_cluster_outlives_the_job(launcher: Launch, number: int):
    pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    job = launcher(CLUSTER + ("ready()\nsleep()" if number else "ready()"), "--ps", "1", "--workers", "2")
    wait_for(lambda: (job.folder / "folder").exists() or job.process.poll() is not None)
    job.pids(1)
    if number:
        code, *_ = job.end(number)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
    else:
        code, out, err = job.wait()
        assert (code, out) == (0, "[chief 0] 2 1\n"), err
    assert_nothing_left((job.folder / "folder").read_text())
