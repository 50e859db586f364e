"""Runs a function of a test in several real processes, as a cluster on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

# What a worker runs: the function, named by its file and its own name, after the devices are set up.
_WORKER = """
import faulthandler, importlib.util, json, os, sys
faulthandler.dump_traceback_later(float(os.environ["TEST_SECONDS"]), exit=True)
import replicax as rx
rx.config.set_virtual_devices(int(os.environ["TEST_DEVICES"]))
spec = importlib.util.spec_from_file_location("worker_program", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
result = getattr(module, sys.argv[2])(**json.loads(sys.argv[4]))
with open(sys.argv[3], "w") as file:
    json.dump(result, file)
"""


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def run_workers(
    function: Callable[..., Any], workers: int, devices: int = 1, timeout: float = 120, **arguments: Any
) -> list[Any]:
    """Calls a function in `workers` processes, each with `devices` virtual devices and a TF_CONFIG of its own.

    Args:
        function: A function at the top of a module; its result must be something that JSON can hold.
        workers: Number of processes.
        devices: Virtual devices of each.
        timeout: Seconds until they are ended.
        **arguments: Given to the function, through JSON.

    Returns:
        What each worker returned, in order. A worker that fails makes the test fail, with its output.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for index in range(workers):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(task), "TEST_DEVICES": str(devices)}
            environment["TEST_SECONDS"] = str(timeout - 10)  # then it tells where it hangs
            environment.pop("XLA_FLAGS", None)
            log = open(Path(folder, f"{index}.log"), "w")  # noqa: SIM115 - the process writes to it
            command = [sys.executable, "-c", _WORKER, sys.modules[function.__module__].__file__, function.__name__]
            command += [str(Path(folder, f"{index}.json")), json.dumps(arguments)]
            processes.append(
                subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            )
        return _results(processes, folder, timeout)


def _results(processes: list[subprocess.Popen], folder: str, timeout: float) -> list[Any]:
    try:
        codes = [process.wait(timeout) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(codes) or None in codes:
        logs = "\n".join(
            f"--- worker {i} ({codes[i]})\n{Path(folder, f'{i}.log').read_text()}" for i in range(len(codes))
        )
        raise AssertionError(f"Workers ended with {codes}:\n{logs}")
    return [json.loads(Path(folder, f"{i}.json").read_text()) for i in range(len(processes))]


def _log(folder: str, worker: int) -> str:
    return Path(folder, f"{worker}.log").read_text()
