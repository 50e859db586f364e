"""The wheel and the source distribution: built, checked, and the wheel installed where nothing else is."""

from __future__ import annotations

import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import replicax as rx

ROOT = Path(__file__).parents[1]
#: Without what makes a program find another replicax than the one that is installed.
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "XLA_FLAGS")}
SECONDS = 280
LATER = 1_900_000_000  # seconds since 1970, for files
#: What Python runs first: moves its clock.
AHEAD = "import time\nnow, local = time.time, time.localtime\nDAY = 86_400\ntime.time = lambda: now() + DAY\n"
AHEAD += "time.localtime = lambda seconds=None: local(time.time() if seconds is None else seconds)\n"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif("PIP_NO_INDEX" in os.environ, reason="the package index may not be asked: PIP_NO_INDEX is set"),
]


def run(*command: str | Path, cwd: Path = ROOT, umask: int = -1, **variables: str | Path) -> str:
    """Runs a command; returns what it prints, which stands in the error if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=OUTSIDE | {name: str(value) for name, value in variables.items()},
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def digest(file: Path) -> tuple[str, str]:
    """Returns the name and the SHA-256 of a file."""
    return file.name, hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, made of the source distribution, and that one."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder)
    return {"wheel": next(folder.glob("*.whl")), "source": next(folder.glob("*.tar.gz"))}


@pytest.mark.nightly
def test_both_have_the_version(built: dict[str, Path]):
    assert built["wheel"].name == f"replicax-{rx.__version__}-py3-none-any.whl"
    assert built["source"].name == f"replicax-{rx.__version__}.tar.gz"


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="it has no umask")
def test_another_day_and_another_folder_give_the_same_bits(built: dict[str, Path], tmp_path: Path):
    """With files of another age that others may not read, in another time zone, by a clock that is a day ahead."""
    shutil.unpack_archive(built["source"], tmp_path, filter="data")
    [copied] = tmp_path.iterdir()
    for file in copied.rglob("*"):
        os.utime(file, (LATER, LATER))
        file.chmod(file.stat().st_mode & 0o700)
    (tmp_path / "sitecustomize.py").write_text(AHEAD)
    build = [sys.executable, "-m", "build", "--outdir", tmp_path / "dist"]
    run(*build, cwd=copied, umask=0o077, TZ="Asia/Tokyo", PYTHONPATH=tmp_path)
    assert {digest(file) for file in (tmp_path / "dist").iterdir()} == {digest(file) for file in built.values()}


@pytest.mark.nightly
def test_twine_agrees(built: dict[str, Path]):
    pytest.importorskip("twine")
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built.values()).count("PASSED") == 2


@pytest.mark.nightly
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone: git does not know which files there are")
def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(built: dict[str, Path]):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "replicax", "pytest_replicax")
    ours = {name for name in listed.splitlines() if (ROOT / name).is_file()}
    assert ours <= names
    assert {name.split("/")[0] for name in names - ours} == {f"replicax-{rx.__version__}.dist-info"}


def test_the_metadata_leads_to_pages_that_can_be_reached(built: dict[str, Path]):
    with zipfile.ZipFile(built["wheel"]) as archive:
        metadata = email.message_from_bytes(archive.read(f"replicax-{rx.__version__}.dist-info/METADATA"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert {each.split(",")[0] for each in metadata.get_all("Project-URL", [])} == {
        *("Changelog", "Documentation", "Issues", "Repository")
    }
    assert metadata["Author"] == "The replicax authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_the_source_distribution_has_what_its_tests_need(built: dict[str, Path]):
    with tarfile.open(built["source"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "hatch_build.py",
        "tests/conftest.py",
        "docs/index.md",
        "LICENSE",
        "CITATION.cff",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/", "runs/"))]


@pytest.mark.nightly
def test_the_demo_runs_where_nothing_but_the_wheel_is_installed(built: dict[str, Path], tmp_path: Path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", "--no-compile", built["wheel"])
    assert run(programs / "replicax", "--version").split() == ["replicax", rx.__version__]
    code = "import sys, replicax; print(replicax.__file__, *sorted({'keras', 'ray', 'matplotlib'} & set(sys.modules)))"
    loaded, *others = run(programs / "python", "-c", code, cwd=tmp_path).split()
    assert Path(loaded).is_relative_to(tmp_path)
    assert others == []
    said = run(programs / "replicax", "demo", "--limit", "256", "--epochs", "1", cwd=tmp_path)
    assert "The losses agree" in said
