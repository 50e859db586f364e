"""The pytest plugin of replicax. pytest loads it in every run, so it imports neither replicax nor JAX by itself.

It stands beside the package and not in it: importing anything of the package loads JAX, before a `conftest.py` could
set the variables that JAX reads then.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from replicax.testing import Cluster

_LOGS_VARIABLE = "REPLICAX_TEST_LOGS"  # replicax.testing.LOGS_VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that keeps the workers' logs."""
    parser.getgroup("replicax").addoption(
        "--replicax-logs", metavar="DIR", type=Path, help="keep what the workers of distributed tests print"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tells `rx.testing` where to keep logs, also in the processes of pytest-xdist."""
    folder = config.getoption("--replicax-logs")
    if folder is not None:
        os.environ[_LOGS_VARIABLE] = str(folder.absolute())


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Runs functions in several processes: `cluster.run(function, workers=2, devices=1, **arguments)`."""
    from replicax.testing import Cluster

    kept = os.environ.get(_LOGS_VARIABLE)
    return Cluster(Path(kept) if kept else tmp_path_factory.mktemp("cluster"))
