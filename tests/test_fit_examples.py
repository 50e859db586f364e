"""The examples of `Model.fit` run as a reader would run them, and learn."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, *arguments: object) -> str:
    """Runs an example in a new process; returns what it printed."""
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, output)]


def write_mnist(folder: Path, train_rows: int, test_rows: int) -> None:
    """Writes files of zeros: headers of 16 and 8 bytes, then 28 x 28 pixels and one label a row."""
    for part, rows in (("train", train_rows), ("t10k", test_rows)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16 + 784 * rows)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8 + rows)))


@pytest.mark.nightly
def test_mlp_learns_the_digits():
    output = run("fit_mnist.py", "--epochs", 2, "--batch-size", 100)
    assert "digits: 1437 rows on 8 replicas" in output
    losses = numbers(r"loss: ([\d.]+)", output)
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert re.fullmatch(r"test accuracy 0\.\d{4}", output.splitlines()[-1])
    assert numbers(r"test accuracy ([\d.]+)", output)[0] > 0.85


@pytest.mark.nightly
def test_conv_net_on_mnist_files(tmp_path: Path):
    write_mnist(tmp_path, train_rows=60, test_rows=20)
    data = ["--data", "mnist", "--data-dir", tmp_path]
    output = run("fit_mnist.py", "--model", "conv", *data, "--epochs", 3, "--batch-size", 10, "--limit", 50)
    assert "mnist: 50 rows on 8 replicas" in output
    assert "5/5" in output
    assert output.splitlines()[-1] == "test accuracy 1.0000"


@pytest.mark.nightly
def test_seed_prints_the_losses_of_the_guide():
    output = run("fit_seed.py")
    assert numbers(r"loss: ([\d.]+)", output) == [2.2552, 0.9968, 0.4406, 0.1947]
    assert numbers(r"after the dataset: ([\d.]+)", output)[0] == pytest.approx(0.6190494298934937, abs=1e-6)
    assert numbers(r"after the arrays: ([\d.]+)", output)[0] < 0.1947


@pytest.mark.nightly
def test_gemma_learns_verse_by_its_adapters():
    pytest.importorskip("keras_hub")
    output = run("finetune_gemma_lora.py", "--epochs", 40)
    assert re.search(r"attention/query/kernel .*\d+ bytes", output)
    assert "LoRA trains 17,408 of 263,808 parameters" in output
    before, after = re.findall(r"(?:before|after): +(.*)", output)
    assert before != after
    assert numbers(r"verse at a loss of ([\d.]+)", output)[0] < 1.2
