"""What a job of up to 10,000 processes costs one of them: rendezvous, watcher, job store, exchanges, coordinator.

    python benchmarks/fake_peers.py [--processes 100,300,1000,3000,10000] [--only rendezvous,watcher]

The process that is measured is real code in this process. The others are fakes in another process on this machine,
which speak the same protocol over sockets on 127.0.0.1 (rendezvous, watcher, store), or a store in memory that counts
(exchanges), or nothing but events (coordinator of parameter servers). Printed are seconds of CPU of the measured
process, messages and bytes that it sends and receives, and the exponent of their growth: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from timing import exponent, print_table

Figures = dict[str, float]


#: What a process tells of itself at the rendezvous.
INFO = {"health address": ["10.0.0.1", 45678], "same stall_timeout": 300.0, "same version of JAX": "0.10.2"}


# The fakes, in a process of their own.


def fake_rendezvous(port: int, processes: int) -> None:
    """Plays processes 1 to n-1 at the rendezvous of process 0; prints how many messages and bytes it has got."""
    selector, heard, got = selectors.DefaultSelector(), {}, {"messages": 0, "bytes": 0}
    came: dict[socket.socket, int] = {}
    told: set[int] = set()

    def join(process: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port))
        greeting = {"process": process, "processes": processes, "token": "", "info": INFO}
        connection.sendall(json.dumps(greeting).encode() + b"\n")
        heard[connection], came[connection] = bytearray(), process
        selector.register(connection, selectors.EVENT_READ)

    def listen(seconds: float) -> None:
        for key, _ in selector.select(seconds):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                received = connection.recv(2**20)
            except ConnectionError:  # Process 0 has closed it before it has read all.
                received = b""
            if not received:
                selector.unregister(connection)
                connection.close()
                del heard[connection]
                if (process := came.pop(connection)) not in told:  # Process 0 had too many strangers: come again.
                    join(process)
                continue
            got["bytes"] += len(received)
            heard[connection] += received
            answer_lines(connection)

    def answer_lines(connection: socket.socket) -> None:
        while (end := heard[connection].find(b"\n") + 1) > 0:
            line = bytes(heard[connection][:end])
            del heard[connection][:end]
            got["messages"] += 1
            if line.startswith(b'{"ask"'):
                asked = line[8 : line.index(b",")]
                connection.sendall(b'{"here": ' + asked + b"}\n")
            elif line.startswith(b'{"go"'):
                told.add(came[connection])
                connection.sendall(b'{"through": true}\n')

    for process in range(1, processes):
        join(process)
        listen(0)
    while len(told) < processes - 1:
        listen(1.0)
    for connection in heard:
        connection.close()
    print(json.dumps(got))


def fake_workers(seconds: float) -> None:
    """Answers status questions of a watcher like many workers would; prints its port, then the number of questions."""
    import dataclasses

    from replicax.group.health.status import Status

    body = json.dumps(dataclasses.asdict(Status("wait", 0.1, 5, 4, None, "step", "f" * 16, quiet=0.0)))
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    selector, questions, end = selectors.DefaultSelector(), 0, time.monotonic() + seconds
    selector.register(listener, selectors.EVENT_READ)
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            try:
                received = connection.recv(2**16)
            except ConnectionError:
                received = b""
            if not received:
                selector.unregister(connection)
                connection.close()
                continue
            asked = received.count(b"\r\n\r\n")
            questions += asked
            connection.sendall(answer * asked)
    print(questions)


def fake_members(address: str, processes: int, seconds: float) -> None:
    """Gives the signs of life of many members to a job store, each over a connection of its own; one falls silent."""
    from replicax.compat.jax_cliques import StoreClient
    from replicax.contracts.group import Incarnation
    from replicax.group.membership.job_store import JobStore

    begin = time.monotonic()
    members = [(JobStore(StoreClient(address, 60.0)), Incarnation(i, 0)) for i in range(processes)]
    for store, incarnation in members:
        store.enter(incarnation)
    print(time.monotonic() - begin, flush=True)
    count, end = 0, time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        for store, incarnation in members if count < BEATS_OF_SILENT else members[1:]:
            store.beat(incarnation, count, f"step {count}")
        count += 1
        time.sleep(max(0.0, SECONDS_BETWEEN_BEATS - (time.monotonic() - begin)))
    os._exit(0)  # JAX would take leave of a service for each connection.


FAKES: dict[str, Callable[..., None]] = {
    "rendezvous": fake_rendezvous,
    "workers": fake_workers,
    "members": fake_members,
}
#: Members give signs of life as often as a watcher asks for them.
SECONDS_BETWEEN_BEATS, BEATS_OF_SILENT, SILENCE_ALLOWED_S = 2.0, 3, 6.0
#: Kept to the end: JAX aborts a process whose service is gone.
SERVICES: list[object] = []


def started(fake: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts fakes in a process of their own."""
    command = [sys.executable, __file__, "--fake", fake, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# The measured process.


def rendezvous(processes: int) -> Figures:
    """Measures process 0 while all others come."""
    from replicax.cluster.rendezvous import meet

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fakes = started("rendezvous", port, processes)
    names = [f"worker:{i} at 10.0.0.1:2222" for i in range(processes)]
    begin, cpu = time.perf_counter(), time.process_time()
    meet(f"127.0.0.1:{port}", 0, names, INFO, timeout_s=250)
    figures = {"seconds": time.perf_counter() - begin, "CPU s": time.process_time() - cpu}
    got = json.loads(fakes.communicate(timeout=60)[0])
    return {**figures, "messages sent": got["messages"], "MB sent": got["bytes"] / 1e6}


def watcher(processes: int, looks: int = 3) -> Figures:
    """Measures the watcher of one worker: it asks the others, and judges; figures are for a second of a healthy job."""
    from replicax.group.health.client import Client
    from replicax.group.health.diagnosis import Limits, diagnose, disagrees
    from replicax.group.health.observer import SECONDS_BETWEEN_LOOKS, Observer
    from replicax.group.health.peers import History, Peer
    from replicax.group.health.status import status_of
    from replicax.group.health.traffic import Traffic
    from replicax.runtime.call_order import Order

    seconds = (looks + 1) * 2.2 + 3
    fakes = started("workers", seconds)
    assert fakes.stdout is not None
    port = int(fakes.stdout.readline())
    now = time.monotonic()
    peers = [
        Peer(i, Client("127.0.0.1", port, "t"), History(f"worker:{i}", "10.0.0.1:2222", now))
        for i in range(1, processes)
    ]
    limits = Limits(300.0)
    observer = Observer(0, "worker:0", "10.0.0.1:2222", peers, limits, Traffic(()), time.monotonic)
    observer.look()
    cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(looks):
        observer.look()
        workers = observer.workers(status_of())
        disagrees(Order(), 0, workers)
        diagnose(workers, limits)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    spent, passed = time.process_time() - cpu, time.perf_counter() - begin
    observer.close()
    for peer in peers:
        peer.client.close()
    questions = int(fakes.communicate(timeout=60)[0])
    return {"CPU s a second": spent / passed, "questions a second": questions / (passed * (looks + 1) / looks)}


def store(processes: int, beats: int = 8) -> Figures:
    """Measures the process that keeps a job store, in which all give signs of life and one member reads all of them."""
    from replicax.compat.jax_cliques import Service, StoreClient
    from replicax.contracts.group import Incarnation
    from replicax.group.membership.heartbeat import Watch
    from replicax.group.membership.job_store import JobStore

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    SERVICES.append(Service(address))
    fakes = started("members", address, processes, beats * SECONDS_BETWEEN_BEATS)
    assert fakes.stdout is not None
    seconds = float(fakes.stdout.readline())
    reader, watch, everybody = (
        JobStore(StoreClient(address, 60.0)),
        Watch(),
        [Incarnation(i, 0) for i in range(processes)],
    )
    watch.begin()
    last, heard, noticed = b"", time.monotonic(), math.nan
    cpu, own, begin = time.process_time(), time.thread_time(), time.perf_counter()
    while fakes.poll() is None:
        signs = reader.beats()
        if signs[everybody[0]] != last:
            last, heard = signs[everybody[0]], time.monotonic()
        if math.isnan(noticed) and watch.silent(everybody, signs, SILENCE_ALLOWED_S, SILENCE_ALLOWED_S):
            noticed = time.monotonic() - heard
        time.sleep(SECONDS_BETWEEN_BEATS / 2)
    own, passed = time.thread_time() - own, time.perf_counter() - begin
    return {
        "to come, s": seconds,
        "CPU s a second": (time.process_time() - cpu - own) / passed,
        "of a reader": own / passed,
        "noticed of allowed": noticed / SILENCE_ALLOWED_S,
    }


class CountingStore:
    """A store in which every other process has told everything already; counts what is asked."""

    def __init__(self, processes: int):
        self.messages, self.bytes, self._processes = 0, 0, processes

    def put(self, key: str, value: bytes) -> None:
        """Stores a value."""
        self.messages, self.bytes = self.messages + 1, self.bytes + len(value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Returns what any process would have told."""
        from replicax.cluster.exchange import joined

        self.messages += 1
        everything = "/all/" in key
        told = joined([b"\0same"] * self._processes) if everything else b"\0same"
        self.bytes += len(told)
        return (1).to_bytes(4, "big") + told


def exchanges(processes: int) -> Figures:
    """Counts the messages between all processes and the coordination service for a stage of a checkpoint."""
    from replicax.cluster.exchange import Exchange

    counted, begin = [], time.process_time()
    for process in (0, 1):
        store = CountingStore(processes)
        Exchange("bench", process, range(processes), store=store).run_and_tell("stage", lambda: b"same")
        counted.append((store.messages, store.bytes))
    (first, first_bytes), (other, other_bytes) = counted
    cpu = time.process_time() - begin
    return {
        "messages of the first": first,
        "of another": other,
        "of all": first + other * (processes - 1),
        "MB of all": (first_bytes + other_bytes * (processes - 1)) / 1e6,
        "CPU s": cpu,
    }


def coordinator(workers: int, rounds: int = 3) -> Figures:
    """Measures the decisions of a parameter server strategy's coordinator: microseconds a closure, with no cluster."""
    from replicax.parameter_server.actors.messages import Done, Report
    from replicax.parameter_server.scheduling.actions import SendStep
    from replicax.parameter_server.scheduling.events import PingAnswered, Scheduled, StepAnswered, Tick, WorkerStarted
    from replicax.parameter_server.scheduling.ledger import Ledger
    from replicax.parameter_server.scheduling.machine import next_state
    from replicax.parameter_server.scheduling.state import SchedulerState
    from replicax.ray_cluster.deadline import PATIENCE

    class Step:
        name = "step"

    state = SchedulerState.of(Ledger.of(workers=workers), servers=0, patience=PATIENCE)
    begin = time.process_time()
    state, actions = next_state(state, Tick(1.0))
    for action in actions:
        state, _ = next_state(state, WorkerStarted(action.actor, 1, 0))
        state, _ = next_state(state, PingAnswered(action.actor, 1, Report("node", 7, "cpu", set_up=0)))
    start, begin, done = time.process_time() - begin, time.process_time(), 0
    for _ in range(rounds):
        sent = []
        for _ in range(workers):
            state, actions = next_state(state, Scheduled(Step()))
            sent += [action.attempt for action in actions if isinstance(action, SendStep)]
        for attempt in sent:
            state, _ = next_state(state, StepAnswered(attempt, Done([], {}, {}, {}, 0, 0)))
            done += 1
    each = (time.process_time() - begin) / done
    assert done == rounds * workers
    return {"start, CPU s": start, "a closure, us": each * 1e6, "a round of all, CPU s": each * workers}


PARTS: dict[str, Callable[[int], Figures]] = {
    "rendezvous": rendezvous,
    "watcher": watcher,
    "store": store,
    "exchanges": exchanges,
    "coordinator": coordinator,
}
LIMITS = {"coordinator": 10_000}


def show(name: str, counts: Sequence[int], found: Sequence[Figures]) -> None:
    """Prints a table with the exponents, and the RESULT lines."""
    header = ("processes", *found[0])
    rows = [
        (f"{n:,}", *(f"{value:.4g}" for value in figures.values())) for n, figures in zip(counts, found, strict=True)
    ]
    exponents = {key: exponent(counts, [figures[key] for figures in found]) for key in found[0]}
    rows.append(("exponent", *(f"{value:.2f}" for value in exponents.values())))
    print_table(name, header, rows)
    for key, value in exponents.items():
        label = "".join(letter if letter.isalnum() else "_" for letter in key)
        print(f"RESULT fake_{name}_{label}_exponent {value:.2f}", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="100,300,1000,3000,10000")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--fake", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fake:
        fake, values = arguments.fake
        return FAKES[fake](*json.loads(values))
    counts = [int(count) for count in arguments.processes.split(",")]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(2**18)  # There may be thousands of threads.
    for name in arguments.only.split(","):
        fitting = [count for count in counts if name not in ("rendezvous", "watcher", "store") or count < most - 100]
        show(name, fitting, [PARTS[name](count) for count in fitting])
    if SERVICES:
        os._exit(0)


if __name__ == "__main__":
    main()
