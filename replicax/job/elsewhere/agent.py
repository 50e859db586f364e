"""The actor of one worker on its machine: it starts the worker's process, passes on its output, and ends it."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from replicax.compat.ray import is_draining
from replicax.job.elsewhere.messages import (
    SAID,
    Client,
    Drains,
    Ended,
    Failed,
    HostFacts,
    News,
    Noted,
    Order,
    Output,
    Remains,
    Reply,
)
from replicax.job.elsewhere.script_files import unpack_sources
from replicax.job.processes.events import Event, FoundSilent, ProcessEnded, ScriptEnded
from replicax.job.processes.job_ledger import NewLines
from replicax.job.processes.output import NoLog
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.processes import Outlets, Process
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, Program, common_environment

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_NOTICES = 2.0  # Each look asks Ray's head; machines are told half a minute before they go, or more.
# Whoever starts several servers numbers them; the numbers of a job's workers are others.
_RANKS = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_MOST_BYTES = 4 * 2**20  # A worker that prints more than the client takes has to wait, as with any pipe.


class WorkerAgent:
    """Runs one process after the other for a client, each fresh, so that JAX starts anew. Several threads call it."""

    def __init__(self, client: Client, lease_s: float):
        self._client, self._lease_s = client, lease_s
        self._asked = time.monotonic()
        # The system ends a child with the thread that started it: this one lives as long as the process.
        self._starter = ThreadPoolExecutor(1, "replicax-host")
        self._guard = Guard()
        self._ports = contextlib.ExitStack()
        self._process: Process | None = None
        self._outbox = Outbox()
        self._result: BinaryIO | None = None
        self._sources: str | None = None
        self._kept: _Kept | None = None  # the ledger of the process
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_client, name="replicax-host-lease", daemon=True)
        self._watch.start()
        self._notice = threading.Thread(target=self._watch_machine, name="replicax-host-notice", daemon=True)
        self._notice.start()

    def client(self) -> Client:
        """Returns whom it serves."""
        return self._client

    def about(self) -> HostFacts:
        """Returns where it runs."""
        import ray

        return HostFacts(ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id(), os.getpid())

    def reserve_port(self, ip: str) -> int:
        """Returns a free port at the address, kept from others until the next process ends."""
        self._ports.close()
        (port,) = self._ports.enter_context(reserved_ports(1, ip))
        return port

    def start(self, order: Order, payload: bytes | None = None) -> int:
        """Starts the process of an order, and returns its id; `payload` is the pickled call, or `packed_sources`."""
        self._asked = time.monotonic()
        return self._starter.submit(self._start, order, payload).result()

    def _start(self, order: Order, payload: bytes | None) -> int:
        self._end()
        self._outbox = Outbox()
        common = common_environment(_own_environment(), order.devices, order.token, order.attempt)
        task = order.task.with_environment({**common, **order.task.environment})
        if order.keeps_ledger:
            self._kept = _Kept(self._guard, task.log_name)
        log = self._kept or NoLog()
        outlets = Outlets((_Relay(self._outbox, False), _Relay(self._outbox, True)), log, order.size)
        with contextlib.ExitStack() as files:
            program = Program(order.kind, order.target, order.arguments)
            if payload is not None and order.kind != "call":
                program, task = self._unpacked(payload, program, task)
            elif payload is not None:
                # Files without names: nothing is left of them, whoever is killed.
                given = files.enter_context(tempfile.TemporaryFile())
                given.write(payload)
                given.flush()
                given.seek(0)
                self._result = tempfile.TemporaryFile()  # noqa: SIM115  # until the result is read
                numbers = given.fileno(), self._result.fileno()
                program = Program(order.kind, ":".join(map(str, numbers)), order.arguments, numbers)
            self._process = Process(task, program, outlets, self._outbox, self._guard)
        return self._process.pid

    def _unpacked(self, sources: bytes, program: Program, task: PlannedTask) -> tuple[Program, PlannedTask]:
        """Returns the program and task for a script or module among these sources."""
        self._sources = folder = tempfile.mkdtemp(prefix="replicax-sources-")
        self._guard.watch_folder(folder)
        unpack_sources(sources, folder)
        if program.kind == "file":
            return program._replace(target=os.path.join(folder, program.target)), task
        found = os.pathsep.join(filter(None, [folder, task.environment.get("PYTHONPATH")]))
        # Otherwise the working directory there would come first.
        first = {"PYTHONPATH": found, "PYTHONSAFEPATH": "1"}
        return program, task.with_environment({**task.environment, **first})

    def news(self, wait_s: float) -> Reply:
        """Returns what has happened since it was asked before; waits for something, at most so many seconds."""
        self._asked = time.monotonic()
        news = self._outbox.take(wait_s)
        kept = self._kept  # Another thread may tidy it up.
        if kept is not None:
            news += kept.take()
        self._asked = time.monotonic()
        return Reply(time.monotonic(), news)

    def send(self, number: int) -> None:
        """Sends the process a signal."""
        process = self._process  # Another thread may tidy it up.
        if process is not None:
            process.send(number)

    def kill(self) -> None:
        """Kills the process and all that it started."""
        process = self._process
        if process is not None:
            process.kill()

    def tidy_up(self) -> Remains:
        """Ends what a process that has ended leaves behind, and returns what it has computed."""
        assert self._process is not None
        process, result = self._process, None
        returncode = process.tidy_up()
        if self._result is not None:
            self._result.seek(0)
            result = self._result.read() or None
        if self._kept is not None:
            for noted in self._kept.take():
                self._outbox.put_noted(noted)
        self._forget()
        self._ports.close()
        return Remains(returncode, process.has_left, result)

    def close(self) -> None:
        """Ends the process and all threads."""
        self._closed.set()
        self._end()
        self._ports.close()
        self._guard.close()
        self._starter.shutdown()
        self._watch.join()
        self._notice.join()

    def _end(self) -> None:
        """Ends an earlier process, if there is one that its client has not tidied up."""
        if self._process is not None:
            self._outbox.close()
            self._process.kill()
            self._process.tidy_up()
        self._forget()

    def _forget(self) -> None:
        if self._result is not None:
            self._result.close()
        if self._sources is not None:
            shutil.rmtree(self._sources, ignore_errors=True)
            self._guard.forget_folder(self._sources)
        if self._kept is not None:
            self._kept.delete()
        self._process = self._result = self._sources = self._kept = None

    def _watch_client(self) -> None:
        """Kills the process if its client, whose network may be lost, has asked for no news for `lease_s`."""
        while not self._closed.wait(min(_SECONDS_BETWEEN_LOOKS, self._lease_s)):
            process = self._process  # Another thread may tidy it up.
            if process is not None and time.monotonic() - self._asked > self._lease_s:
                self._outbox.close()
                process.kill()

    def _watch_machine(self) -> None:
        """Tells the process by SIGTERM, and the client, that Ray has been told that this machine is about to go."""
        told: Process | None = None
        while not self._closed.wait(_SECONDS_BETWEEN_NOTICES):
            process, outbox = self._process, self._outbox
            if process is not None and process is not told and is_draining():
                told = process
                outbox.drain()
                process.send(signal.SIGTERM)


def _own_environment() -> dict[str, str]:
    """Returns the machine's environment without the server's rank, and what Ray has set, above all its secret."""
    return {name: value for name, value in os.environ.items() if name not in _RANKS and not name.startswith("RAY_")}


class Outbox:
    """The news for the client, until that asks for it, with room for some output; the events of a `Process` go in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: collections.deque[News] = collections.deque()
        self._bytes = 0
        self._open = True

    def put(self, event: Event) -> None:
        """Takes an event of the process."""
        if isinstance(event, ScriptEnded):
            self._put(Failed(event.code, event.time, event.process.last_words, event.blames))
        elif isinstance(event, ProcessEnded):
            self._put(Ended(event.time))
        elif isinstance(event, FoundSilent):
            self._put(event)
        elif isinstance(event, SAID):
            self._put(event._replace(process=None))

    def drain(self) -> None:
        """Takes the notice that the machine is about to go."""
        self._put(Drains())

    def put_output(self, chunk: bytes, error: bool) -> None:
        """Takes some output; waits while there is too much of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < _MOST_BYTES or not self._open)
            self._bytes += len(chunk)
            self._put(Output(chunk, error))

    def put_noted(self, noted: Noted) -> None:
        """Takes lines of the ledger."""
        self._put(noted)

    def take(self, wait_s: float) -> tuple[News, ...]:
        """Returns all news; waits for some, at most so many seconds."""
        end = time.monotonic() + wait_s
        with self._changed:
            self._changed.wait_for(lambda: self._news, max(0.0, end - time.monotonic()))
            taken = tuple(self._news)
            self._news.clear()
            self._bytes = 0
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Lets no thread wait in `put_output` any more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _put(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
            self._changed.notify_all()


class _Kept(NoLog):
    """The log of a process that keeps a ledger: none, but a folder in which the ledger is until the client has it."""

    def __init__(self, guard: Guard, log_name: str):
        self._guard, self._folder = guard, tempfile.mkdtemp(prefix="replicax-ledger-")
        guard.watch_folder(self._folder)
        self.path = Path(self._folder, log_name)
        self._new = NewLines(Path(self._folder))
        self._lock = threading.Lock()

    def take(self) -> tuple[Noted, ...]:
        """Returns the lines that have been written since."""
        with self._lock:
            try:
                return tuple(Noted(*each) for each in self._new.take())
            except OSError:  # The disk is broken: then there are no lines.
                return ()

    def delete(self) -> None:
        """Deletes the folder, when the process has ended."""
        with self._lock:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._guard.forget_folder(self._folder)


class _Relay:
    """One of the two streams of a worker's output, on its way to the client."""

    def __init__(self, outbox: Outbox, error: bool):
        self._outbox, self._error = outbox, error
        self.last_lines: collections.deque[str] = collections.deque(maxlen=0)  # The client has them.

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Takes some output."""
        del final
        if chunk:
            self._outbox.put_output(chunk, self._error)
