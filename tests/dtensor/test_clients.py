from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from replicax import dtensor
from replicax.dtensor import rendezvous
from replicax.errors import ArgumentError, BarrierTimeoutError, ClientsTimeoutError, ContextError, DeviceError
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
    with pytest.raises(ArgumentError, match=r"numbers 0 to 0, got 1"):
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
    with pytest.raises(ArgumentError, match=r"`timeout_s` is a positive number of seconds, got 0"):
        dtensor.initialize_accelerator_system(timeout_s=0)


def test_timeouts_say_who_waited_for_whom_and_survive_pickling():
    barrier = BarrierTimeoutError("save", 500, 0, (1, 3))
    assert "Client 0 waited 500 ms at barrier 'save' for client(s) 1, 3" in str(barrier)
    start = ClientsTimeoutError("client 0 at a:1", 2.5, 1, (0,))
    assert "Client 1 waited 2.5 s for client 0 at a:1" in str(start)
    for error in (barrier, start, BarrierTimeoutError("save", 500, 2, late=True)):
        assert isinstance(error, TimeoutError)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


# Finding each other.


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def soon(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def connected(address):
    """A connection to who listens there, or soon will."""
    for _ in range(1000):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(rendezvous.split_address(address), timeout=20)
        time.sleep(0.01)
    raise AssertionError(f"nobody listens at {address}")


@contextlib.contextmanager
def meeting(address, *clients, num_clients=3, timeout_s=20.0):
    """Lets clients meet in threads; gives the error, or None, of each that is through by the end of the block."""
    found = {}

    def run(client):
        try:
            found[client] = rendezvous.meet(address, client, num_clients, timeout_s)
        except Exception as error:
            found[client] = error

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join(timeout_s + 10)


@pytest.mark.parametrize("first", [(0,), (2, 1)], ids=["client 0 first", "client 0 last"])
def test_clients_go_on_when_all_are_there(first):
    address = free_address()
    with meeting(address, *first) as early:
        time.sleep(0.2)
        assert early == {}
        with meeting(address, *({0, 1, 2} - set(first))) as late:
            pass
    assert early | late == {0: None, 1: None, 2: None}


def test_the_missing_are_named():
    address = free_address()
    with meeting(address, 0, 1, num_clients=4, timeout_s=0.5) as found:
        pass
    assert (found[0].client, found[0].missing, found[0].timeout_s) == (0, (2, 3), 0.5)
    assert f"Client 0 waited 0.5 s for client(s) 2, 3 to come to {address}" in str(found[0])
    assert isinstance(found[1], ClientsTimeoutError)


def test_client_0_may_be_missing():
    address = free_address()
    with pytest.raises(
        ClientsTimeoutError, match=rf"Client 1 waited 0.3 s for client 0 at {address} \(.*refused"
    ) as error:
        rendezvous.meet(address, 1, 2, 0.3)
    assert error.value.missing == (0,)


def test_two_processes_with_one_number_are_told():
    address = free_address()
    with meeting(address, 0, 1) as found, meeting(address, 1) as twin:
        assert soon(lambda: 1 in found or 1 in twin)
        error = found.get(1) or twin.get(1)
        assert isinstance(error, ArgumentError)
        assert "Client 1 does not fit the others: another process is client 1 already" in str(error)
        rendezvous.meet(address, 2, 3, 20.0)
    assert [found[0], found[1] or twin[1], found[1] and twin[1]] == [None, error, None]


def test_clients_that_count_differently_are_told():
    address = free_address()
    says = r"names 3 clients here, but 2 for client 0"
    with meeting(address, 0, num_clients=2, timeout_s=2.0) as found, pytest.raises(ArgumentError, match=says):
        rendezvous.meet(address, 1, 3, 5.0)
    assert found[0].missing == (1,)


def test_strangers_and_the_dead_do_not_count():
    address = free_address()
    with meeting(address, 0) as found:
        for line in (b"", b"GET / HTTP/1.1\r\n\r\n", b"replicax-dtensor 3 x\n", b"\xff\n", b"replicax-dtensor 3 1\n"):
            with connected(address) as stranger:
                stranger.sendall(line)
        with meeting(address, 1, 2) as others:
            pass
    assert found | others == {0: None, 1: None, 2: None}


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ArgumentError, match=rf"Client 0 cannot listen at port .*{address}.*Choose a free port"):
            rendezvous.meet(address, 0, 2, 1.0)


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
    assert found["error"][:3] == [client, 0.5, [missing]]
    assert f"Client {client} waited 0.5 s for client" in found["error"][3]
    assert "initialize_accelerator_system at the top" in found["unconnected"]
    assert found["waited"] < 20
