"""The parallel schemes of examples/dtensor_schemes: they train as on one device, and send what they should, no more."""

from __future__ import annotations

import importlib
import math
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCHEMES = ROOT / "examples" / "dtensor_schemes"
FLOAT = 4  # bytes


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


# What each may send: the kinds and the bytes exactly. How many all-reduces there are is XLA's choice where it may join
# those of several gradients into one; there the number has an upper bound.


def data_parallel_sums_gradients_and_the_loss(report: Any, gradients: dict[str, int], example: Any) -> None:
    assert report.counts.keys() == {"all-reduce"}
    assert report.counts["all-reduce"] <= len(gradients) + 1
    assert report.payload_bytes["all-reduce"] == sum(gradients.values()) + FLOAT


def model_parallel_sums_activations_only(report: Any, gradients: dict[str, int], example: Any) -> None:
    # One forward in each block, one backward in each but the first. Each needs the one before: none can be joined.
    sums = 2 * example.BLOCKS - 1
    assert report.counts == {"all-reduce": sums}
    assert report.payload_bytes == {"all-reduce": sums * FLOAT * example.BATCH * example.WIDTH}


def data_model_sums_in_groups(report: Any, gradients: dict[str, int], example: Any) -> None:
    assert report.counts.keys() == {"all-reduce"}
    by_group = {2: [], 4: []}
    for collective in report.collectives:
        by_group[collective.group_size].append(collective.payload_bytes)
    # Over "model" as above, a group's rows only.
    block = example.model_parallel
    assert by_group[2] == [FLOAT * block.BATCH // 4 * block.WIDTH] * (2 * block.BLOCKS - 1)
    # Over "batch" a device's half of what is cut, all of the rest, and the loss.
    whole = sum(size for name, size in gradients.items() if name.startswith("down_bias"))
    assert len(by_group[4]) <= len(gradients) + 1
    assert sum(by_group[4]) == (sum(gradients.values()) - whole) // 2 + whole + FLOAT


def spatial_sends_halos(report: Any, gradients: dict[str, int], example: Any) -> None:
    assert report.counts.keys() == {"collective-permute", "all-reduce"}
    # Forward two for each convolution, backward two for each but the first.
    row = FLOAT * example.BATCH * example.SIZE
    assert report.counts["collective-permute"] == 6
    assert report.payload_bytes["collective-permute"] == 2 * row * (example.CHANNELS + 2 * example.FILTERS)
    # The features of the images, and the gradients of the kernels.
    features = FLOAT * example.BATCH * example.FILTERS
    assert report.counts["all-reduce"] <= 3
    assert report.payload_bytes["all-reduce"] == gradients["kernel1"] + gradients["kernel2"] + features


def embedding_sums_the_vectors_of_texts_only(report: Any, gradients: dict[str, int], example: Any) -> None:
    assert report.counts == {"all-reduce": 1}
    assert report.payload_bytes == {"all-reduce": FLOAT * example.BATCH * example.WIDTH}


def sequence_moves_between_positions_and_heads(report: Any, gradients: dict[str, int], example: Any) -> None:
    assert report.counts.keys() == {"all-reduce", "all-to-all"}
    # Queries, keys and values on the way to the heads, the result on the way back; forward and backward.
    own = FLOAT * example.BATCH * example.LENGTH * example.WIDTH // 8
    assert report.counts["all-to-all"] == 4
    assert report.payload_bytes["all-to-all"] == 2 * (3 + 1) * own
    assert report.counts["all-reduce"] <= len(gradients) + 1
    assert report.payload_bytes["all-reduce"] == sum(gradients.values()) + FLOAT


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("name", "sends_as_expected"),
    [
        pytest.param("data_parallel", data_parallel_sums_gradients_and_the_loss, id="data_parallel"),
        pytest.param("model_parallel", model_parallel_sums_activations_only, id="model_parallel"),
        pytest.param("data_model", data_model_sums_in_groups, id="data_model"),
        pytest.param("spatial", spatial_sends_halos, id="spatial"),
        pytest.param("embedding", embedding_sums_the_vectors_of_texts_only, id="embedding"),
        pytest.param("sequence", sequence_moves_between_positions_and_heads, id="sequence"),
    ],
)
def test_scheme(
    name: str,
    sends_as_expected: Callable[[Any, dict[str, int], Any], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """One test for each, since the comparison takes seconds and serves all questions."""
    example = importlib.import_module(name)
    scheme = importlib.import_module("scheme")
    comparison = scheme.compare(example.SCHEME)

    assert len(comparison.losses) == 5
    assert comparison.losses == pytest.approx(comparison.losses_on_one, rel=1e-6)
    assert comparison.losses[-1] < 0.9 * comparison.losses[0]
    assert comparison.differences.keys() == example.SCHEME.parameters.keys()
    assert max(comparison.differences.values()) < 1e-6

    gradients = {key: FLOAT * math.prod(parameter.shape) for key, parameter in example.SCHEME.parameters.items()}
    assert not any(comparison.report.in_loops.values())
    sends_as_expected(comparison.report, gradients, example)

    monkeypatch.setattr(scheme, "compare", lambda scheme: comparison)
    runpy.run_path(str(SCHEMES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for expected in ("losses on the mesh:", "losses on one device:", "largest difference", "all-reduce"):
        assert expected in printed


@pytest.mark.nightly
def test_the_guide_shows_the_table():
    """`python examples/dtensor_schemes/table.py` prints the table that belongs there."""
    guide = (ROOT / "docs" / "guides" / "dtensor.md").read_text()
    assert importlib.import_module("table").table() in guide
