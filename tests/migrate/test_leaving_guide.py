"""The guide "Leaving tf.distribute in an afternoon": its commands, and the script before and after."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.tensorflow.codemod.conversion import convert

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "leaving-tf-distribute.md").read_text()
BEFORE, AFTER = re.findall(r"^```python[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
TENSORFLOW = os.environ.get("REPLICAX_TENSORFLOW_PYTHON", "")


def replicax(command, folder):
    words = [TENSORFLOW if word.startswith("~/tf") else word for word in shlex.split(command)]
    assert words[0] == "replicax"
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(BEFORE)
    shutil.copytree(ROOT / "tests" / "migrate" / "fixtures" / "manager" / "training", tmp_path / "training")
    return tmp_path


def test_the_script_after_is_what_the_command_makes_of_the_script_before(folder, monkeypatch):
    monkeypatch.chdir(folder)  # imports are sorted as in the folder in which one works
    conversion = convert(BEFORE)
    assert conversion.after == AFTER
    assert not conversion.edits


@pytest.mark.slow
@pytest.mark.nightly
def test_the_commands_that_need_no_tensorflow_run(folder):
    shown, copied, written, proved, inspected, ran = COMMANDS
    found = replicax(shown, folder)
    assert found.returncode == 0
    assert "+strategy = rx.MirroredStrategy()" in found.stdout
    assert copied == "cp train.py train_tf.py"
    assert replicax(written, folder).returncode == 0
    assert (folder / "train.py").read_text() == AFTER
    assert replicax(written, folder).stdout.startswith("train.py: nothing to convert")
    assert "--prove train_tf.py train.py" in proved
    found = replicax(inspected, folder)
    assert found.returncode == 0, found.stderr
    assert "kernel" in found.stdout
    assert ran.startswith("replicax run --workers 2")


@pytest.mark.nightly
def test_the_converted_script_runs_on_two_workers(folder):
    (folder / "train.py").write_text(AFTER.replace("rx.MirroredStrategy", "rx.MultiWorkerMirroredStrategy"))
    found = replicax(COMMANDS[-1], folder)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif(not TENSORFLOW, reason="REPLICAX_TENSORFLOW_PYTHON names no interpreter with TensorFlow")
@pytest.mark.nightly
def test_the_proof_runs(folder):
    (folder / "train_tf.py").write_text(BEFORE)
    (folder / "train.py").write_text(AFTER)
    found = replicax(COMMANDS[3], folder)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("no tensor differs in 20 steps") == 2
