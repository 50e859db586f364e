from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from replicax import dtensor
from replicax.errors import ArgumentError, BarrierTimeoutError, ContextError, DeviceError
from tests.dtensor import two_clients

WORKER = Path(two_clients.__file__)
ROOT = WORKER.parent.parent.parent
JOBS = "10.0.0.1:9898,10.0.0.2:9898"


# Who is who.


def test_one_client_by_default():
    assert (dtensor.client_id(), dtensor.num_clients(), dtensor.jobs()) == (0, 1, [])
    assert (dtensor.job_name(), dtensor.full_job_name()) == ("localhost", "localhost/replica:0/task:0")
    assert dtensor.heartbeat_enabled()
    with pytest.raises(ArgumentError, match=r"0 to 0, got 1"):
        dtensor.full_job_name(1)


def test_several_clients_by_environment(monkeypatch):
    monkeypatch.setenv("DTENSOR_JOBS", JOBS)
    monkeypatch.setenv("DTENSOR_CLIENT_ID", "1")
    monkeypatch.setenv("DTENSOR_ENABLE_HEARTBEAT", "false")
    assert (dtensor.client_id(), dtensor.num_clients(), dtensor.jobs()) == (1, 2, JOBS.split(","))
    assert (dtensor.full_job_name(), dtensor.full_job_name(0)) == ("worker/replica:0/task:1", "worker/replica:0/task:0")
    assert not dtensor.heartbeat_enabled()
    monkeypatch.setenv("DTENSOR_JOB_NAME", "trainer")
    assert dtensor.full_job_name() == "trainer/replica:0/task:1"


def test_clients_that_are_not_connected_cannot_work_together(monkeypatch):
    monkeypatch.setenv("DTENSOR_JOBS", JOBS)
    with pytest.raises(ContextError, match=r"create_distributed_mesh: DTENSOR_JOBS names 2 clients.*not connected"):
        dtensor.create_distributed_mesh([("x", 8)])
    with pytest.raises(ContextError, match=r"shutdown_accelerator_system: DTENSOR_JOBS names 2 clients"):
        dtensor.shutdown_accelerator_system()
    jax.devices()
    with pytest.raises(ContextError, match=r"already looked for devices.*top of the program"):
        dtensor.initialize_accelerator_system()


# One client.


def test_devices_by_type():
    assert dtensor.local_devices("CPU") == dtensor.local_devices("cpu", 0) == jax.devices("cpu")
    assert (dtensor.num_local_devices("cpu"), dtensor.num_global_devices("cpu")) == (8, 8)
    assert dtensor.num_global_devices("tpu") == 0
    assert dtensor.num_global_devices(dtensor.preferred_device_type()) > 0
    for wrong in ("npu", None):
        with pytest.raises(DeviceError, match=rf"one of \['cpu', 'gpu', 'tpu'\], got {wrong!r}"):
            dtensor.local_devices(wrong)
    with pytest.raises(ArgumentError, match=r"ids of clients are 0 to 0, got 1"):
        dtensor.local_devices("cpu", 1)


def test_one_client_may_start_any_number_of_times():
    for _ in range(2):
        assert dtensor.initialize_accelerator_system() == dtensor.preferred_device_type()
        assert dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=8) == "cpu"
        dtensor.shutdown_accelerator_system()
    with pytest.raises(DeviceError, match=r"already started with 8 CPU"):
        dtensor.initialize_accelerator_system(num_logical_cpu_devices=5)
    with pytest.raises(DeviceError, match=r"no devices of type 'TPU'"):
        dtensor.initialize_accelerator_system("TPU")
    with pytest.raises(ArgumentError, match=r"`timeout_s` must be a positive number of seconds, got 0"):
        dtensor.initialize_accelerator_system(timeout_s=0)


def test_timeouts_say_who_waited_for_whom_and_survive_pickling():
    barrier = BarrierTimeoutError("save", 500, 0, (1, 3))
    assert "Client 0 waited 500 ms at barrier 'save' for client(s) 1, 3" in str(barrier)
    for error in (barrier, BarrierTimeoutError("save", 500, 2, late=True)):
        assert isinstance(error, TimeoutError)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# Two clients.


