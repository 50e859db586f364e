from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicax as rx
from replicax.errors import ClusterError
from replicax.ray_cluster import RayCluster, connect, node_reaper
from replicax.ray_cluster.ray_environment import variables
from tests.ray_cluster.conftest import assert_nothing_left, python


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with variables({}):  # Ray sets some when it is imported.
        pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    before = dict(os.environ), signal.getsignal(signal.SIGTERM)
    with rx.testing.local_cluster(workers=2, servers=1) as made:
        assert signal.getsignal(signal.SIGTERM) == before[1]
        assert "RAY_AUTH_TOKEN" not in os.environ
        (folder,) = folders()
        yield made
    assert_nothing_left(str(folder))
    assert not sys.modules["ray"].is_initialized()


def folders() -> list[Path]:
    return list(Path("/tmp").glob(f"rx-{os.getpid()}-*"))


def start(cluster: RayCluster) -> tuple[list, list]:
    """Starts an actor for each task; returns them, and the node and process of each."""
    import ray

    class Task:
        def where(self) -> tuple[str, int]:
            import ray

            return ray.get_runtime_context().get_node_id(), os.getpid()

    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    actors = [ray.remote(Task).options(**cluster.actor_options(*task)).remote() for task in tasks]
    return actors, ray.get([actor.where.remote() for actor in actors])


def test_a_strategy_in_the_block_finds_the_cluster(cluster: RayCluster):
    found = connect()
    assert (found.workers, found.servers, found.is_local) == (2, 1, True)
    found.close()
    assert sys.modules["ray"].is_initialized()
    with connect(workers=3) as more:
        assert (more.workers, more.servers) == (3, 1)


def test_actors_run_and_end_even_if_they_are_stopped(cluster: RayCluster):
    import ray

    actors, where = start(cluster)
    assert len({pid for _, pid in where}) == 3
    node, pid = where[1]
    os.kill(pid, signal.SIGSTOP)
    cluster.end_process(node, pid)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actors[1].where.remote(), timeout=60)
    cluster.end_process(node, pid)  # Again does no harm, and neither does a node that nobody knows.
    cluster.end_process("0" * 56, pid)
    with subprocess.Popen(["sleep", "60"]) as other:  # It has the number of an actor that ended.
        cluster.end_process(node, other.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
        other.kill()
    for actor in actors:
        ray.kill(actor)


def test_there_are_no_other_tasks(cluster: RayCluster):
    for job, index in (("chief", 0), ("worker", 2), ("ps", 1), ("worker", -1)):
        with pytest.raises(ClusterError):
            cluster.actor_options(job, index)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_nobody_outside_this_machine_can_connect(cluster: RayCluster):
    start(cluster)
    (folder,) = folders()
    sockets = set()
    for pid in [*node_reaper.marked(str(folder)), os.getpid()]:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # It has been closed meanwhile.
                sockets.add(os.readlink(link))
    # Address and state of each socket; 0A is a socket that listens.
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    hosts = {line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}
    assert hosts
    assert hosts <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize("token", ["", "0" * 32], ids=["no token", "another token"])
def test_who_does_not_know_the_token_is_refused(cluster: RayCluster, token: str):
    import ray

    code = (
        "import sys\n"
        "from ray._private import services\n"
        "services.get_node_ip_address = lambda *_: '127.0.0.1'\n"
        "from ray._raylet import GcsClient\n"
        "try:\n"
        f"    print(GcsClient(address={ray.get_runtime_context().gcs_address!r}).internal_kv_keys(b'', None))\n"
        "except Exception as error:\n"
        "    print('refused', type(error).__name__, error)\n"
    )
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    done = python(code, HOME="/nonexistent", **given)
    assert "refused" in done.stdout + done.stderr or done.returncode != 0
    assert "[b'" not in done.stdout
    assert "nauth" in done.stdout + done.stderr


@pytest.mark.multiprocess
def test_nothing_outlives_a_coordinator_that_is_killed(cluster: RayCluster):
    # Its own cluster beside this one, with an actor that is stopped.
    code = (
        "import glob, os, signal, ray\n"
        "from replicax.ray_cluster import connect\n"
        "cluster = connect(workers=1, dashboard=False)\n"
        "actor = ray.remote(type('Task', (), {'pid': lambda self: os.getpid()})).options(num_cpus=0).remote()\n"
        "os.kill(ray.get(actor.pid.remote()), signal.SIGSTOP)\n"
        "print(*glob.glob(f'/tmp/rx-{os.getpid()}-*'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = python(code, KERAS_BACKEND="jax")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_nothing_left(done.stdout.strip())


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_at_no_socket_and_no_log(cluster: RayCluster):
    start(cluster)
    (folder,) = folders()
    sockets = [path for path in folder.rglob("*") if path.is_socket()]
    logs = [path for path in folder.rglob("*.out") if path.is_file()]
    assert sockets
    assert logs
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "def tried(what, do):\n"
        "    try:\n"
        "        do()\n"
        "    except PermissionError:\n"
        "        return\n"
        "    print(what)\n"
        f"tried('list', lambda: os.listdir({str(folder)!r}))\n"
        f"for path in {[str(path) for path in sockets]!r}:\n"
        "    tried('connect ' + path, lambda: socket.socket(socket.AF_UNIX).connect(path))\n"
        "    tried('rename ' + path, lambda: os.rename(path, path + '.mine'))\n"
        f"for path in {[str(path) for path in logs]!r}:\n"
        "    tried('read ' + path, lambda: open(path).read())\n"
        "print('done')\n"
    )
    done = python(code)
    assert done.stdout == "done\n", done.stdout + done.stderr
