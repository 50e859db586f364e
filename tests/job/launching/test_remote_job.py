"""Jobs whose workers run elsewhere: at servers, which are processes of this machine here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import replicax as rx
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.launching import Options, parse_hosts, parse_variables
from replicax.job.launching.remote_job import Elsewhere, launch_elsewhere
from replicax.ray_cluster.ray_environment import variables
from replicax.testing import free_ports
from replicax.testing.elastic_job import Membership

LIMIT_S = 120.0
OF_CLUSTERS = ("RAY_", "REPLICAX_", "TF_CONFIG", "JAX_COORDINATOR", "JAX_NUM_PROCESSES")


def test_hosts_and_variables_as_they_are_written():
    assert parse_hosts("host1, host2:2223") == ("host1", "host2:2223")
    assert parse_variables(["A=1", "B", "C="], {"B": "2"}) == {"A": "1", "B": "2", "C": ""}


@pytest.mark.parametrize("text", ["", "host1,", "host1,host1"])
def test_hosts_that_are_none(text: str):
    with pytest.raises(LaunchError, match="--hosts must be different addresses"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["", "=1", "ABSENT"])
def test_variables_that_are_none(text: str):
    with pytest.raises(LaunchError, match="--env must be NAME=VALUE"):
        parse_variables([text], {})


@pytest.mark.parametrize(
    ("options", "elsewhere", "says"),
    [
        ({}, Elsewhere("auto", ("host1",)), "--on and --hosts exclude each other"),
        ({}, Elsewhere(), "--on and --hosts exclude each other"),
        ({"ps": 1}, Elsewhere("auto"), "--ps starts tasks on this machine"),
        ({"evaluator": True}, Elsewhere("auto"), "--evaluator starts tasks on this machine"),
        ({"workers": 3}, Elsewhere(hosts=("a", "b")), "--hosts names 2 servers, .* got 3:3"),
        ({"workers": 2, "min_workers": 1}, Elsewhere(hosts=("a", "b")), "--hosts names 2 servers, .* got 1:2"),
        ({}, Elsewhere("auto", start_timeout=0.0), "--start-timeout must be a number of seconds above 0, got 0.0"),
        ({"islands": True}, Elsewhere("auto"), "--islands is for workers on this machine"),
        ({"elastic": ElasticRange(1, 2), "address": "a"}, Elsewhere("auto"), "--address is for jobs on this machine"),
        ({"script": "absent.py"}, Elsewhere("auto"), "There is no file 'absent.py'"),
    ],
)
def test_jobs_that_cannot_run_elsewhere(options: dict[str, Any], elsewhere: Elsewhere, says: str):
    with pytest.raises(LaunchError, match=says):
        launch_elsewhere(Options(**{"script": __file__, **options}), elsewhere)


# With servers.

Run = Callable[..., subprocess.Popen]
pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    with variables({}):  # Ray sets some when it is imported.
        pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
    return {**clean, "REPLICAX_TOKEN": "0123456789abcdef" * 2, "HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def hosts(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two servers, as a person starts them."""
    folder = tmp_path_factory.mktemp("servers")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    servers = []
    for index in range(2):
        task = ["--cluster", json.dumps({"worker": addresses}), "--job", "worker", "--index", str(index)]
        with (folder / f"{index}.log").open("wb") as log:
            servers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "replicax", "server", "--no-dashboard", *task],
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
    yield ",".join(addresses)
    for server in servers:
        server.send_signal(signal.SIGTERM)
    for server in servers:
        assert server.wait(LIMIT_S) == 0


