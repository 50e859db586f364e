"""Arrays without values, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from jax._src import array, core, dispatch, dtypes, pjit
from jax._src.interpreters import mlir
from jax._src.random import prng

from tests.compat.guards import needs


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (array, "ArrayImpl"),
        (array, "Shard"),
        (array, "make_array_from_callback"),
        (core, "EvalTrace"),
        (core, "eval_trace"),
        (core, "pytype_aval_mappings"),
        (core, "jaxprs_in_params"),
        (dispatch, "_batched_device_put_impl"),
        (dispatch, "device_put_p"),
        (dtypes, "register_canonicalize_value_handler"),
        (mlir, "register_constant_handler"),
        (pjit, "_pjit_call_impl_python"),
        (pjit, "jit_p"),
        (prng, "PRNGKeyArray"),
    ],
)
def test_jax_still_has_the_name(module, name):
    needs("jax", name, lambda: getattr(module, name))


_PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 4)
from replicax.compat.jax_abstract import install, is_abstract
install(None, "gpu")

found = {}
large = jnp.ones([1_000_000, 1_000_000])
found["large"] = [is_abstract(large), (large @ large).shape, str((large > 1).dtype)]
found["under jit"] = jax.jit(lambda a: (a * 2).sum(0))(large).shape
found["small"] = (jnp.arange(3) + 1).tolist()
key = jax.random.split(jax.random.key(3))[0]
found["keys"] = [jax.random.key_data(key).tolist(), is_abstract(jax.random.normal(key, [10_000, 10_000]))]
mesh = Mesh(np.array(jax.devices("gpu")), ("x",))
cut = jax.device_put(np.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))
found["placed"] = [is_abstract(cut), cut.sharding.shard_shape(cut.shape), float(cut[3]), (cut + 1).tolist()]
found["copied"] = np.array(large).shape
made = jax.make_array_from_callback((8, 2), cut.sharding, lambda index: np.ones((8, 2))[index])
found["made"] = [is_abstract(made), made.addressable_data(1).shape, len(made.addressable_shards)]
zeros = jnp.zeros_like(cut)
found["like"] = [is_abstract(zeros), zeros.sharding == cut.sharding]
found["lowered"] = jax.jit(lambda a: a + 1).lower(cut).compile().memory_analysis().argument_size_in_bytes
print(json.dumps(found))
"""


@pytest.mark.multiprocess
def test_shapes_are_computed_and_small_values():
    import jax

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["large"] == [True, [1_000_000, 1_000_000], "bool"]
    assert found["under jit"] == [1_000_000]
    assert found["small"] == [1, 2, 3]
    assert found["keys"] == [jax.random.key_data(jax.random.split(jax.random.key(3))[0]).tolist(), True]
    assert found["placed"] == [True, [2], 3.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]
    assert found["copied"] == [1_000_000, 1_000_000]
    assert found["made"] == [True, [2, 2], 4]
    assert found["like"] == [True, True]
    assert found["lowered"] == 8
