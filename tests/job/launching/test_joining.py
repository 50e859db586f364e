"""One more worker for a running job: invitations, and real launchers with small scripts."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from replicax.cluster import Address
from replicax.cluster.token_proof import demanded
from replicax.errors import LaunchError
from replicax.group.membership.launcher_news import ElasticRange, Incarnation
from replicax.job.launching.join_credentials import JoinCredentials, invitation_to, write_invitation
from replicax.job.launching.joining import _Visitor
from replicax.job.options import Options
from replicax.job.plan import MEMBER_VARIABLES, member_environment
from replicax.job.processes.terminal import Terminal
from tests.job.launching.conftest import LIMIT_S, wait_for


def test_a_folder_for_logs_says_how_to_join(tmp_path):
    write_invitation(tmp_path, "10.0.0.1:77", "secret")
    write_invitation(tmp_path, "10.0.0.1:78", "secret")
    assert invitation_to(str(tmp_path), {}) == JoinCredentials(Address("10.0.0.1", 78), "secret")
    assert (tmp_path / "join.json").stat().st_mode & 0o777 == 0o600


def test_an_address_needs_the_token():
    assert invitation_to("a:1", {"REPLICAX_TOKEN": "secret"}) == JoinCredentials(Address("a", 1), "secret")
    with pytest.raises(LaunchError, match="set REPLICAX_TOKEN to that of its launcher"):
        invitation_to("a:1", {})


def test_neither_a_folder_nor_an_address(tmp_path):
    with pytest.raises(LaunchError, match="must be HOST:PORT or the --log-dir of a running job"):
        invitation_to("nowhere", {})
    with pytest.raises(LaunchError, match="no elastic job has left an invitation there"):
        invitation_to(str(tmp_path), {})


def test_a_worker_that_joins_takes_the_named_variables_of_a_job_and_no_others():
    """Not even from one who knows the token."""
    environment = member_environment(ElasticRange(1, 4), "127.0.0.1:1", Incarnation(2, 0), 1)
    assert environment.keys() == MEMBER_VARIABLES

    def answer(more):
        with listener.accept()[0] as connection:
            session = demanded(connection, "secret")
            session.hear()
            session.tell({"index": 2, "environment": {**environment, **more}})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        join_credentials = JoinCredentials(Address("127.0.0.1", listener.getsockname()[1]), "secret")
        for more in {"PYTHONPATH": "/tmp"}, {"REPLICAX_COORDINATOR": 3}:
            host = threading.Thread(target=answer, args=(more,))
            host.start()
            visitor = _Visitor(Options("script.py"), join_credentials, {}, Path(), Terminal(sys.stdout, sys.stderr))
            with contextlib.closing(visitor.guard), pytest.raises(LaunchError, match="sends the variables"):
                visitor._take_seat(LIMIT_S)
            host.join(LIMIT_S)


# What a member of a world tells, without JAX.
MEMBER = """
index = int(os.environ.get("REPLICAX_PROCESS_ID", index))
life = int(os.environ["REPLICAX_LIFE"])
def tell(**message):
    os.write(int(os.environ["REPLICAX_NEWS"].partition(":")[2]), json.dumps(message).encode() + b"\\n")
folder = os.path.dirname(os.path.abspath(__file__))
def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.02)
def touch(name):
    open(os.path.join(folder, name), "w").close()
def ends():
    tell(leaves=True)
    print("ends", index, life, flush=True)
