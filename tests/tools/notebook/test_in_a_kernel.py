"""`rx.notebook.launch` in the kernel of a notebook: output arrives meanwhile, and the interrupt button ends all."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess, pytest.mark.slow]
SECONDS = 120
DEFINITIONS = """
import os, time
import replicax as rx

WORDS = {0: "zero", 1: "one"}

def talk(sleep):
    strategy = rx.MultiWorkerMirroredStrategy()
    print(WORDS[strategy.worker_index], "has pid", os.getpid(), "of", strategy.num_workers)
    time.sleep(sleep)
    if sleep < 1:
        raise KeyError("in a cell")
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(startup_timeout=SECONDS)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def messages(client: BlockingKernelClient, request: str) -> Iterator[tuple[str, dict]]:
    """Yields the type and content of each message of a cell, until it is done."""
    while True:
        message = client.get_iopub_msg(timeout=SECONDS)
        if message["parent_header"].get("msg_id") == request:
            yield message["msg_type"], message["content"]
            if message["content"].get("execution_state") == "idle":
                return


def test_output_errors_and_the_interrupt_button(kernel: tuple[KernelManager, BlockingKernelClient]):
    manager, client = kernel
    for kind, content in messages(client, client.execute(DEFINITIONS)):
        assert kind != "error", content

    printed, error = "", {}
    for kind, content in messages(client, client.execute("rx.notebook.launch(talk, (0.1,), workers=2)")):
        printed += content["text"] if kind == "stream" else ""
        error = content if kind == "error" else error
    assert "[worker 0] zero has pid" in printed
    assert "[worker 1] one has pid" in printed
    assert error["ename"] == "KeyError"
    assert 'raise KeyError("in a cell")' in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"]))

    printed, error, pressed = "", {}, 0.0
    for kind, content in messages(client, client.execute("rx.notebook.launch(talk, (300,), workers=2)")):
        printed += content["text"] if kind == "stream" else ""
        error = content if kind == "error" else error
        if not pressed and printed.count("has pid") == 2:  # It arrives while the workers run.
            pressed = time.monotonic()
            manager.interrupt_kernel()
    assert error["ename"] == "KeyboardInterrupt"
    assert time.monotonic() - pressed < 100
    pids = re.findall(r"has pid (\d+)", printed)
    assert len(pids) == 2
    assert not [pid for pid in pids if Path("/proc", pid).exists()]
