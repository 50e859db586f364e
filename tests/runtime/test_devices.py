from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import pytest

from replicax.errors import DeviceError
from replicax.runtime import chosen_devices, default_devices, device_name, parse_devices, set_virtual_devices


def run_python(code: str, **environment: str) -> str:
    """Runs `code` in a new process without this one's device settings and returns what it printed."""
    ours = ("NPROC", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_more_virtual_devices_than_cores_can_talk_to_each_other():
    """XLA sizes its thread pool by the cores, two here; a collective that waits for eight would wait forever."""
    code = """
        import os
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        import jax, jax.numpy as jnp, replicax as rx
        rx.config.set_virtual_devices(8)
        strategy = rx.MirroredStrategy()
        def sum_of_ids():
            replica = rx.get_replica_context()
            return replica.all_reduce("sum", replica.replica_id_in_sync_group)
        for _ in range(20):
            total = int(strategy.run(sum_of_ids))
        print(strategy.num_replicas_in_sync, total, os.environ["NPROC"])
    """
    assert run_python(code) == "8 28 16"


def test_once_jax_has_started_the_number_of_devices_stands():
    code = """
        import os
        import jax, replicax as rx
        jax.devices()
        before = dict(os.environ)
        rx.config.set_virtual_devices(1)
        try:
            rx.config.set_virtual_devices(3)
        except rx.errors.DeviceError as error:
            print(error)
        print(before.get("NPROC") in (None, os.environ.get("NPROC")) and len(jax.devices()))
    """
    message, count = run_python(code).splitlines()
    assert "1 CPU device" in message
    assert "JAX_NUM_CPU_DEVICES=3" in message
    assert count == "1"


def test_asking_for_the_number_that_there_is_changes_nothing():
    set_virtual_devices(len(jax.devices("cpu")))


def test_asking_for_another_number_afterwards_changes_no_setting():
    before = os.environ["NPROC"]
    with pytest.raises(DeviceError, match="already started with 8"):
        set_virtual_devices(64)
    assert os.environ["NPROC"] == before


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", None, True])
def test_a_number_of_devices_is_a_positive_int(count):
    with pytest.raises(DeviceError, match=repr(count)):
        set_virtual_devices(count)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("cpu:0", 0),
        ("CPU:3", 3),
        ("/cpu:1", 1),
        ("cpu", 0),
        ("/device:CPU:2", 2),
        ("device:cpu:2", 2),
        ("/job:localhost/replica:0/task:0/device:CPU:7", 7),
    ],
)
def test_devices_are_named_as_in_jax_or_in_tensorflow(name, index):
    assert parse_devices([name]) == [jax.devices("cpu")[index]]


def test_jax_devices_name_themselves():
    assert parse_devices(jax.devices()[1:3]) == jax.devices()[1:3]


def test_one_name_is_a_list_of_one():
    assert parse_devices("cpu:2") == [jax.devices()[2]]


@pytest.mark.parametrize("name", ["cpu:8", "gpu:99", "tpu:99", "quantum:0"])
def test_a_device_that_does_not_exist_is_answered_with_those_that_do(name):
    with pytest.raises(DeviceError) as caught:
        parse_devices(["cpu:0", name])
    assert repr(name) in str(caught.value)
    assert all(f"cpu:{i}" in str(caught.value) for i in range(8))


@pytest.mark.parametrize("name", ["", "cpu:", "cpu:x", "cpu:-1", ":0", "cpu:0:1", 0, None, "/job:worker/device:CPU:0"])
def test_what_is_no_device_name_is_told_how_to_write_one(name):
    with pytest.raises(DeviceError, match="'cpu:0'"):
        parse_devices([name])


@pytest.mark.parametrize("names", [["cpu:0", "cpu:1", "cpu:0"], ["cpu:0", "/device:CPU:0"]])
def test_each_device_comes_once(names):
    with pytest.raises(DeviceError, match="cpu:0"):
        parse_devices(names)


def test_a_number_stands_for_the_first_so_many_devices():
    assert chosen_devices(3) == jax.devices()[:3]
    assert chosen_devices(None) == chosen_devices([]) == jax.devices()


@pytest.mark.parametrize("count", [0, -1, 9, True])
def test_a_number_of_devices_that_there_are_not_is_answered_with_those_that_there_are(count):
    with pytest.raises(DeviceError, match=rf"from 1 to 8, got {count}\. .*cpu:7.*set_virtual_devices"):
        chosen_devices(count)


def test_there_is_at_least_one_device():
    with pytest.raises(DeviceError, match="at least one"):
        parse_devices([])


def test_device_names_lead_back_to_the_devices():
    assert [device_name(device) for device in jax.devices("cpu")] == [f"cpu:{i}" for i in range(8)]
    assert parse_devices([device_name(device) for device in default_devices()]) == default_devices()
