from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.cluster import ClusterConfig, ClusterSpec, SimpleClusterResolver, Task
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.ray_cluster import Server, connect, serve_if_task
from replicax.ray_cluster.deadline import PATIENCE
from replicax.ray_cluster.nodes import answers
from replicax.ray_cluster.ray_environment import variables
from replicax.testing import free_ports
from tests.ray_cluster.conftest import LIMIT_S, wait_for

SPEC = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (({}, "ps", 0), "cluster is empty"),
        ((SPEC, "chief", 0), "job must be one of"),
        ((SPEC, "ps", 1), "index of job 'ps' must be one of"),
        ((SPEC,), "job is missing"),
        ((SPEC, "ps"), "index is missing"),
        ((SPEC, "ps", 0), "REPLICAX_TOKEN is not set"),
    ],
)
def test_what_cannot_be_served(bare: pytest.MonkeyPatch, arguments, says):
    with pytest.raises(ClusterError, match=says):
        Server(*arguments)


def test_a_worker_waits_for_the_first_parameter_server(bare: pytest.MonkeyPatch):
    bare.setenv("REPLICAX_TOKEN", "0" * 32)
    with pytest.raises(ClusterTimeoutError, match=r"worker:0 at 127.0.0.1:1 waited 0.2 s .* for ps:0 at 127.0.0.1:2"):
        Server(SPEC, "worker", 0, start_timeout=0.2)


@pytest.mark.parametrize(
    "config",
    [
        ClusterConfig(),
        ClusterConfig(ClusterSpec({**SPEC, "chief": ["127.0.0.1:3"]}), Task("chief", 0)),
        ClusterConfig(ClusterSpec({"worker": ["127.0.0.1:1"]}), Task("worker", 0)),
        SimpleClusterResolver(SPEC),
    ],
)
def test_who_serves_nobody_goes_on(config):
    serve_if_task(config)


def test_who_serves_tries_to(bare: pytest.MonkeyPatch):
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN is not set"):
        serve_if_task(SimpleClusterResolver(SPEC, task_type="ps", task_id=0))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "job is missing"),
        (["--cluster", "{"], "--cluster is not JSON"),
        (["--cluster", json.dumps(SPEC), "--job", "ps", "--index", "3"], "index of job 'ps' must be one of"),
    ],
)
def test_mistakes_on_the_command_line(bare: pytest.MonkeyPatch, arguments, says):
    done = CliRunner().invoke(app, ["server", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.startswith("replicax server: ")


# With Ray.

Start = Callable[[str, int], subprocess.Popen]


@pytest.fixture
def spec(bare: pytest.MonkeyPatch) -> dict[str, list[str]]:
    with variables({}):  # Ray sets some when it is imported.
        pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    bare.setenv("REPLICAX_TOKEN", "0123456789abcdef" * 2)
    ps, *workers = (f"127.0.0.1:{port}" for port in free_ports(3))
    return {"ps": [ps], "worker": workers}


@pytest.fixture
def start(spec: dict[str, list[str]], tmp_path: Path) -> Iterator[Start]:
    """Starts a task as a person does."""
    servers: list[subprocess.Popen] = []

    def started(job: str, index: int) -> subprocess.Popen:
        task = ["--job", job, "--index", str(index)]
        command = [sys.executable, "-m", "replicax", "server", "--no-dashboard", "--cluster", json.dumps(spec), *task]
        with (tmp_path / f"{job}-{index}.log").open("wb") as log:
            servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return servers[-1]

    yield started
    for server in servers:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
    for server in servers:
        server.wait(LIMIT_S)
        wait_for(lambda pid=server.pid: not [*Path("/tmp").glob(f"rx-{pid}-*")], 30)


@pytest.mark.slow
@pytest.mark.nightly
def test_servers_serve_one_coordinator_after_another(spec: dict[str, list[str]], start: Start):
    import ray

    class Actor:
        def where(self) -> tuple[str, int]:
            import ray

            return ray.get_runtime_context().get_node_id(), os.getpid()

    ps, worker = start("ps", 0), start("worker", 0)
    wait_for(lambda: answers(spec["ps"][0]))
    with pytest.raises(
        ClusterTimeoutError, match=rf"worker:1 at {spec['worker'][1]} .*of 3 tasks here after \d+ s"
    ) as got:
        connect(SimpleClusterResolver(spec), patience=PATIENCE._replace(start=5))
    assert got.value.missing[-1] == f"worker:1 at {spec['worker'][1]}"
    assert not ray.is_initialized()

    late = start("worker", 1)
    for _ in range(2):
        with connect(SimpleClusterResolver(spec, task_type="chief", task_id=0)) as cluster:
            assert (cluster.workers, cluster.servers, cluster.is_local) == (2, 1, False)
            tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
            actors = [ray.remote(Actor).options(**cluster.actor_options(*task)).remote() for task in tasks]
            where = ray.get([actor.where.remote() for actor in actors], timeout=LIMIT_S)
            assert len({node for node, _ in where}) == 3
            os.kill(where[2][1], signal.SIGSTOP)
            cluster.end_process(*where[2])
            with pytest.raises(ray.exceptions.RayActorError):
                ray.get(actors[2].where.remote(), timeout=LIMIT_S)

    late.send_signal(signal.SIGTERM)
    assert late.wait(LIMIT_S) == 0
    ps.send_signal(signal.SIGINT)
    assert ps.wait(LIMIT_S) == 0
    assert worker.wait(LIMIT_S) == 0  # By itself: its head has gone.
