"""Exchanging values between processes: each one tells its own and gets all others', by a deadline.

The values travel through the host, in a key-value store that all processes reach; no device takes part. So any thread
may exchange values while the devices compute, and what could break a collective of the devices (arrays of different
shapes, another program) can be compared first.

All processes make an `Exchange` with the same prefix, which no other exchange has, and use the same stages in the same
order. Three processes that compare a path, for example, all call `exchange("path", own_path)`:

1. Each process stores its value under `prefix/path/<its index>` (`tell`).
2. Each process waits for the values of the others (`collect`). It looks them up again and again, so that it notices
   Ctrl-C, a closed exchange and the deadline.
3. If process 2 never comes, processes 0 and 1 raise `AbsentError(missing=(2,))` when the time is up.

The errors here hold data. Callers translate them into errors that tell users what to do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import jax

from replicax.cluster.key_value_store import ServiceStore, Store, get_pieces, put_pieces
from replicax.cluster.patience import CONNECTING, Patience
from replicax.cluster.signing import SignedStore
from replicax.compat.jax_processes import is_refusal
from replicax.errors import BarrierTimeoutError, ContextError

_T = TypeVar("_T")
# How long one look-up waits: longer and longer, since on a slow network no answer arrives in a short time.
_LOOK_UP_S, _LONGEST_LOOK_UP_S = 0.5, 4.0  # so that a closed exchange and Ctrl-C are heard
_ONE_LOOK_S = 0.001  # to read what is there
_LONGEST_WAIT_S = 24 * 60 * 60.0  # The watch over the processes ends a job that stands still long before.
_LONGEST_PROBLEM = 2000
_MOST_DIRECT = 8  # processes that ask each other; of more, the first collects for all
_SUCCESS = b"\0"  # begins the message of a process whose action has not failed
_ABSENT = (2**32 - 1).to_bytes(4, "big")  # begins what is no list of messages

# Makes a context manager that is open during a wait, from the stage and the processes waited for; it tells the watch
# over the processes (`health`), which lies above.
Waiting = Callable[[str, Sequence[int]], contextlib.AbstractContextManager[object]]


def _unnoticed(stage: str, processes: Sequence[int]) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


def by_value(processes: Iterable[int], values: Iterable[str]) -> dict[str, list[int]]:
    """Returns for each value the indices of the processes that have it."""
    owners: dict[str, list[int]] = {}
    for process, value in zip(processes, values, strict=True):
        owners.setdefault(value, []).append(process)
    return owners


def listed(owners: Mapping[str, Sequence[int]]) -> str:
    """Returns who has which value, for messages: `"process 0, 2: a; process 1: b"`."""
    return "; ".join(f"process {', '.join(map(str, who))}: {value}" for value, who in owners.items())


class ExchangeError(Exception):
    """An exchange has failed; its subclasses say how."""


class AbsentError(ExchangeError):
    """Some processes have not told their values in time."""

    def __init__(self, stage: str, missing: Sequence[int]):
        self.stage, self.missing = stage, tuple(missing)
        super().__init__(f"{', '.join(f'process {process}' for process in missing)} did not come to {stage!r} in time.")


class FailedElsewhereError(ExchangeError):
    """Another process has failed in what all processes do together."""

    def __init__(self, stage: str, process: int, problem: str):
        self.stage, self.process, self.problem = stage, process, problem  # the first that failed; its error as a text
        super().__init__(f"Process {process} failed at {stage!r}: {problem}")


class ClosedError(ExchangeError):
    """The exchange was closed while a thread waited in it; the thread should end."""


class Exchange:
    """Exchanges values among some processes, in stages that all of them go through."""

    def __init__(
        self,
        prefix: str,
        process: int,
        processes: Sequence[int],
        *,
        store: Store | None = None,
        timeout_s: float = _LONGEST_WAIT_S,
        closed: threading.Event | None = None,
        waiting: Waiting = _unnoticed,
        patience: Patience = CONNECTING,
    ):
        self.process, self.processes = process, tuple(processes)
        self._waiting = waiting
        self._prefix, self._timeout_s, self._patience, self._closed = prefix, timeout_s, patience, closed
        self._store = SignedStore(ServiceStore() if store is None else store)

    def tell(self, stage: str, value: bytes = b"") -> None:
        """Stores the value of this process at a stage; does not wait."""
        key = self._key(stage, self.process)
        self._reached(lambda: put_pieces(self._store, key, value))

    def collect(self, stage: str, processes: Sequence[int] | None = None, longer_s: float = 0.0) -> list[bytes]:
        """Waits for the values of processes, all by default, at a stage; returns them in the order of `processes`."""
        deadline = time.monotonic() + self._timeout_s + longer_s
        whose = self.processes if processes is None else processes
        # When the time is up, the processes after the first missing one are looked up once, to find all that miss.
        with self._waiting(stage, whose):
            found = [
                self._waited(functools.partial(get_pieces, self._store, self._key(stage, each)), deadline)
                for each in whose
            ]
        missing = [process for process, value in zip(whose, found, strict=True) if value is None]
        if missing:
            raise AbsentError(stage, missing)
        return [value for value in found if value is not None]

    def exchange(self, stage: str, value: bytes = b"") -> list[bytes]:
        """Tells the value of this process and returns those of all, in their order."""
        self.tell(stage, value)
        return self.collect_all(stage, value)

    def collect_all(self, stage: str, value: bytes) -> list[bytes]:
        """Returns the values of all at a stage, in their order, where this process has told its own."""
        # Where n processes each ask all others, that is n * n questions to one service.
        if self._goes_through_first:
            return self._collect_through_first(stage, value)
        others = [process for process in self.processes if process != self.process]
        found = dict(zip(others, self.collect(stage, others), strict=True))
        return [found.get(process, value) for process in self.processes]

    def exchange_through_first(self, stage: str, value: bytes = b"") -> list[bytes]:
        """Exchanges through the first process, so that each other one waits for one message, and not for all."""
        if self.process != self.processes[0]:
            self.tell(stage, value)
        return self._collect_through_first(stage, value)

    @property
    def _goes_through_first(self) -> bool:
        return len(self.processes) > _MOST_DIRECT

    def _collect_through_first(self, stage: str, value: bytes) -> list[bytes]:
        first = self.processes[0]
        everything = f"{stage}/all"
        if self.process != first:
            # The first also tells which processes have not come, when its time is up. If it has not come itself, the
            # others miss it alone.
            found = self.collect(everything, [first], self._patience.silence)[0]
            if found.startswith(_ABSENT):
                raise AbsentError(stage, [int(each) for each in found[len(_ABSENT) :].split()])
            return separated(found)
        try:
            values = [value, *self.collect(stage, self.processes[1:])]
        except AbsentError as error:
            self.tell(everything, _ABSENT + " ".join(map(str, error.missing)).encode())
            raise
        self.tell(everything, joined(values))
        return values

    def from_first(self, stage: str, value: bytes = b"") -> bytes:
        """Returns the value of the first process in every process; it does not wait for the others."""
        if self.process != self.processes[0]:
            return self.collect(stage, self.processes[:1])[0]
        self.tell(stage, value)
        return value

    def run(self, stage: str, action: Callable[[], _T]) -> _T:
        """Calls `action`, waits until all processes have called theirs, and returns the result of this process's."""
        result: list[_T] = []

        def called() -> bytes:
            result.append(action())
            return b""

        self.run_and_tell(stage, called)
        return result[0]

    def run_and_tell(self, stage: str, action: Callable[[], bytes]) -> list[bytes]:
        """Calls `action` and returns what it has returned in each process, when all have called theirs."""
        try:
            own = action()
        except Exception as error:
            try:
                self.exchange(stage, f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM].encode())
            except AbsentError as absent:
                error.add_note(str(absent))
            raise
        told = self.exchange(stage, _SUCCESS + own)
        for process, message in zip(self.processes, told, strict=True):
            if not message.startswith(_SUCCESS):
                raise FailedElsewhereError(stage, process, message.decode())
        return [message.removeprefix(_SUCCESS) for message in told]

    def decide(self, stage: str, value: bytes) -> bytes:
        """Returns one value for all processes that call it: that of whichever comes first. It does not wait."""
        key = f"{self._prefix}/{stage}/decided"
        while True:
            if self._reached(lambda: self._store.put_if_absent(key, value)):
                return value
            found = self.decided(stage, _LOOK_UP_S)
            if found is not None:
                return found

    def decided(self, stage: str, wait_s: float = _ONE_LOOK_S) -> bytes | None:
        """Returns what some process has decided at a stage; None if none has within `wait_s` seconds."""
        return self._reached(lambda: self._store.get(f"{self._prefix}/{stage}/decided", wait_s))

    def forget_read(self, stage: str) -> None:
        """Removes what is left at a stage that all have collected; each of them calls it."""
        if not self._goes_through_first:
            self.forget(stage, self.process)
        elif self.process == self.processes[0]:
            self.forget(stage)

    def forget(self, stage: str, process: int | None = None) -> None:
        """Removes what the processes have stored at a stage, or only what one of them has, when all have read it."""
        key = f"{self._prefix}/{stage}" if process is None else self._key(stage, process)
        self._reached(lambda: self._store.delete(key))

    def _key(self, stage: str, process: int) -> str:
        return f"{self._prefix}/{stage}/{process}"

    def _waited(self, look_up: Callable[[float], bytes | None], deadline: float) -> bytes | None:
        """Looks something up until it is there; returns None if that takes longer than the deadline allows."""
        longest = _LOOK_UP_S
        while True:
            remaining = deadline - time.monotonic()
            seconds = max(_ONE_LOOK_S, min(longest, remaining))
            value = self._reached(functools.partial(look_up, seconds))
            if value is not None:
                return value
            if self._closed is not None and self._closed.is_set():
                raise ClosedError
            _of_this_process.check()
            if remaining <= 0:
                return None
            longest = min(2 * longest, _LONGEST_LOOK_UP_S)

    def _reached(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except jax.errors.JaxRuntimeError as error:
            said = "was refused by" if is_refusal(error) else "cannot reach"
            why = str(error).partition("\n")[0]  # gRPC's own notes follow.
            raise ContextError(
                f"Process {self.process} {said} the coordination service, which runs in process 0, when it was to "
                f"exchange values with the other processes: {why}. If process 0 has ended, its output says why."
            ) from error


class NumberedExchanges:
    """Exchanges of this process with all others; every process makes the same ones in the same order."""

    def __init__(
        self,
        process: int,
        count: int,
        store: Store | None = None,
        timeout_s: float = _LONGEST_WAIT_S,
        closed: threading.Event | None = None,
    ):
        self._exchange = Exchange(
            "replicax/exchange", process, range(count), store=store, timeout_s=timeout_s, closed=closed
        )
        self._timeout_s = timeout_s
        self._numbers = itertools.count()

    def all(self, message: bytes) -> list[bytes]:
        """Returns the messages of all processes, in their order, after all have called it."""
        number = next(self._numbers)
        process = self._exchange.process
        try:
            messages = self._exchange.exchange_through_first(str(number), message)
        except AbsentError as error:
            name = f"exchange of values {number + 1}"
            raise BarrierTimeoutError(name, round(1000 * self._timeout_s), process, error.missing) from None
        if process == 0 and number > 0:  # All have come to this one, so all have read the one before.
            self._exchange.forget(str(number - 1))
        return messages


def _nothing() -> None:
    pass


class _OfThisProcess:
    """The exchanges of this process; made when the first one is wanted, since JAX must be connected by then."""

    def __init__(self) -> None:
        self._exchanges: NumberedExchanges | None = None
        self.closed: threading.Event | None = None
        self.check: Callable[[], None] = _nothing  # raises an error if no thread here should wait for others any more
        self.begins: Callable[[], None] = _nothing  # called before each exchange of all processes

    def get(self) -> NumberedExchanges:
        if self._exchanges is None:
            self._exchanges = NumberedExchanges(jax.process_index(), jax.process_count(), closed=self.closed)
        return self._exchanges

    def begin_anew(self, closed: threading.Event) -> None:
        self._exchanges, self.closed = None, closed


_of_this_process = _OfThisProcess()


def begin_anew(closed: threading.Event) -> None:
    """Starts the exchanges of this process anew, as JAX connects it with others; `closed` is set when these change."""
    _of_this_process.begin_anew(closed)


def accompany(check: Callable[[], None], begins: Callable[[], None]) -> None:
    """Sets what the exchanges of this process call: `check` while they wait, and `begins` before `exchanged`."""
    _of_this_process.check, _of_this_process.begins = check, begins


def closing() -> threading.Event | None:
    """Returns what is set when the processes are about to be others; None where they stay the same."""
    return _of_this_process.closed


def exchanged(message: bytes) -> list[bytes]:
    """Returns the messages of all processes, in their order; all processes must call this together."""
    if jax.process_count() == 1:
        return [message]
    _of_this_process.begins()
    return _of_this_process.get().all(message)


# Several messages as one.


def joined(messages: Sequence[bytes]) -> bytes:
    """Returns messages as one. It goes to all processes, and most tell nearly the same, so it is compressed."""
    lengths = b"".join(len(message).to_bytes(8, "big") for message in messages)
    return zlib.compress(b"".join([len(messages).to_bytes(4, "big"), lengths, *messages]), level=1)


def separated(message: bytes) -> list[bytes]:
    """Returns the messages that `joined` made one."""
    joined = zlib.decompress(message)
    count = int.from_bytes(joined[:4], "big")
    lengths = [int.from_bytes(joined[4 + 8 * i : 12 + 8 * i], "big") for i in range(count)]
    ends = list(itertools.accumulate(lengths, initial=4 + 8 * count))
    return [joined[start:end] for start, end in itertools.pairwise(ends)]
