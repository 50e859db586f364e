"""`replicax demo` as a person runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from click.testing import Result
from typer.testing import CliRunner

import replicax as rx
from replicax.cli.app import app

MNIST = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"


def replicax(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def results(output: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^RESULT (\S+) (\S+)$", output, re.MULTILINE)}


@pytest.mark.slow
def test_the_demo_learns_the_digits_equally_on_eight_devices_and_on_one(tmp_path: Path):
    done = replicax("demo", "--results", "--output", tmp_path / "new" / "folder")
    assert done.exit_code == 0, done.output
    found = results(done.output)
    assert found.keys() == {"demo_test_accuracy", "demo_max_loss_difference"}
    assert found["demo_test_accuracy"] >= 0.93
    assert found["demo_max_loss_difference"] <= 1e-5
    assert [line[:9] for line in done.output.splitlines() if line.startswith("epoch ")] == [
        "epoch 1/3",
        "epoch 2/3",
        "epoch 3/3",
    ]
    picture = tmp_path / "new" / "folder" / "curves.png"
    assert picture.stat().st_size > 10_000
    assert f"Wrote {picture}\n" in done.output
    shown = [line for line in done.output.splitlines() if not line.startswith(("… ", "RESULT "))]
    assert len(shown) <= 20  # With those of `make`, and the prompt: a terminal has 24.
    assert max(len(line) for line in shown if str(picture) not in line) <= 80
    assert shown[-4] == "Next"


def test_without_matplotlib_the_demo_draws_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("matplotlib", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)  # Python then finds no such module.
    done = replicax("demo", "--epochs", 1, "--limit", 100, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "matplotlib is not installed: pip install matplotlib" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_float64_agrees_to_the_last_digits_and_stays_inside_the_demo(tmp_path: Path):
    options = ("--dtype", "float64", "--epochs", 1, "--limit", 100, "--results")
    done = replicax("demo", *options, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert results(done.output)["demo_max_loss_difference"] <= 1e-12
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.nightly
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST is not at {MNIST}")
def test_mnist(tmp_path: Path):
    options = ("--data", "mnist", "--data-dir", MNIST, "--limit", 100, "--epochs", 1)
    done = replicax("demo", *options, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    assert "784-700-500-10" in done.output
    assert "RESULT" not in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "0"], "greater than or equal to 1|not in the range"),
        (["--batch-size", "-1"], "greater than or equal to 1|not in the range"),
        (["--limit", "some"], "integer"),
        (["--data", "cifar"], "cifar"),
        (["--data", "mnist"], "needs the folder"),
        (["--data-dir", "."], "It goes with --data mnist"),
        (["--data", "mnist", "--data-dir", "nowhere"], "no folder nowhere"),
        (["--devices", "3"], "already started with 8"),
        (["--colour"], "[Nn]o such option"),
    ],
)
def test_a_bad_option_is_told_before_anything_is_done(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = replicax("demo", *options)
    assert_refused(done, message)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be(tmp_path: Path):
    (tmp_path / "file").touch()
    assert_refused(replicax("demo", "--output", tmp_path / "file" / "folder"), "cannot be made")
    assert_refused(replicax("demo", "--output", tmp_path / "file"), "cannot be made")


def test_another_keras_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert_refused(replicax("demo", "--output", tmp_path), "must be 'jax' or not set")


def assert_refused(done: Result, message: str) -> None:
    text = " ".join(done.output.replace("│", " ").split())  # typer draws a box around the message
    assert done.exit_code == 2, text
    assert re.search(message, text), text
    assert "Traceback" not in text


def test_version():
    done = replicax("--version")
    assert (done.exit_code, done.output) == (0, f"replicax {rx.__version__}\n")


def test_python_m_replicax_is_the_command():
    done = subprocess.run([sys.executable, "-m", "replicax", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"replicax {rx.__version__}\n"


def test_the_package_does_not_load_the_command_line():
    code = "import sys, replicax; print(sorted({'replicax.cli', 'typer', 'rich', 'jax', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    code = "import sys, replicax.cli; print(sorted({'typer', 'rich', 'keras', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_neither_a_help_page_nor_a_launcher_waits_for_jax():
    """Each would take a second more, and so would every job: the launcher's import comes before the workers' own."""
    code = """
import sys
import replicax.job.launching
from typer.testing import CliRunner
from replicax.cli.app import app
assert CliRunner().invoke(app, ["run", "--help"]).exit_code == 0
print(sorted({"jax", "numpy", "keras", "ray", "libcst", "replicax.program"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
