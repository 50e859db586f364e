"""A conversion is proved against what TensorFlow computed in tests/migrate/planted/train.py, and so are wrong ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.errors import ArgumentError
from replicax.tensorflow.proof.proving import prove, tensorflow_python, verdict
from replicax.tensorflow.proof.recording import Recording
from replicax.tensorflow.proof.running import Run, RunFailedError, on_replicax

PLANTED = Path(__file__).parents[2] / "migrate" / "planted"
CONVERTED = (PLANTED / "converted.py").read_text()
TENSORFLOW = os.environ.get("REPLICAX_TENSORFLOW_PYTHON", "")

BUGS = {
    "the mean over outputs instead of the sum": ("ops.sum(", "ops.mean(", "the loss"),
    "no weight decay": (", weight_decay=0.01", "", "kernel"),
    "another epsilon": ("epsilon=1e-7", "epsilon=1e-6", "kernel"),
    "another activation": ('"relu"', '"gelu"', "the loss"),
}
ON_EIGHT = {
    "the mean over one replica's rows": ("global_batch_size=16", "global_batch_size=2", "the loss"),
    "the mean of gradients instead of their sum": ("variables)()", 'variables, aggregation="mean")()', "kernel"),
}


def ran(text, folder, replicas, steps=20):
    script = folder / "converted.py"
    script.write_text(text)
    return on_replicax(Run(script, devices=replicas, steps=steps, stop=True, every=True))


def expected(replicas):
    return Recording.read(PLANTED / f"train.{replicas}.json")


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, pytest.param(8, marks=pytest.mark.nightly)])
def test_a_right_conversion_does_not_differ(tmp_path, replicas):
    found = ran(CONVERTED, tmp_path, replicas)
    assert not found.error
    judged = verdict(expected(replicas), found, replicas)
    assert judged.difference is None
    assert judged.steps == 20
    assert judged.largest_loss < 1e-6
    assert "no tensor differs in 20 steps" in str(judged)


@pytest.mark.nightly
@pytest.mark.parametrize("bug", [*BUGS, *ON_EIGHT])
def test_a_wrong_conversion_is_found(tmp_path, bug):
    right, wrong, name = (BUGS | ON_EIGHT)[bug]
    assert right in CONVERTED
    replicas = 1 if bug in BUGS else 8
    judged = verdict(expected(replicas), ran(CONVERTED.replace(right, wrong), tmp_path, replicas, steps=3), replicas)
    assert name in judged.difference.name
    assert judged.difference.step == 1


@pytest.mark.nightly
def test_a_script_that_fails_or_hangs_is_reported(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text("raise ValueError('no data')\n")
    assert "ValueError: no data" in on_replicax(Run(script)).error
    script.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(RunFailedError, match=r"wrong\.py was not done after 8 s"):
        on_replicax(Run(script, limit_s=8))
    with pytest.raises(ArgumentError, match="is no file"):
        on_replicax(Run(tmp_path / "absent.py"))


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="at least 1 step, not 0"):
        prove(tmp_path / "a.py", tmp_path / "b.py", Path(sys.executable), steps=0)
    with pytest.raises(ArgumentError, match="there is no such file"):
        tensorflow_python(tmp_path / "python")
    result = CliRunner().invoke(app, ["migrate", "--prove", str(PLANTED / "train.py")])
    assert result.exit_code == 2
    assert "two scripts" in result.output


def test_what_runs_on_tensorflow_imports_nothing_of_replicax():
    """TensorFlow's interpreter need not have replicax, JAX, or anything but NumPy beside TensorFlow."""
    folder = Path(__file__).parents[3] / "replicax" / "tensorflow"
    code = (
        "import sys, json, proof.draws, proof.keras_controls, proof.recording, proof.on_tensorflow;"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert not {"replicax", "jax", "keras", "tensorflow"} & set(json.loads(found.stdout))


@pytest.mark.nightly
@pytest.mark.skipif(not TENSORFLOW, reason="REPLICAX_TENSORFLOW_PYTHON names no interpreter with TensorFlow")
def test_the_command_proves_and_disproves(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(CONVERTED.replace(", weight_decay=0.01", ""))

    def proved(converted):
        options = ["--tensorflow-python", TENSORFLOW, "--steps", "5"]
        command = [sys.executable, "-m", "replicax", "migrate", "--prove", str(PLANTED / "train.py"), str(converted)]
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    right = proved(PLANTED / "converted.py")
    assert right.returncode == 0, right.stdout + right.stderr
    assert right.stdout.count("no tensor differs in 5 steps") == 2
    bad = proved(wrong)
    assert bad.returncode == 1
    assert "differs after step 1" in bad.stdout
