"""Collectives counted from HLO, against programs whose bytes are known."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from replicax.collectives.hlo import axes_of_groups, collectives


def _text(fn, spec, *shapes):
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    sharding = NamedSharding(mesh, P("d"))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=P("d"), out_specs=spec)
    values = [jax.device_put(jnp.ones(shape), sharding) for shape in shapes]
    return jax.jit(mapped).lower(*values).compile().as_text()


def _bytes_of_kinds(text):
    found = Counter()
    for each in collectives(text):
        found[each.kind] += each.num_bytes
    return found


def test_sums_of_several_values_are_counted_with_all_their_bytes():
    text = _text(lambda a, b: (jax.lax.psum(a, "d"), jax.lax.psum(b, "d")), P(), (2, 100), (2, 7))
    assert _bytes_of_kinds(text) == {"all-reduce": 4 * 107}


def test_gathered_and_scattered_values_count_with_their_larger_side():
    text = _text(lambda a: jax.lax.all_gather(a, "d", tiled=True), P("d"), (8,))
    assert _bytes_of_kinds(text)["all-gather"] == 4 * 8
    text = _text(lambda a: jax.lax.psum_scatter(a, "d", tiled=True), P("d"), (16,))
    assert _bytes_of_kinds(text)["reduce-scatter"] == 4 * 8


def test_a_pair_of_start_and_done_counts_once():
    text = """
      %ar-start = (f32[10]{0}, s8[4]{0}) all-reduce-start(f32[10]{0} %a, s8[4]{0} %b), replica_groups={{0,1}}
      %ar-done = (f32[10]{0}, s8[4]{0}) all-reduce-done((f32[10]{0}, s8[4]{0}) %ar-start)
      %ag-start = (f32[5]{0}, f32[10]{0}) all-gather-start(f32[5]{0} %c), dimensions={0}
      %ag-done = f32[10]{0} all-gather-done((f32[5]{0}, f32[10]{0}) %ag-start)
    """
    assert [each[:2] for each in collectives(text)] == [("all-reduce", 44), ("all-gather", 40)]


def test_a_program_of_one_device_moves_nothing():
    assert collectives(jax.jit(jnp.sin).lower(1.0).compile().as_text()) == []


def test_the_devices_of_a_collective_lie_along_axes_of_the_mesh():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))

    def text(spec, out):
        compiled = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, out))
        return compiled.lower(jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, spec))).compile().as_text()

    for spec, out, axes in [
        (P("a", None), P(), (0,)),
        (P("b", None), P(), (1,)),
        (P(("a", "b"), None), P(), (0, 1)),
        (P("b", "a"), P("a"), (1,)),
    ]:
        [found] = collectives(text(spec, out))
        assert (found.kind, axes_of_groups(found.groups, (2, 4))) == ("all-reduce", axes)
    assert axes_of_groups(((0, 1), (2, 3), (4, 5), (6, 7)), (2, 4)) is None
    assert axes_of_groups((), (2, 4)) is None


def test_a_dtype_of_unknown_size_is_no_guess():
    assert collectives("%sum = pred[4]{0} all-reduce(%x)")[0].num_bytes == 4
    with pytest.raises(ValueError, match="a dtype of unknown size: 'quantum'"):
        collectives("%sum = quantum[4]{0} all-reduce(%x)")
