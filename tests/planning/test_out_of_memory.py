"""A device that has not enough memory for a program: a table of what was where, instead of XLA's page."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.program.compiled_pass as compiled_pass
from replicax.errors import OutOfMemoryError

LIMIT = 2**20
PAGE = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes.\nBufferAssignment OOM Debugging.\n"
    + 90 * ("peak buffers: ...\n")
)


@pytest.fixture
def limited(monkeypatch):
    """Devices with a virtual limit: a program that needs more than a MiB for temporaries fails as on a GPU."""
    run = compiled_pass.run_and_keep

    def run_in_limit(program, inputs, keep):
        needs = program.lower(*inputs).compile().memory_analysis().temp_size_in_bytes
        if needs > LIMIT:
            raise jax.errors.JaxRuntimeError(PAGE.format(needs))
        return run(program, inputs, keep)

    monkeypatch.setattr(compiled_pass, "run_and_keep", run_in_limit)


def stepped(strategy, w, rows):
    def step(x):
        w.assign_add(jnp.ones([256, 512]))
        return jnp.sort(jnp.tile(x, [1, 512]), axis=0)[0]

    [x] = strategy.distribute_dataset([np.ones([rows, 64], np.float32)])
    return strategy.run(step, (x,))


def test_a_step_that_lacks_memory_says_what_was_where(limited):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(jnp.ones([256, 512]), name="w")
    beside = jax.device_put(np.ones([1024, 1024], np.float32), jax.devices()[0])
    stepped(strategy, w, 2)
    with pytest.raises(MemoryError, match=r"'step' under MirroredStrategy.* lacks memory") as caught:
        stepped(strategy, w, 256)
    said = str(caught.value)
    assert isinstance(caught.value, OutOfMemoryError)
    assert caught.value.__suppress_context__
    rows = dict(line.split("  ", 1) for line in said.splitlines() if "  " in line)
    held = w._value.addressable_data(0).nbytes
    assert rows["parameters"].split() == [f"{held / 1024:.2f}", "KiB", "exact"]
    assert rows["arguments"].split() == ["32.00", "KiB", "exact"]
    assert float(rows["other arrays on cpu:0"].split()[0]) >= 4  # MiB: `beside`, and what other tests have left
    assert rows["allocation that failed"].split()[2:] == ["by", "XLA"]
    assert "replicax plan script.py" in said
    assert "peak buffers" not in said
    assert float(w.value[0, 0]) == 2  # as after the step that fitted
    assert float(beside[0, 0]) == 1


def test_other_errors_stay_as_they_are(monkeypatch):
    def fails(program, inputs, keep):
        raise RuntimeError("not about memory")

    monkeypatch.setattr(compiled_pass, "run_and_keep", fails)
    strategy = rx.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        w = rx.Variable(jnp.ones([256, 512]), name="w")
    with pytest.raises(RuntimeError, match="not about memory") as caught:
        stepped(strategy, w, 2)
    assert not isinstance(caught.value, OutOfMemoryError)