"""


@pytest.fixture
def joiner(tmp_path):
    """Starts `replicax run --join` with the script of the job."""
    started = []

    def start(*options, where=None):
        command = [sys.executable, "-m", "replicax", "run", "--join", str(where or tmp_path / "logs"), *options]
        command += ["--log-dir", str(tmp_path / f"own-logs-{len(started)}"), str(tmp_path / "script.py")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def members(folder):
    path = folder / "logs" / "members.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def running(folder):
    """The workers that run now, by index."""
    found = {}
    for line in members(folder):
        if line["event"] == "start":
            found[line["worker"]] = line["pid"]
        elif line["event"] == "end":
            found.pop(line["worker"], None)
    return found


@pytest.fixture
def job(run, tmp_path):
    """Runs an elastic job in a thread: `job(body)`; its result is in `done`."""

    class Job:
        done = None

        def __call__(self, body, **options):
            def launched():
                wanted = {"workers": 1, "elastic": ElasticRange(1, 4), **options}
                self.done = run(MEMBER + body, **wanted)

            self.thread = threading.Thread(target=launched)
            self.thread.start()
            wait_for(lambda: (tmp_path / "logs" / "join.json").exists())

        def end(self):
            self.thread.join(LIMIT_S)
            assert self.done is not None
            return self.done

    made = Job()
    yield made
    (tmp_path / "over").touch()
    made.thread.join(LIMIT_S)


@pytest.mark.multiprocess
def test_a_worker_joins_and_ends_with_the_job(job, joiner, tmp_path):
    job('wait_for("over"); ends()')
    one, another = joiner(), joiner()
    wait_for(lambda: len(running(tmp_path)) == 3)
    (tmp_path / "over").touch()
    assert job.end().code == 0
    outputs = [process.communicate(timeout=LIMIT_S) for process in (one, another)]
    assert [process.returncode for process in (one, another)] == [0, 0]
    assert sorted(output[0].strip() for output in outputs) == ["[worker 1] ends 1 0", "[worker 2] ends 2 0"]


@pytest.mark.multiprocess
def test_a_worker_that_is_killed_joins_again_with_its_index(job, joiner, tmp_path):
    job('wait_for("over"); ends()')
    joiner()
    wait_for(lambda: 1 in running(tmp_path))
    os.kill(running(tmp_path)[1], signal.SIGKILL)
    wait_for(lambda: any(line.get("life") == 1 for line in members(tmp_path)))
    ends = [line for line in members(tmp_path) if line["event"] == "end"]
    assert [(line["worker"], line["reason"]) for line in ends] == [(1, "killed by signal 9")]


@pytest.mark.multiprocess
def test_a_launcher_that_joined_and_is_told_to_end_ends_its_worker_alone(job, joiner, tmp_path):
    job('wait_for("over"); ends()')
    process = joiner()
    wait_for(lambda: 1 in running(tmp_path))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: list(running(tmp_path)) == [0])


@pytest.mark.multiprocess
def test_the_job_ends_newcomers_when_its_members_are_done(job, joiner, tmp_path):
    job('if index == 0: tell(world=1, lives=[[0, 0]])\nwait_for("over" if index == 0 else "never"); ends()')
    process = joiner()
    wait_for(lambda: 1 in running(tmp_path))
    (tmp_path / "over").touch()
    assert job.end().code == 0
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "The job needs this worker no more: the training is done." in said


@pytest.mark.multiprocess
def test_a_full_job_lets_nobody_in(job, joiner, tmp_path):
    job('wait_for("over"); ends()', elastic=ElasticRange(1, 1))
    process = joiner()
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "does not let this worker in: it has as many workers as it may have (--elastic 1:1)" in said


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_a_job_to_which_all_workers_come(job, joiner, tmp_path):
    job('wait_for("over"); ends()', workers=0, address="127.0.0.1", environment={"REPLICAX_TOKEN": "ours"})
    joiner(), joiner()
    wait_for(lambda: len(running(tmp_path)) == 2)
    (tmp_path / "over").touch()
    assert job.end().code == 0
    assert json.loads((tmp_path / "logs" / "join.json").read_text())["token"] == "ours"


@pytest.mark.multiprocess
def test_nobody_listens(joiner, tmp_path):
    write_invitation(tmp_path, "127.0.0.1:1", "secret")
    (tmp_path / "script.py").touch()
    process = joiner("--start-timeout", "0.1", where=tmp_path)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "No elastic job lets workers in at 127.0.0.1:1" in said
