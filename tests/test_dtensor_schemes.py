"""The parallel schemes of examples/dtensor_schemes: they train as on one device, and send what they should, no more."""

from __future__ import annotations

import functools
import importlib
import math
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCHEMES = ROOT / "examples" / "dtensor_schemes"
NAMES = ("data_parallel", "model_parallel", "data_model", "spatial", "embedding", "sequence")
FLOAT = 4


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The examples import each other by bare names, as scripts of one folder do."""
    before = set(sys.modules)
    sys.path.insert(0, str(SCHEMES))
    yield
    sys.path.remove(str(SCHEMES))
    for name in set(sys.modules) - before:
        if str(SCHEMES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def module(name: str) -> Any:
    return importlib.import_module(name)


@functools.cache
def compared(name: str) -> Any:
    return module("scheme").compare(module(name).SCHEME)


def parameter_bytes(name: str) -> dict[str, int]:
    return {key: FLOAT * math.prod(parameter.shape) for key, parameter in module(name).SCHEME.parameters.items()}


def communicated(name: str) -> tuple[dict[str, int], dict[str, int]]:
    report = compared(name).report
    assert not any(report.in_loops.values())
    return report.counts, report.payload_bytes


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_on_one_device(name: str):
    comparison = compared(name)
    assert len(comparison.losses) == 5
    assert comparison.losses == pytest.approx(comparison.losses_on_one, rel=1e-6)
    assert set(comparison.differences) == set(module(name).SCHEME.parameters)
    assert max(comparison.differences.values()) < 1e-6
    assert comparison.losses[-1] < 0.9 * comparison.losses[0]


# How many collectives there are is XLA's choice where it may join several all-reduces into one; their bytes are not.


def test_data_parallel_sums_gradients_and_the_loss():
    counts, payload = communicated("data_parallel")
    gradients = parameter_bytes("data_parallel")
    assert counts.keys() == {"all-reduce"}
    assert counts["all-reduce"] <= len(gradients) + 1
    assert payload["all-reduce"] == sum(gradients.values()) + FLOAT


def test_model_parallel_sums_activations_only():
    counts, payload = communicated("model_parallel")
    example = module("model_parallel")
    activations = FLOAT * example.BATCH * example.WIDTH
    # One forward in each block, one backward in each but the first. They depend on each other: none can be joined.
    assert counts == {"all-reduce": 2 * example.BLOCKS - 1}
    assert payload == {"all-reduce": (2 * example.BLOCKS - 1) * activations}


def test_data_and_model_parallel_sums_in_groups():
    counts, _ = communicated("data_model")
    example = module("model_parallel")
    gradients = parameter_bytes("data_model")
    assert counts.keys() == {"all-reduce"}
    by_group = {2: [], 4: []}
    for collective in compared("data_model").report.collectives:
        by_group[collective.group_size].append(collective.payload_bytes)
    # Over "model" as above, a group's rows only.
    assert by_group[2] == [FLOAT * example.BATCH // 4 * example.WIDTH] * (2 * example.BLOCKS - 1)
    # Over "batch" a device's half of what is cut, all of the rest, and the loss.
    whole = sum(size for name, size in gradients.items() if name.startswith("down_bias"))
    assert len(by_group[4]) <= len(gradients) + 1
    assert sum(by_group[4]) == (sum(gradients.values()) - whole) // 2 + whole + FLOAT


def test_spatial_sends_halos():
    counts, payload = communicated("spatial")
    example = module("spatial")
    gradients = parameter_bytes("spatial")
    row = FLOAT * example.BATCH * example.SIZE
    # Forward two for each convolution, backward two for each but the first.
    assert counts["collective-permute"] == 6
    assert payload["collective-permute"] == 2 * row * (example.CHANNELS + 2 * example.FILTERS)
    # The features of the images, and the gradients of the kernels.
    assert counts.keys() == {"collective-permute", "all-reduce"}
    assert counts["all-reduce"] <= 3
    features = FLOAT * example.BATCH * example.FILTERS
    assert payload["all-reduce"] == gradients["kernel1"] + gradients["kernel2"] + features


def test_embedding_sums_vectors_of_texts_only():
    counts, payload = communicated("embedding")
    example = module("embedding")
    assert counts == {"all-reduce": 1}
    assert payload == {"all-reduce": FLOAT * example.BATCH * example.WIDTH}


def test_sequence_moves_between_positions_and_heads():
    counts, payload = communicated("sequence")
    example = module("sequence")
    gradients = parameter_bytes("sequence")
    assert counts.keys() == {"all-reduce", "all-to-all"}
    # Queries, keys and values on the way to the heads, the result on the way back; forward and backward.
    assert counts["all-to-all"] == 4
    own = FLOAT * example.BATCH * example.LENGTH * example.WIDTH // 8
    assert payload["all-to-all"] == 2 * (3 + 1) * own
    assert counts["all-reduce"] <= len(gradients) + 1
    assert payload["all-reduce"] == sum(gradients.values()) + FLOAT


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_its_own(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As `python examples/dtensor_schemes/NAME.py` does, but for the comparison, which is made once."""
    monkeypatch.setattr(module("scheme"), "compare", lambda scheme: compared(name))
    runpy.run_path(str(SCHEMES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for expected in ("losses on the mesh:", "losses on one device:", "largest difference", "all-reduce"):
        assert expected in printed


def test_runs_as_a_script():
    command = [sys.executable, SCHEMES / "embedding.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cut embedding (vocabulary=8)\n")


def test_the_guide_shows_the_table():
    """`python examples/dtensor_schemes/table.py` prints the table that belongs there."""
    guide = (ROOT / "docs" / "guides" / "dtensor.md").read_text()
    reports = {module(name).SCHEME.name: compared(name).report for name in NAMES}
    assert module("table").table(lambda scheme: reports[scheme.name]) in guide
