"""What is removed when the process that started a node has ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.ray_cluster import node_reaper
from tests.ray_cluster.conftest import wait_for

SHARED = Path("/dev/shm")


@pytest.mark.skipif(not SHARED.is_dir(), reason="Semaphores are files on Linux only.")
def test_semaphores_of_the_nodes_mutable_objects_go_with_it_and_no_others(tmp_path):
    folder = tmp_path / "node"
    folder.mkdir()
    program = shutil.copy(shutil.which("sleep"), tmp_path / "raylet")
    raylet = subprocess.Popen([program, "100"], env=os.environ | {node_reaper.VARIABLE: str(folder)})
    own = [SHARED / f"sem.{kind}{raylet.pid}-1" for kind in ("obj", "hdr")]
    other = SHARED / f"sem.obj{raylet.pid}0-1"
    try:
        for path in (*own, other):
            path.touch()
        wait_for(lambda: node_reaper.raylets(node_reaper.marked(str(folder))) == {raylet.pid})
        command = [sys.executable, "-I", "-S", node_reaper.__file__, str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        process.communicate(timeout=60)
        assert raylet.wait(10) == -9
        assert not any(path.exists() for path in (*own, folder))
        assert other.exists()
    finally:
        raylet.kill()
        for path in (*own, other):
            path.unlink(missing_ok=True)
