"""The DTensor example runs as a reader would run it: it learns, and agrees with the same training on one device."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MNIST = ROOT.parent / "shared" / "data" / "mnist"

FLOAT32 = 1e-5  # what rounding may make of the losses of a short training

RUN = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("imported:", *sorted({"keras", "tensorflow", "torch"} & set(sys.modules)))
"""


def run(plots: Path, *arguments: object) -> str:
    """Runs the example; returns what it printed and, in the last line, which of some packages it imported."""
    example = ROOT / "examples" / "dtensor_mlp.py"
    command = [sys.executable, "-c", RUN, example, "--plots", plots, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def result(name: str, output: str) -> float:
    (number,) = re.findall(rf"(?m)^RESULT {name} (\S+)$", output)
    return float(number)


def losses(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"training ([\d.]+)", output)]


def falls(numbers: list[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(numbers))


@pytest.mark.nightly
def test_it_learns_as_on_one_device(tmp_path: Path):
    output = run(tmp_path, "--epochs", 3, "--seeds", "22,23", "--save", tmp_path / "saved")
    assert "1437 rows to train on, 360 to test; 64-700-500-10 on Mesh(batch=8, cpu)" in output
    assert len(losses(output)) == 3
    assert falls(losses(output))
    assert result("dtensor_test_accuracy", output) > 0.9
    assert result("dtensor_max_loss_difference", output) <= FLOAT32
    for name in ("loss.png", "accuracy.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    (steps, before, after) = re.findall(
        r"after (\d+) steps a testing loss of ([\d.]+)\n  restored on Mesh\(batch=1, cpu\): ([\d.]+)", output
    )[0]
    assert steps == "36"
    assert float(after) == pytest.approx(float(before), abs=FLOAT32)
    *_, accuracy, difference, imported = output.splitlines()
    assert accuracy.startswith("RESULT dtensor_test_accuracy")
    assert difference.startswith("RESULT dtensor_max_loss_difference")
    assert imported.strip() == "imported:"


@pytest.mark.nightly
def test_each_seed_is_printed(tmp_path: Path):
    output = run(tmp_path, "--epochs", 1, "--sizes", "seed", "--seeds", "22,23", "0,1")
    assert "64-700-10-10" in output
    assert re.findall(r"initialiser's seed (\(\d+, \d+\))", output) == ["(22, 23)", "(0, 1)"]
    best = max(float(number) for number in re.findall(r"testing [\d.]+, accuracy ([\d.]+)", output))
    assert result("dtensor_test_accuracy", output) == best


@pytest.mark.nightly
def test_weights_cut_by_a_second_dimension(tmp_path: Path):
    """On a two-dimensional mesh, with batches of 100 rows and a last one of 37, which 4 does not divide."""
    options = ("--mesh", "batch=4,model=2", "--batch-size", 100, "--epochs", 1, "--seeds", "22,23")
    output = run(tmp_path, *options)
    assert "Mesh(batch=4, model=2, cpu)" in output
    assert "the losses of 15 steps" in output
    assert result("dtensor_max_loss_difference", output) <= FLOAT32


@pytest.mark.slow
@pytest.mark.nightly  # The digits show the same in a tenth of the time.
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"there is no MNIST in {MNIST}")
@pytest.mark.parametrize(("sizes", "accuracy"), [("text", 0.920), ("seed", 0.869)])
@pytest.mark.nightly
def test_mnist(tmp_path: Path, sizes: str, accuracy: float):
    """The tutorial's data: its text's network reaches 0.92 with a correct Adam; its code's reached 0.869 without."""
    output = run(tmp_path, "--data", "mnist", "--data-dir", MNIST, "--sizes", sizes, "--seeds", "22,23", "0,1")
    assert "mnist: 5000 rows to train on, 5000 to test" in output
    assert "the losses of 120 steps" in output
    assert result("dtensor_test_accuracy", output) == pytest.approx(accuracy, abs=0.03)
    assert result("dtensor_max_loss_difference", output) <= FLOAT32
