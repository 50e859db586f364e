"""The loss of the process that keeps the job store."""

import contextlib
import socket
import threading
import time

import jax
import pytest

from replicax.cluster.patience import Patience
from replicax.compat import jax_cliques
from replicax.compat.jax_cliques import StoreClient
from replicax.errors import MeetingError
from replicax.group.membership.store_watcher import StoreWatcher

_TIMEOUT_S = 30.0
PATIENCE = Patience(start=10.0, silence=_TIMEOUT_S, end=11.0, again=1.0)


@contextlib.contextmanager
def listening():
    """Yields a socket that listens, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def ended():
    """The exit codes with which a store watcher has ended the process."""

    class Codes(list):
        def __init__(self):
            self.came = threading.Event()

        def end(self, code):
            self.append(code)
            self.came.set()

    return Codes()


def test_it_ends_the_process_when_nobody_listens_any_more(ended, capfd):
    with listening() as (server, address):
        store_watcher = StoreWatcher(address, "worker:3", PATIENCE, ended.end)
        connection, _ = server.accept()
    connection.close()
    assert ended.came.wait(_TIMEOUT_S)
    store_watcher.stop()
    assert ended == [71]
    message = capfd.readouterr().err
    assert "worker:3: " in message
    assert address in message
    assert "Start the job again" in message


def test_a_connection_that_is_only_closed_is_made_again(ended):
    with listening() as (server, address):
        store_watcher = StoreWatcher(address, "worker:0", PATIENCE._replace(again=0.01), ended.end)
        for _ in range(3):
            server.accept()[0].close()
        with contextlib.closing(server.accept()[0]) as connection:
            store_watcher.stop()
            assert connection.recv(1) == b""
    assert not ended


@pytest.mark.parametrize("after", [0.0, 0.05])
def test_it_stops(ended, after):
    with listening() as (_, address):
        store_watcher = StoreWatcher(address, "worker:0", PATIENCE, ended.end)
        time.sleep(after)
        store_watcher.stop()
        assert not store_watcher._thread.is_alive()
    assert not ended


def test_a_machine_that_gives_no_answer_ends_this_process_as_a_lost_one(ended, capfd):
    # A connection that is never accepted: the queue of this server is full.
    with socket.socket() as server, contextlib.ExitStack() as queue:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(2):
            waits = queue.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(server.getsockname())
        address = f"127.0.0.1:{server.getsockname()[1]}"
        store_watcher = StoreWatcher(address, "worker:3", PATIENCE._replace(start=0.3, silence=0.5), ended.end)
        assert ended.came.wait(_TIMEOUT_S)
        store_watcher.stop()
    assert ended == [70]
    message = capfd.readouterr().err
    assert f"worker:3: The process at {address} " in message
    assert "no answer for 0.5 s" in message


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.put("a", b""),
        lambda store: store.put_if_absent("a", b""),
        lambda store: store.get("a", 1.0),
        lambda store: store.listing("a"),
        lambda store: store.delete("a"),
    ],
    ids=["put", "put_if_absent", "get", "listing", "delete"],
)
def test_a_store_that_is_gone_is_an_error_of_ours(use, monkeypatch):
    class Client:
        def connect(self):
            pass

        def __getattr__(self, name):
            def fail(*_, **__):
                raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses")

            return fail

    monkeypatch.setattr(jax_cliques.jaxlib, "get_distributed_runtime_client", lambda *_, **__: Client())
    with pytest.raises(MeetingError, match=r"10\.0\.0\.1:5 .*cannot be reached"):
        use(StoreClient("10.0.0.1:5", 1.0))
