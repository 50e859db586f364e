"""Interpreters that have torch and TensorFlow: given, found, or installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = {
    "torch": ["torch", "numpy", "--index-url", "https://download.pytorch.org/whl/cpu"],
    "tensorflow": ["tensorflow-cpu", "tf_keras"],
}
FOUND = {"torch": "/work/tf/torch/bin/python", "tensorflow": "/work/tf/tfenv/bin/python"}


def install(folder: Path, name: str) -> str:
    """Returns the Python of a virtual environment below `folder` with torch or TensorFlow; makes it where needed."""
    place = folder / name
    python = place / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode:
        venv.EnvBuilder(with_pip=True, clear=True).create(place)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_packages(name)], check=True)
    return str(python)


def _packages(name: str) -> list[str]:
    # An index of the user's own (a mirror) has the packages; else torch's index has builds without CUDA.
    packages = PACKAGES[name]
    return packages[:2] if "PIP_INDEX_URL" in os.environ else packages


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
