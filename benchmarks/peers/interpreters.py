"""Interpreters that have torch and TensorFlow: given, found, or installed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

CPU_INDEX = ["--index-url", "https://download.pytorch.org/whl/cpu", "--retries", "0"]
PACKAGES = {
    "torch": [["torch", "numpy", *CPU_INDEX], ["torch", "numpy"]],
    "tensorflow": [["tensorflow-cpu", "tf_keras"]],
}
"""Arguments of `pip install`, in the order of preference. The first index has torch without CUDA."""
FOUND = {"torch": "/work/tf/torch/bin/python", "tensorflow": "/work/tf/tfenv/bin/python"}


def install(folder: Path, name: str) -> str:
    """Returns the Python of a virtual environment below `folder` with torch or TensorFlow; makes it where needed."""
    place = folder / name
    python = place / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode:
        venv.EnvBuilder(with_pip=True, clear=True).create(place)
        for packages in PACKAGES[name]:
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", *packages])
            if done.returncode == 0:
                break
        done.check_returncode()
    return str(python)


def default(name: str) -> str:
    """Returns an interpreter that has the package: a known place, or this one; empty where there is none."""
    for python in (FOUND[name], sys.executable):
        if (
            Path(python).exists()
            and not subprocess.run(
                [python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"]
            ).returncode
        ):
            return python
    return ""
