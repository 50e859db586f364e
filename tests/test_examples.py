"""Each example runs as a reader would run it, and learns."""

from __future__ import annotations

import gzip
import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

RUN = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("imported:", *sorted({"keras", "tensorflow", "torch"} & set(sys.modules)))
"""


def run(name: str, *arguments: object, launcher: Sequence[str] = ()) -> str:
    """Runs an example; returns what it printed and, in the last line, which of some packages it imported."""
    starts = ["-m", "replicax", "run", *launcher] if launcher else ["-c", RUN]
    command = [sys.executable, *starts, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, output)]


def falls(losses: list[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(losses))


@pytest.mark.nightly
def test_low_communication_alone():
    output = run("diloco_mnist.py", "--steps", 60, "--every", 10)
    assert numbers(r"RESULT accuracy ([\d.]+)", output)[0] > 0.85


@pytest.mark.nightly
def test_keras_loop():
    output = run("custom_loop_keras.py", "--epochs", 3)
    losses = numbers(r"loss ([\d.]+)", output)
    assert len(losses) == 3
    assert falls(losses)
    assert numbers(r"test accuracy ([\d.]+)", output)[-1] > 0.9
    assert "on 8 replicas" in output


@pytest.mark.nightly
def test_keras_loop_on_mnist_files(tmp_path: Path):
    """Files of zeros: headers of 16 and 8 bytes, then 28 x 28 pixels and one label a row."""
    for part, rows in (("train", 300), ("t10k", 20)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16 + 784 * rows)))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8 + rows)))
    output = run("custom_loop_keras.py", "--data", "mnist", "--data-dir", tmp_path, "--epochs", 1)
    assert "mnist: 300 rows on 8 replicas" in output
    assert "test accuracy 1.000" in output


@pytest.mark.nightly
def test_optax_loop_needs_no_keras():
    output = run("custom_loop_optax.py", "--epochs", 3)
    losses = numbers(r"loss ([\d.]+)", output)
    assert len(losses) == 3
    assert falls(losses)
    assert numbers(r"test accuracy ([\d.]+)", output)[-1] > 0.9
    assert output.splitlines()[-1].strip() == "imported:"


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_a_loop_that_is_killed_ends_with_the_numbers_of_one_that_is_not(tmp_path: Path):
    loss = r"step (\d+): loss ([\d.]+)"
    alone = dict(re.findall(loss, run("resumable_loop.py", tmp_path / "alone")))
    assert len(alone) == 4 * 12
    output = run("resumable_loop.py", tmp_path / "killed", "--kill", 20, launcher=("--workers", "2", "--restarts", "1"))
    (begun,) = numbers(r"continues after step (\d+)", output)
    found = re.findall(loss, output)
    steps = [int(step) for step, _ in found]
    last = steps.index(int(begun) + 1, int(begun) + 1)  # Another worker may be dead before the chief prints step 20.
    assert last in (19, 20)
    assert steps == [*range(1, last + 1), *range(int(begun) + 1, 49)]
    np.testing.assert_allclose(
        [float(value) for _, value in found], [float(alone[step]) for step, _ in found], rtol=1e-5, atol=1e-6
    )


@pytest.mark.nightly
def test_seed_loop_prints_the_losses_of_the_guide():
    losses = numbers(r"(?m)^(0\.\d+)$", run("custom_loop_seed.py"))
    assert len(losses) == 30
    assert falls(losses)
    printed_by_tensorflow = {
        0: 0.18686396,
        1: 0.18628375,
        2: 0.18570684,
        19: 0.17637561,
        20: 0.17585339,
        29: 0.17127804,
    }
    for step, loss in printed_by_tensorflow.items():
        assert losses[step] == pytest.approx(loss, abs=1e-7)


@pytest.mark.nightly
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
def test_images_of_files_on_two_workers_that_are_killed():
    """The losses are those of one device, up to rounding, through the kill."""
    output = run("imagenet_like.py")
    assert "35 steps before the kill, 15 after it" in output
    (first,), (last,) = numbers(r"loss ([\d.]+) at first", output), numbers(r"([\d.]+) in the last five", output)
    assert last < 0.6 * first
    assert numbers(r"RESULT imagenet_like_loss_difference ([\d.e-]+)", output)[0] <= 1e-5