def run_clients(scenario, clients, **environment):
    """Runs the scenario in a process for each of `clients` of two, and returns what they print."""
    jobs = ",".join([free_address(), free_address()])
    workers = []
    try:
        for client in clients:
            settings = {**os.environ, "DTENSOR_JOBS": jobs, "DTENSOR_CLIENT_ID": str(client), **environment}
            command = [sys.executable, str(WORKER), scenario]
            workers.append(
                subprocess.Popen(
                    command, env=settings, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        printed = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for worker, (_, errors) in zip(workers, printed, strict=True):
        assert worker.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in printed]


@pytest.fixture(scope="module")
def both():
    return run_clients("together", [0, 1])


@pytest.mark.multiprocess
def test_two_clients_make_one_mesh(both):
    for client, found in enumerate(both):
        name, dims, ids, local, _ = found["mesh"][0].split("|")
        assert (name, dims, ids, local) == ("", "batch=4", "0,1,2,3", ["0,1", "2,3"][client])
        assert found["mesh"][1] == [0, 0, 1, 1]
        assert found["swapped"] == [1, 0, 3, 2]
        assert found["who"] == [2, f"worker/replica:0/task:{client}"]
        assert found["positions"] == [[2 * client, 2 * client + 1], 2 * client]
        assert found["devices"] == [2, 4, [1 - client] * 2]
        assert "connected already" in found["again"]


@pytest.mark.multiprocess
def test_each_client_holds_its_rows_of_a_global_batch(both):
    y = two_clients.Y
    for client, found in enumerate(both):
        first = 4 * client
        for step, rows in enumerate(found["rows"][:2]):
            begin = 8 * step + first
            np.testing.assert_array_equal(rows, [y[begin : begin + 2], y[begin + 2 : begin + 4]])
        np.testing.assert_array_equal(
            found["rows"][2], [y[16:], y[16:]]
        )  # Six rows do not divide by four: all have them.
        sums = [[x.sum(), y.sum()] for x, y in ((two_clients.X[i : i + 8], y[i : i + 8]) for i in (0, 8, 16))]
        np.testing.assert_allclose(found["sums"], sums, rtol=1e-5)
        assert found["parts"] == [[[client] * 2, True], [[10 + client] * 2, True]]


@pytest.mark.multiprocess
def test_two_clients_train_like_one_process(both):
    alone = two_clients.train(dtensor.create_mesh([("batch", 4)], devices=jax.devices("cpu")[:4]))
    for found in both:
        assert found["training"] == both[0]["training"]
        for name, values in alone.items():
            np.testing.assert_allclose(found["training"][name], values, rtol=1e-5)
    assert alone["losses"][-1] < 0.1 * alone["losses"][0]


@pytest.mark.multiprocess
def test_a_barrier_that_the_other_does_not_come_to_names_it(both):
    assert both[0]["alone"][:5] == ["alone", 300, 0, [1], False]
    assert "waited 300 ms at barrier 'alone' for client(s) 1" in both[0]["alone"][5]
    assert both[1]["alone"][:5] == ["alone", 300, 1, [], True]
    assert "Client 1 came to barrier 'alone' after the others had given up" in both[1]["alone"][5]
    assert 0.3 <= both[0]["waited"] < 20
    assert "Process 0 has no device" in both[0]["theirs"]


@pytest.mark.multiprocess
def test_after_the_end_a_process_is_alone_again(both):
    for found in both:
        assert not found["connected"]
        assert "2 clients, but they are not connected" in found["shut down twice"]
        assert "in a new process" in found["connect again"]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("client", "missing"), [(0, 1), (1, 0)])
def test_a_client_whose_peer_does_not_start_says_so(client, missing):
    (found,) = run_clients("alone", [client])
    assert found["error"][:2] == [0.5, [f"client {missing}"]]
    assert f"client {client} at 127.0.0.1" in found["error"][2]
    assert "initialize_accelerator_system at the top" in found["unconnected"]
    assert found["waited"] < 20
