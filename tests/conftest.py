"""Eight virtual CPU devices for every test, and a fixture that catches what a test leaves behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything imports Keras or touches a device. Subprocesses of a test inherit these.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow refuses folders otherwise; a page sets it too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Or each process would compile replicax anew.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).with_name("children")), os.environ.get("PYTHONPATH")])
)
# A shell that starts the tests in the background, and `nohup`, let them ignore Ctrl-C and the end of a terminal, and
# all processes that they start. Those take the default again where there is a handler here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if os.name == "posix" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# Linux shares the processors out among sessions first. One for each process of pytest-xdist: the devices of one, with
# their many threads, leave the jobs that the tests of another one start the time that they need to come up.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "setsid") and os.getpgrp() != os.getpid():
    os.setsid()
# Compiling is half of what the tests do, and without optimizations takes a fifth of the time. `make test-all` sets an
# empty XLA_FLAGS, so that it runs what users run.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    # Newer versions end the process at a flag that they do not know.
    + (" --xla_cpu_use_fusion_emitters=false" if importlib.metadata.version("jaxlib").startswith("0.10.") else ""),
)

import jax
import jax.numpy as jnp
import pytest
from hypothesis import settings

import replicax as rx
from replicax.runtime import activity, ending
from tests import compiled, matrices
from tests.costs import (  # noqa: F401 - pytest finds its hooks here.
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)

NUM_DEVICES = 8
SECONDS_FOR_THREADS_TO_END = 30.0  # On a machine that does other work, too.
# pytest's own, and what Keras, scikit-learn, Ray and tensorboardX set when a test is the first to import them.
NOT_THE_TESTS_DOING = ("PYTEST_", "KMP_", "TF_", "RAY_CLIENT_MODE", "CRC32C_SW_MODE")

sys.dont_write_bytecode = False  # Rewriting the assertions of all tests takes 13 s of a processor.
rx.config.set_virtual_devices(NUM_DEVICES)
compiled.share_between_tests()
settings.register_profile("replicax", deadline=None)  # How long an example takes depends on what else runs.
settings.load_profile("replicax")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and all(device.platform != "gpu" for device in jax.devices()):
        pytest.skip("needs a GPU; run with JAX_PLATFORMS=cuda,cpu where there is one")


@pytest.hookimpl(tryfirst=True)  # Before pytest leaves out what `-m` does not want.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets the tests that start processes come first: they wait more than they compute, while other workers compute.

    `REPLICAX_TESTS_ORDER`, a number, shuffles the files, and the tests in each.
    """
    matrices.leave_to_the_night(items)  # By the order in which the cases stand: another order has the same cases.
    if seed := os.environ.get("REPLICAX_TESTS_ORDER"):
        chance = random.Random(int(seed))
        place = {path: chance.random() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (place[item.path], chance.random()))
    for item in items:
        if not item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.cpu)
    waiting = {
        item.path for item in items if item.get_closest_marker("multiprocess") or item.get_closest_marker("slow")
    }
    items.sort(key=lambda item: item.path not in waiting)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what stays: the modules and the tests are most of what it would look through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def mirrored() -> Callable[[int], rx.MirroredStrategy]:
    """Returns the strategy over the first n virtual devices; the same object for the same n."""
    return functools.cache(lambda count: rx.MirroredStrategy([f"cpu:{i}" for i in range(count)]))


@pytest.fixture(scope="session")
def per_replica() -> Callable[..., Any]:
    """Makes a per-replica value: `per_replica(strategy, component_0, component_1, ...)`; a list is an array."""

    def make(strategy: rx.Strategy, *components: Any) -> Any:
        leaves = [jnp.asarray(component) if isinstance(component, list) else component for component in components]
        return strategy.distribute_values_from_function(lambda replica: leaves[replica.replica_id_in_sync_group])

    return make


@pytest.fixture(scope="session")
def compilations() -> Callable[[], contextlib.AbstractContextManager[list[str]]]:
    """Lists what XLA compiles: `with compilations() as compiled: ...`."""

    @contextlib.contextmanager
    def counting() -> Iterator[list[str]]:
        compiled: list[str] = []

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                message = record.getMessage()
                if message.startswith("Compiling "):
                    compiled.append(message)

        listener = Listener()
        logging.getLogger("jax").addHandler(listener)
        try:
            with jax.log_compiles():
                yield compiled
        finally:
            logging.getLogger("jax").removeHandler(listener)

    return counting


@pytest.fixture(autouse=True)
def leave_nothing_behind() -> Iterator[None]:
    """Fails a test that leaks a thread, an environment variable, a strategy, a phase, or an unfinished save."""
    threads = set(threading.enumerate())
    environment = _environment()
    phase = activity.now.at[0]
    yield
    leaks = [
        *_leaked_phase(phase),
        *_leaked_strategy(),
        *_leaked_eagerness(),
        *_leaked_environment(environment),
        *_leaked_threads(threads),
        *_leaked_saves(),
    ]
    if leaks:
        pytest.fail("The test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


def _leaked_phase(before: str) -> list[str]:
    phase = activity.now.at[0]
    if phase == before:
        return []
    activity.now.at = (before, time.monotonic())
    return [f"the phase {phase!r} of this process, which was in {before!r}"]


def _leaked_strategy() -> list[str]:
    if not rx.has_strategy():
        return []
    leaked = rx.get_strategy()
    with contextlib.suppress(RuntimeError):  # One that was entered with `with` nothing public takes off again.
        rx.set_strategy(None)
    return [f"the current strategy {leaked!r}"]


def _leaked_eagerness() -> list[str]:
    if not rx.config.runs_eagerly():
        return []
    rx.config.run_eagerly(False)
    return ["rx.config.run_eagerly(True)"]


def _leaked_saves() -> list[str]:
    """What would make the process of the tests end with 1: failures that no test has seen."""
    left = [key for key in ending._unfinished if not isinstance(key, threading.Thread)]
    for key in left:
        ending.finished(key)
    return [f"{key!r}, whose failure nobody has seen" for key in left]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_THE_TESTS_DOING)}


def _leaked_environment(before: dict[str, str]) -> list[str]:
    after = _environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"the environment variable {name}={after.get(name)!r} (was {before.get(name)!r})" for name in changed]


def _leaked_threads(before: set[threading.Thread]) -> list[str]:
    """Threads that outlive the test: non-daemon ones, and replicax's own of either kind."""
    deadline = time.monotonic() + SECONDS_FOR_THREADS_TO_END

    def leaked() -> list[threading.Thread]:
        started = [thread for thread in threading.enumerate() if thread not in before]
        return [thread for thread in started if not thread.daemon or thread.name.startswith("replicax")]

    if leaked():
        gc.collect()  # A pool in the frames of an error ends when the error is collected.
    while leaked() and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"the thread {thread.name!r}" for thread in leaked()]
