"""The launcher with JAX: processes that find each other, and a restart that takes its programs from the cache."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.job.launching.conftest import Done

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "true"}

# Sums 1 + 2 + 3 + 4 over the four devices of two processes, and counts what comes from the cache of programs.
SUM = """
import jax
import numpy as np
from jax import monitoring
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

found = {"hits": 0, "misses": 0}
def count(event, **_):
    name = event.rpartition("cache_")[2]
    if name in found:
        found[name] += 1
monitoring.register_event_listener(count)

jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
mesh = Mesh(np.array(jax.devices()), "x")
own = np.arange(2.0) + 1 + 2 * index
rows = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), own)
add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
total = add(rows)
print("sum", float(total.addressable_data(0)[0]), "devices", len(jax.local_devices()), jax.device_count(), flush=True)
print("cache hits", found["hits"], "misses", found["misses"], flush=True)
"""


def test_two_workers_with_two_devices_each_and_a_restart_from_the_cache(run: Callable[..., Done]):
    body = SUM + "if attempt == 0 and index == 1: raise RuntimeError('once')\n"
    started = time.monotonic()
    done = run(body, devices_per_worker=2, restarts=1, environment=ENVIRONMENT)
    assert done.code == 0, done.err
    assert time.monotonic() - started < 60  # JAX's own barrier would take 300 s.
    for index in range(2):
        assert re.findall(r"sum .*", done.log(f"worker-{index}")) == ["sum 10.0 devices 2 4"] * 2
    # JAX writes from process 0 only. On CPUs the others look under other names, so that they compile again.
    first, second = re.findall(r"cache hits (\d+) misses (\d+)", done.log("worker-0"))
    assert first[0] == "0"
    assert second == (first[1], "0")
    assert "(RuntimeError: once). restart 1 of 1." in done.err


def test_a_worker_that_vanishes_with_0_in_a_strategy_is_named_and_not_the_one_that_lost_it(run: Callable[..., Done]):
    body = """
    import replicax as rx
    strategy = rx.MultiWorkerMirroredStrategy(stall_timeout=60.0)
    import jax.numpy as jnp
    assert strategy.reduce("sum", strategy.run(lambda: jnp.ones(())), axis=None) == 2.0
    if index == 1: os._exit(0)
    strategy.reduce("sum", strategy.run(lambda: jnp.ones(())), axis=None)
    """
    done = run(body, environment=ENVIRONMENT)
    assert done.code == 71
    assert "worker 1 failed first: exit code 71: it was gone, and others needed it" in done.err
    assert "worker 1 ended with exit code 0 in the middle of the job" in done.err


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("'no more data'", 1, "\n\nno more data\n"),
        ("3", 3, "\n\nIt printed nothing.\n"),
        ("0", 71, "has ended, and others wait"),
    ],
)
def test_a_script_that_exits_while_others_train_is_shown_without_our_own_stacks(
    end: str, code: int, words: str, run: Callable[..., Done]
):
    body = f"""
    import replicax as rx
    strategy = rx.MultiWorkerMirroredStrategy(stall_timeout=60.0)
    import jax.numpy as jnp
    for step in range(4):
        if step == 2 and index == 1: sys.exit({end})
        strategy.reduce("sum", strategy.run(lambda: jnp.ones(())), axis=None)
    """
    done = run(body, environment=ENVIRONMENT)
    assert done.code == code
    assert words in done.err
    assert "threading.py" not in done.err
    assert "[worker 1]" not in done.err
