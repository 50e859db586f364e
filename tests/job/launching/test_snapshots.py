"""The memory that the launcher keeps for snapshots, through all attempts of a job and no longer."""

from __future__ import annotations

import contextlib
import fcntl
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from replicax.checks.environment_names import SNAPSHOTS
from replicax.job.launching.snapshot_memory import memory_for_snapshots
from replicax.job.options import Options
from replicax.job.processes.reaper import Guard
from tests.job.launching.conftest import Done, Launcher, wait_for

pytestmark = pytest.mark.multiprocess

SHOW = f"""
folder = os.environ.get("{SNAPSHOTS}", "")
print("folder", folder)
"""


def folders(memory: Path) -> list[Path]:
    return [*memory.glob("replicax-snapshots-*")]


def test_it_stays_from_one_attempt_to_the_next_and_goes_with_the_job(run: Callable[..., Done], tmp_path: Path):
    done = run(
        f"""{SHOW}
note = os.path.join(folder, "note")
if os.environ["REPLICAX_ATTEMPT"] == "0":
    open(note, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
print("found", os.path.exists(note))
""",
        workers=1,
        restarts=1,
        environment={SNAPSHOTS: str(tmp_path)},
    )
    assert done.code == 0
    assert "found True" in done.out
    assert f"folder {tmp_path}/replicax-snapshots-" in done.out
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "where"), [({"restarts": 0}, "."), ({"restarts": 1}, "0"), ({"restarts": 1}, "/does/not/exist")]
)
def test_there_is_none_if_nothing_is_started_again_or_nobody_wants_it(
    run: Callable[..., Done], tmp_path: Path, options: dict, where: str
):
    where = str(tmp_path) if where == "." else where
    done = run(f"{SHOW}\nprint('ends', repr(folder))", workers=1, environment={SNAPSHOTS: where}, **options)
    assert "ends ''" in done.out


def test_it_goes_with_a_launcher_that_is_killed(
    launcher: Callable[..., Launcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv(SNAPSHOTS, str(memory))
    job = launcher("ready()\nsleep()", "--restarts", "1")
    job.pids(1)
    assert len(folders(memory)) == 1
    job.end(signal.SIGKILL)
    wait_for(lambda: not folders(memory))


def test_two_jobs_leave_each_other_their_memory(tmp_path: Path):
    job = Options("script.py", restarts=1), {SNAPSHOTS: str(tmp_path)}
    with contextlib.closing(Guard()) as guard, memory_for_snapshots(*job, guard) as first:
        with memory_for_snapshots(*job, guard) as second:
            assert sorted(folders(tmp_path)) == sorted([Path(first), Path(second)])
        assert folders(tmp_path) == [Path(first)]


def test_what_killed_launchers_have_left_is_deleted_and_nothing_that_is_in_use(tmp_path: Path):
    left, used = tmp_path / "replicax-snapshots-left", tmp_path / "replicax-snapshots-used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "in-use").touch()
    with contextlib.closing(Guard()) as guard, open(used / "in-use") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with memory_for_snapshots(Options("script.py", restarts=1), {SNAPSHOTS: str(tmp_path)}, guard) as folder:
            assert Path(folder).stat().st_mode & 0o777 == 0o700
            assert sorted(folders(tmp_path)) == sorted([used, Path(folder)])
        assert folders(tmp_path) == [used]
