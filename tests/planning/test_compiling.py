"""What XLA writes of a program before it generates the code says what the compiled program says."""

from __future__ import annotations

import dataclasses
import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.compat.protocol_buffers import Message
from replicax.planning import compiling
from replicax.planning.compiling import compiled
from replicax.planning.report import Memory

GIB = 2**30


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry @ w)
        return carry, carry.sum()

    y, sums = jax.lax.scan(body, x, None, length=5)
    return w - 0.1 * (x.T @ y), sums


def whole(folder: Path) -> jax.stages.Compiled:
    """Compiles a step, and has XLA write what it finds; under a name of its own, or JAX's cache would have it."""

    def own(*arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        return step(*arguments)

    own.__name__ = f"step_in_{folder.name}"
    lowered = jax.jit(own, donate_argnums=0).lower(jnp.zeros((64, 64)), jnp.ones((32, 64)))
    return lowered.compile(compiler_options={"xla_dump_to": str(folder), "xla_dump_hlo_as_proto": True})


def test_memory_is_that_of_the_compiled_program(tmp_path: Path):
    found = whole(tmp_path)
    (file,) = tmp_path.glob("*after_optimizations.hlo.pb")
    program = Message(file.read_bytes())
    placed, says = compiling._memory_of(program.messages(3)[0], "XLA"), found.memory_analysis()
    assert placed.arguments == says.argument_size_in_bytes == 64 * 64 * 4 + 32 * 64 * 4
    assert placed.outputs == says.output_size_in_bytes
    assert placed.aliased == says.alias_size_in_bytes == 64 * 64 * 4
    assert placed.temporaries == says.temp_size_in_bytes > 0
    assert placed.peak is not None
    assert says.peak_memory_in_bytes < placed.peak  # For CPUs XLA leaves temporaries out of it.
    assert placed.code is None


def message(**fields: int) -> bytes:
    """Returns a protocol buffer of small numbers, by the numbers of their fields."""
    return b"".join(bytes([int(name[1:]) << 3, value]) for name, value in fields.items())


@pytest.mark.parametrize(
    ("events", "most"),
    [
        ([], 0),
        ([message(_2=1), message(_1=1, _2=1), message(_2=2)], 20),
        ([message(_2=1), message(_2=2), message(_1=1, _2=1)], 30),
        # 3 shares the place of 1, which is free when both are over.
        ([message(_2=1), message(_1=2, _2=3, _5=1), message(_1=1, _2=1), message(_2=2)], 30),
        ([message(_2=1), message(_1=2, _2=3, _5=1), message(_1=1, _2=1), message(_1=1, _2=3), message(_2=2)], 20),
        # 4 shares it through 3, after 1 is over.
        ([message(_2=1), message(_1=2, _2=3, _5=1), message(_1=1, _2=1), message(_1=2, _2=4, _5=3), message(_2=2)], 30),
    ],
)
def test_arrays_that_share_a_place_count_once(events: list[bytes], most: int):
    assert compiling._most_at_a_time([Message(each) for each in events], {1: 10, 2: 20, 3: 10, 4: 10}) == most


class Slow:
    """A program that libtpu has placed at once, and whose code takes long."""

    def __init__(self, folder: Path, ends: Callable[[], object], written: bytes | None = None):
        self._folder, self._ends, self._written = folder, ends, written

    def compile(self, compiler_options: dict[str, str | bool]) -> jax.stages.Compiled:
        found = whole(self._folder)
        out = Path(str(compiler_options["xla_dump_to"]))
        (file,) = self._folder.glob("*after_optimizations.hlo.pb")
        (out / f"m{compiling._PLACED}").write_bytes(self._written or file.read_bytes())
        (out / f"m{compiling._PLACED}".replace("hlo.pb", "txt")).write_text("HloModule m")
        (out / f"m{compiling._WRITTEN_LATER}").write_bytes(b"")
        self._ends()
        return found


def test_nobody_waits_for_the_code_of_a_large_program(tmp_path: Path):
    end = threading.Event()
    slow: Any = Slow(tmp_path, end.wait)
    try:
        found = compiled(slow, "libtpu 1", patience=0.0, limit=GIB)
    finally:
        end.set()
    assert found.text == "HloModule m"
    assert found.memory is not None
    assert found.memory.by == "libtpu 1, without the code"


def test_where_little_memory_is_left_the_code_decides(tmp_path: Path):
    slow: Any = Slow(tmp_path, lambda: time.sleep(1))
    found = compiled(slow, "libtpu 1", patience=0.0, limit=58_000)
    assert found.memory is not None
    assert found.memory.code is not None


def test_where_the_files_are_others_the_code_is_awaited(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    slow: Any = Slow(tmp_path, lambda: time.sleep(1), b"\xff")
    found = compiled(slow, "libtpu 1", patience=0.0, limit=GIB)
    assert found.memory is not None
    assert found.memory.code is not None
    assert "libtpu 1 writes files that are not known" in caplog.text


def test_an_error_of_the_compiler_is_raised(tmp_path: Path):
    def fails() -> None:
        raise ValueError("no")

    slow: Any = Slow(tmp_path, fails)
    with pytest.raises(ValueError, match="no"):
        compiled(slow, "libtpu 1", patience=60.0, limit=None)


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'replicax[plan]'")
@pytest.mark.parametrize("width", [64, 512, 4096])
def test_libtpu_says_the_same_before_and_after_it_generates_the_code(tmp_path: Path, width: int):
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    mesh = Mesh(np.array(devices), ("d",))
    everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("d"))
    w = jax.ShapeDtypeStruct((width, width), jnp.float32, sharding=everywhere)
    x = jax.ShapeDtypeStruct((8192, width), jnp.float32, sharding=by_rows)
    lowered = jax.jit(step, donate_argnums=0).trace(w, x).lower(lowering_platforms=("tpu",))
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True}
    after = compiling._whole(lowered.compile(compiler_options=options), "libtpu")
    before = compiling._placed(tmp_path, "libtpu")
    assert isinstance(after.memory, Memory)
    assert isinstance(before.memory, Memory)
    assert before.memory == dataclasses.replace(after.memory, code=None, by=before.memory.by)
    assert before.accessed == after.accessed > 0