@pytest.fixture
def run(hosts: str, environment: dict[str, str], tmp_path: Path) -> Iterator[Run]:
    """Starts a job at the servers, in a folder with a script and a module beside it."""
    started = []
    (tmp_path / "beside.py").write_text("VALUE = 41\n")

    def start(body: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
        (tmp_path / "script.py").write_text(f"import json, os, sys, time\nimport beside\n{body}")
        command = [sys.executable, "-m", "replicax", "run", "--hosts", hosts, *options, "script.py", *arguments]
        own = {**environment, "OWN": "ours"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=own, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(LIMIT_S)


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_script_and_the_files_beside_it_run_at_the_servers_and_once_more_after_a_failure(run: Run, tmp_path: Path):
    body = (
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "attempt = int(os.environ['REPLICAX_ATTEMPT'])\n"
        "print(beside.VALUE, sys.argv[1:], os.environ['OWN'], os.path.dirname(beside.__file__))\n"
        "assert attempt or not index, 'planted'\n"
    )
    job = run(body, "it's", "--x", options=("--env", "OWN", "--restarts", "1", "--log-dir", "logs"))
    out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, err
    for index in range(2):
        assert f"[worker {index}] 41 [\"it's\", '--x'] ours" in out
    assert "(AssertionError: planted). restart 1 of 1." in out + err
    assert "Traceback" in (tmp_path / "logs" / "worker-1.log").read_text()
    folders = {line.split()[-1] for line in out.splitlines() if "ours" in line}
    assert len(folders) == 3 or len(folders) == 4  # Worker 0 may be ended before it prints.
    wait_for(lambda: not any(Path(folder).exists() for folder in folders))
    ledger = rx.ledger.read(tmp_path / "logs")  # Its lines have come from the servers.
    assert ([worker.name for worker in ledger.workers], ledger.attempts) == (["worker 0", "worker 1"], 2)
    for worker in ledger.workers:
        assert sum(worker.seconds.values()) == pytest.approx(ledger.wall, rel=1e-3)
        assert any(each.doing for each in worker.slices)


# A worker that tells what a member of an elastic job tells, without JAX, until the file is there.
MEMBER = """
index, life = int(os.environ["REPLICAX_PROCESS_ID"]), int(os.environ["REPLICAX_LIFE"])
def tell(**message):
    os.write(int(os.environ["REPLICAX_NEWS"].partition(":")[2]), json.dumps(message).encode() + b"\\n")
if index == life == 0:
    tell(world=1, lives=[[0, 0]])
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
tell(leaves=True)
"""


@pytest.mark.slow
def test_elastic_workers_begin_where_there_is_room_and_are_lost_with_their_machine_alone(
    run: Run, hosts: str, environment: dict[str, str], tmp_path: Path
):
    def running() -> dict[int, Run]:
        return Membership.read(tmp_path / "logs").running

    over = tmp_path / "over"
    job = run(MEMBER, str(over), options=("--elastic", "1:3", "--log-dir", "logs"))
    wait_for(lambda: len(running()) == 2)
    struck = running()[max(running())]
    os.kill(struck.pid, signal.SIGKILL)  # Its machine is well: it starts there again.
    wait_for(lambda: running().get(struck.worker, struck).life == 1)
    well = set(running())
    addresses = [*hosts.split(","), f"127.0.0.1:{free_ports(1)[0]}"]
    task = ["--cluster", json.dumps({"worker": addresses}), "--job", "worker", "--index", "2"]
    with (tmp_path / "third.log").open("wb") as log:
        third = subprocess.Popen(
            [sys.executable, "-m", "replicax", "server", "--no-dashboard", *task],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: len(running()) == 3)
        (late,) = set(running()) - well
        newcomer = running()[late]
    finally:
        third.kill()
        third.wait(LIMIT_S)
    wait_for(lambda: set(running()) == well)
    assert Membership.read(tmp_path / "logs").ended[newcomer] == ExitCode.PEER_LOST
    over.touch()
    out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, err
    assert f"worker {late} ended with the loss of its machine. It starts again" in out + err


@pytest.mark.slow
@pytest.mark.nightly
def test_a_job_has_the_servers_for_itself_until_it_ends_in_any_way(run: Run, tmp_path: Path):
    body = (
        f"open(r'{tmp_path}/' + str(os.getpid()) + '.pid', 'w').close()\nprint(__file__, flush=True)\ntime.sleep(600)\n"
    )
    first = run(body)
    wait_for(lambda: len([*tmp_path.glob("*.pid")]) == 2)
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    second = run("print('never')\n")
    out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    assert f"is in use by another client: process {first.pid} on" in err
    assert "never" not in out
    first.kill()
    wait_for(lambda: all(ended(pid) for pid in pids))
    third = run("print('now', beside.VALUE)\n")
    out, err = third.communicate(timeout=LIMIT_S)
    assert (third.returncode, out.count("now 41")) == (0, 2), err
    printed = [line.split()[-1] for line in first.stdout.read().splitlines() if "script.py" in line]
    wait_for(lambda: not any(Path(line).parent.exists() for line in printed))
