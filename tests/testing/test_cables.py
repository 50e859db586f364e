"""Cables between network namespaces: what is cut reaches nobody, what is mended does, and nothing is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from replicax.errors import ArgumentError, LaunchError
from replicax.testing import ElasticJob, why_no_cables
from replicax.testing.cables import Cables, address_of

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print(flush=True)
while True:
    server.accept()
"""
CLIENT = "import socket, sys; print(socket.create_connection((sys.argv[1], 5000), 3.0).getsockname()[0])"


@pytest.fixture
def cables():
    problem = why_no_cables()
    if problem:
        pytest.skip(problem)
    try:
        made = Cables(2).__enter__()
    except LaunchError as error:
        pytest.skip(f"cannot make namespaces: {error}")
    yield made
    made.__exit__()


def inside(namespace: str, code: str, argument: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, sys.executable, "-S", "-c", code, argument]


def test_a_worker_reaches_the_launcher_while_its_cable_is_whole(cables: Cables):
    def found(worker: int) -> str:
        command = inside(f"{cables.prefix}-{worker}", CLIENT, cables.hub_address)
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()

    server = subprocess.Popen(inside(cables.hub, SERVER, cables.hub_address), stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        assert [found(0), found(1)] == [address_of(0), address_of(1)]
        cables.cut(1)
        assert [found(0), found(1)] == [address_of(0), ""]
        cables.mend(1)
        assert found(1) == address_of(1)
    finally:
        server.kill()
        server.communicate()


def test_the_namespaces_are_gone_afterwards(cables: Cables):
    def names() -> str:
        return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout

    with Cables(1) as more:
        assert f"{more.prefix}-0" in names()
        assert more.hub in names()
    assert more.prefix not in names()
    assert cables.prefix in names()


def test_without_cables_there_is_nothing_to_cut(tmp_path):
    job = ElasticJob(tmp_path / "train.py")
    with pytest.raises(ArgumentError, match="cables=True"):
        job.mend(0)


def test_a_job_needs_its_script_and_its_block(tmp_path):
    job = ElasticJob(tmp_path / "train.py")
    with pytest.raises(LaunchError, match=r"write `with rx\.testing\.ElasticJob"):
        job.wait()
    with pytest.raises(LaunchError, match="There is no file"):
        job.__enter__()
