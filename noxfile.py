"""The versions that replicax is tested with: `make test-versions`, or `nox -s "tests(oldest)" -- tests/keras -k name`.

Each session has an environment of its own under `.nox`, which the next run uses again. A Python that is not installed
is reported as skipped; those of pyenv are found although they are not on the path.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
# What depends on the versions of JAX and Keras.
SUITES = ("compat", "contract", "keras", "dtensor", "exporting", "layouts", "weights", "tables")
NEEDED = ("attrs", "equinox", "hypothesis", "safetensors", "pytest", "pytest-timeout", "pytest-xdist")
JAX_NIGHTLY = "https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/"

nox.needs_version = ">=2024.4"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, Path.home().glob(".pyenv/versions/3.*/bin"))])


def oldest(library: str) -> str:
    """Returns the requirement of the oldest version of a library that pyproject.toml allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [found[1] for each in dependencies if (found := re.fullmatch(rf"{library}>=([\d.]+)", each))]
    return f"{library}=={bound}.*"


@nox.session
@nox.parametrize(
    ("python", "pins"),
    [
        nox.param("3.11", [oldest("jax"), oldest("keras")], id="oldest"),
        nox.param("3.11", [oldest("jax"), "keras"], id="oldest-jax"),
        nox.param("3.12", ["jax", "keras"], id="newest-3.12"),
        nox.param("3.13", ["jax", "keras"], id="newest-3.13"),
    ],
)
def tests(session: nox.Session, pins: list[str]) -> None:
    """Runs the suites that depend on JAX and Keras; arguments after `--` take the place of the suites."""
    session.install("-e", ".[examples,flax,plots,ray,tables,tensorboard]", *NEEDED, *pins)
    run(session)


@nox.session(python="3.13")
def nightly(session: nox.Session) -> None:
    """The same on what JAX and Keras will release next."""
    session.install("-e", ".[examples,flax,plots,ray,tables,tensorboard]", *NEEDED)
    session.install("--upgrade", "--pre", "jax", "jaxlib", "--extra-index-url", JAX_NIGHTLY)
    session.run("python", "-m", "pip", "uninstall", "--yes", "keras", silent=True)  # The other has the same modules.
    session.install("--upgrade", "--pre", "--force-reinstall", "--no-deps", "keras-nightly")
    run(session)


def run(session: nox.Session) -> None:
    """Says which versions these are, and runs pytest."""
    session.env["KERAS_BACKEND"] = "jax"
    session.run("python", "-c", "import jax, keras, sys; print(sys.version, jax.__version__, keras.__version__)")
    what = session.posargs or [f"tests/{suite}" for suite in SUITES]
    session.run("pytest", "-n", "2", "--dist", "worksteal", "-m", "not nightly", *what)
