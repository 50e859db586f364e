"""Servers of S3 and GCS, each in a process of its own, with one bucket."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

BUCKET = "bucket"
_SECONDS_TO_START = 60.0
_PROGRAMS = {
    "s3": "from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])",
    "gs": (
        "from gcp_storage_emulator.server import create_server; "
        "create_server('127.0.0.1', {port}, in_memory=True, default_bucket='" + BUCKET + "').run()"
    ),
}


@contextlib.contextmanager
def store(scheme: str) -> Iterator[int]:
    """Runs the server of a kind of URL while the block runs; yields its port on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = _PROGRAMS[scheme].format(port=port)
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(server, port)
        if scheme == "s3":
            request(port, "PUT", f"/{BUCKET}")
        yield port
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.05)


def request(port: int, method: str, path: str) -> bytes:
    """Returns the answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


def environment(scheme: str, port: int) -> dict[str, str]:
    """Returns the variables by which a process finds a store at a port."""
    if scheme == "gs":
        address = f"http://127.0.0.1:{port}"
        return {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def environ(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables of this process while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
