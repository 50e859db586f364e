"""The examples in flax's nnx: they train, and as flax does it on one device."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import replicax as rx

nnx = pytest.importorskip("flax.nnx")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrays_of(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))]


@pytest.fixture(scope="module", params=["flax_mnist", "flax_vae"])
def on_one_device(request):
    module = example(request.param)
    return module, *module.train(1)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "replicas",
    [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(3, marks=pytest.mark.nightly), 8],
)
def test_training_is_that_of_nnx_jit(on_one_device, replicas):
    """Fifteen steps, the last on five rows: within 1e-6 of the largest weight."""
    module, expected, history = on_one_device
    model, found = module.train(1, rx.MirroredStrategy(devices=[f"cpu:{i}" for i in range(replicas)]))
    for one, other in zip(arrays_of(model), arrays_of(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())
    if isinstance(history[0], dict):
        history, found = [list(each.values()) for each in (*history, *found)][:1], [list(found[0].values())]
    np.testing.assert_allclose(found, history, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["flax_mnist", "flax_vae"])
def test_the_example_runs_and_learns(name):
    command = [sys.executable, EXAMPLES / f"{name}.py", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 2
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert "on 8 replicas" in done.stdout
