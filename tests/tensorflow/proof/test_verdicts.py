"""What a proof says where runs fail: of TensorFlow on several replicas, on one, and of the conversion."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.tensorflow.proof import proving
from replicax.tensorflow.proof.recording import Recording
from replicax.tensorflow.proof.running import RunFailedError

DIED = """ceholder tensor 'a' with dtype int32
  (7) INVALID_ARGUMENT:  You must feed a value for placeholder tensor 'a'
\t [[{{node cond/Placeholder_7}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_fn_8965]
"""


def recorded(*losses, error=""):
    return Recording(losses, (), (), error)


@pytest.fixture
def runs(monkeypatch):
    """What the runs leave: by library and number of replicas, with what was run."""
    left, made = {}, []

    def running(library):
        def start(run, *_):
            made.append((library, run.devices))
            return left[library, run.devices]

        return start

    monkeypatch.setattr(proving, "on_tensorflow", running("TensorFlow"))
    monkeypatch.setattr(proving, "on_replicax", running("replicax"))
    left.update({(library, count): recorded(1.0, 0.5) for library in ("TensorFlow", "replicax") for count in (1, 8)})
    return left, made


def proved(tmp_path, *options):
    arguments = ["migrate", "--prove", str(tmp_path / "a.py"), str(tmp_path / "b.py"), "--tensorflow-python", "/bin/sh"]
    return CliRunner().invoke(app, [*arguments, *options])


def test_tensorflow_that_fails_on_eight_is_compared_on_one(runs, tmp_path):
    left, made = runs
    left["TensorFlow", 8] = recorded(1.0, error=DIED)
    result = proved(tmp_path)
    assert result.exit_code == 0
    assert made == [("TensorFlow", 1), ("replicax", 1), ("TensorFlow", 8), ("replicax", 8)]
    assert result.stdout.splitlines()[1] == (
        "8 replicas: no tensor differs from TensorFlow on 1 replica in 2 steps (losses within 0.0e+00). TensorFlow "
        "failed to run a.py on 8 replicas, after 1 steps: (7) INVALID_ARGUMENT:  You must feed a value for placeholder "
        "tensor 'a'"
    )
    assert "a.py on TensorFlow, 8 replicas: running, for at most 300 s\n" in result.stderr


def test_other_numbers_than_those_on_one_replica_prove_nothing(runs, tmp_path):
    left, made = runs
    left["TensorFlow", 8] = recorded(error=DIED)
    left["replicax", 8] = recorded(2.0, 1.0)
    result = proved(tmp_path, "--replicas", "8")
    assert result.exit_code == 3
    assert made == [("TensorFlow", 8), ("TensorFlow", 1), ("replicax", 8)]
    assert result.stdout.startswith("8 replicas: not proved. TensorFlow failed to run a.py on 8 replicas")


def test_a_difference_is_1_and_a_run_that_fails_is_3(runs, tmp_path):
    left, made = runs
    left["replicax", 1] = recorded(1.0, 0.6)
    assert proved(tmp_path, "--replicas", "1").exit_code == 1
    assert made == [("TensorFlow", 1), ("replicax", 1)]
    left["replicax", 1] = recorded(error="Traceback:\n  a line\nValueError: no data\n")
    result = proved(tmp_path, "--replicas", "1")
    assert result.exit_code == 3
    assert result.stderr.endswith("replicax failed to run b.py on 1 replica, after 0 steps: ValueError: no data\n")
    left["TensorFlow", 1] = recorded()
    with pytest.raises(RunFailedError, match=r"a\.py made 0 steps on 1 replica, or its loss is not finite"):
        proving.prove(tmp_path / "a.py", tmp_path / "b.py", Path("/bin/sh"))


@pytest.mark.parametrize("given", ["0", "1,", "all", "-1", ""])
def test_replicas_are_numbers(tmp_path, given):
    result = proved(tmp_path, f"--replicas={given}")
    assert result.exit_code == 2
    assert "such as 1,8" in " ".join(result.output.replace("│", " ").split())
