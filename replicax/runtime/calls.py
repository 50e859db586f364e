"""The calls of a compiled program: each is noted, and before the first the workers compare their programs.

The arguments that each worker makes for itself, such as numbers, are compared with the programs, and later noted with
each call. A call is noted before this worker waits for the others. So one that has come to something else is named
within seconds, and not when the wait has taken too long.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np

from replicax.runtime import clock
from replicax.runtime.activity import (
    COMPILE,
    IDLE,
    START,
    STEP,
    WAIT,
    ProgramMonitor,
    class_of,
    is_computed,
    now,
    phase,
)
from replicax.runtime.call_order import ArgumentValue, CallDescription
from replicax.runtime.garbage import collected_later

if TYPE_CHECKING:
    from replicax.runtime.samples import Sample, Samples

# XLA identifies a Python callback by a number or an address in the process.
_CALLBACK = re.compile(r"(custom_call @\w*python\w*callback\w*\(.*?)(index = \d+|\"\d{5,}\")")
_LARGEST_CONSTANT = 32  # elements; a larger constant is not in the text, and its bytes in memory are hashed
_LEFT_OUT = "__elided__"


def fingerprint(lowered: jax.stages.Lowered) -> str:
    """Returns the hash of a lowered program and the arrays that it closes over."""
    program: Any = lowered.compiler_ir("stablehlo")
    module = program.operation
    text = module.get_asm(large_elements_limit=_LARGEST_CONSTANT)
    found = hashlib.sha256(_CALLBACK.sub(r"\1", text).encode())
    if _LEFT_OUT in text:
        for constant in _constants(module):
            found.update(constant)
    return found.hexdigest()[:16]


def _constants(operation: Any) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the larger constants of a program, in its order."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == "stablehlo.constant":
                    yield from _large(inner.operation)
                else:
                    yield from _constants(inner.operation)


def _large(constant: Any) -> Iterator[bytes | memoryview]:
    try:
        value = constant.attributes["value"]
        if len(value) > _LARGEST_CONSTANT and not value.is_splat:
            yield np.ascontiguousarray(value).data.cast("B")
    except (TypeError, ValueError, BufferError):  # MLIR's Python cannot give such numbers to NumPy: complex, bfloat16.
        yield constant.get_asm().encode()


class _ComparedProgram(NamedTuple):
    """A program that the workers have compared: its fingerprint, and what is noted of each call."""

    fingerprint: str
    program: CallDescription


class Calls:
    """The calls of one compiled function."""

    def __init__(self, name: str, shared: bool):
        self._name, self._shared = name, shared
        self._prepared: dict[Hashable, _ComparedProgram] = {}
        self._samples: Samples | None = None
        self._own: _OwnCall | None = None
        self._is_new = True

    def one(self) -> AbstractContextManager[Call | None]:
        """Returns a context manager for one call; it yields None if nobody wants to know of the call."""
        was_new, self._is_new = self._is_new, False
        if self._shared:
            return Call(self._name, self._prepared, COMPILE if was_new else STEP, samples=self._sampled())
        if was_new:
            return _first(self._name)
        if clock.running is None or get_ident() != now.thread:
            return _NOTHING
        if self._own is None:
            from replicax.runtime.samples import Samples  # A step outside of jobs needs none of it.

            self._own = _OwnCall(self._name, Samples(self._name, False))
        return self._own

    def _sampled(self) -> Samples | None:
        """Returns what decides which calls are awaited; None if no ledger is kept."""
        if clock.running is None:
            return None
        if self._samples is None:
            from replicax.runtime.samples import Samples

            self._samples = Samples(self._name, True)
        return self._samples


def note_outside(what: str, kind: str) -> None:
    """Notes what all processes do together outside of programs, where each waits for the others."""
    # `what` is for people: it may differ between processes, as the names of folders do. `kind` does not: processes that
    # do things of different kinds would wait for each other in vain.
    running = now.monitor
    if running is not None:
        running.note_outside(what, kind)


def together(name: str, what: str = "") -> Call:
    """Returns a context manager for a computation of all processes that is compiled operation by operation."""
    # Before the first of each name the processes wait for each other: the connections of collectives between CPUs,
    # which the first one opens, wait 30 seconds for the others and no longer. `what` distinguishes it from others of
    # its name, as shapes do, and is the same in all processes.
    return Call(name, {}, STEP, CallDescription.of(name, what))


def _no_arguments(is_first: bool) -> tuple[ArgumentValue, ...]:
    return ()


class Call:
    """One call of a program that all processes run together."""

    __slots__ = ("_before", "_name", "_phase", "_prepared", "_program", "_sample", "_samples")

    def __init__(
        self,
        name: str,
        prepared: dict[Hashable, _ComparedProgram],
        phase: str,
        program: CallDescription | None = None,
        samples: Samples | None = None,
    ):
        self._name, self._prepared, self._phase, self._program = name, prepared, phase, program
        self._before: str | None = None
        self._samples, self._sample = samples, cast("Sample | None", None)

    def __enter__(self) -> Call:
        now.check()
        if get_ident() == now.thread:
            before = now.at[0]
            self._before = IDLE if before == START else before
            now.program, now.fingerprint = self._name, ""
            now.called, now.calls = self._turn(), now.calls + 1
            now.result = None
            if self._program is not None:
                self._begin(self._program)
        return self

    def _turn(self) -> float:
        """Begins the phase of the call, and tells the ledger; returns when."""
        running = clock.running
        if running is None or self._samples is None or self._phase != STEP:
            return now.turn(self._phase)
        time_now = monotonic()
        running.step(self._name, time_now)
        now.at = (STEP, time_now)
        if time_now >= self._samples.due:
            self._sample = self._samples.begun(running, time_now, _last_result())
        return time_now

    def _begin(self, program: CallDescription) -> None:
        """Notes a computation that is not compiled as a whole; before the first of its name, waits for the others."""
        running = now.monitor
        _note(running, program)
        if running is None or not running.is_new(self._name):
            return
        index = running.announce(self._name, program.what)
        self._go_on(WAIT)
        try:
            running.compare(index, wait=True)
        except BaseException:
            self.__exit__(None, None, None)  # A block that is not entered is not left either.
            raise
        self._go_on(STEP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                now.explain(error)
        finally:
            if self._before is not None:
                if self._sample is not None:
                    self._sample.end(_last_result())
                now.go_on(self._before, self._name)
                if self._phase == COMPILE:
                    clock.made(self._name)

    def prepare(
        self,
        lower: Callable[[], jax.stages.Lowered] | None,
        signature: Callable[[], Hashable] = tuple,
        arguments: Callable[[bool], tuple[ArgumentValue, ...]] = _no_arguments,
    ) -> None:
        """Notes the call. The first call of a program compiles it, and compares it with the other workers'."""
        # `lower` is None if this process does not run the program, or it is not compiled; `signature` returns what
        # distinguishes the programs of this function, such as shapes; `arguments` those that each process makes for
        # itself, at the first call in full.
        running = now.monitor
        if running is None:
            if self._before is not None:
                now.noted += 1
            return
        key = signature()
        found = self._prepared.get(key)
        if found is None:
            self._prepared[key] = self._compared(running, lower, arguments(True))
        else:
            self._note(running, found, arguments(False))

    def _note(self, running: ProgramMonitor, found: _ComparedProgram, arguments: tuple[ArgumentValue, ...]) -> None:
        if self._before is not None:
            now.fingerprint = found.fingerprint
            _note(running, found.program.given(arguments))

    def _compared(
        self,
        running: ProgramMonitor,
        lower: Callable[[], jax.stages.Lowered] | None,
        arguments: tuple[ArgumentValue, ...],
    ) -> _ComparedProgram:
        with phase(COMPILE), collected_later():
            lowered = lower() if lower is not None else None
            printed = fingerprint(lowered) if lowered is not None else ""
            index = running.announce(self._name, printed, arguments)
            # The index identifies the program, since a process that does not run it does not know its fingerprint.
            found = _ComparedProgram(printed, CallDescription.of(self._name, f"program {index + 1}"))
            self._note(running, found, ())
            running.compare(index, wait=False)
            if lowered is not None:
                # Compiling is slow, so it comes before others wait. The call finds the result in JAX's cache.
                lowered.compile()
        self._go_on(WAIT)
        running.compare(index, wait=True)
        self._go_on(STEP)
        return found

    def _go_on(self, phase: str) -> None:
        if self._before is not None:
            now.called = now.turn(phase)

    def sent(self, result: jax.Array | None) -> None:
        """Notes an array that the program computes. Until it is ready, this process waits for the devices."""
        if self._before is not None and result is not None:
            now.result = _weak(result)


class _OwnCall(Call):
    """The calls of a program that only this process runs, one after the other: the ledger alone wants to know of them.

    The phase stays what it is: in such a call, however long, no process waits for others.
    """

    __slots__ = ("_last", "_result")

    _samples: Samples

    def __init__(self, name: str, samples: Samples):
        super().__init__(name, {}, STEP, samples=samples)
        self._result: jax.Array | None = None
        self._last: weakref.ref[jax.Array] | None = None  # of the last call

    def __enter__(self) -> _OwnCall:
        running = clock.running
        if running is not None:
            at = monotonic()
            running.step(self._name, at)
            if at >= self._samples.due:
                self._sample = self._samples.begun(running, at, None if self._last is None else self._last())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        result, self._result = self._result, None
        if self._sample is not None:
            self._sample.end(result)
            self._sample = None
        running, self._last = clock.running, None
        if running is not None:
            self._last = _weak(result)
            computes = functools.partial(_is_computed, self._last)
            running.sent(self._name, computes, class_of(now.at[0]), monotonic())

    def prepare(
        self,
        lower: Callable[[], jax.stages.Lowered] | None,
        signature: Callable[[], Hashable] = tuple,
        arguments: Callable[[bool], tuple[ArgumentValue, ...]] = _no_arguments,
    ) -> None:
        """There is nobody to compare it with."""

    def sent(self, result: jax.Array | None) -> None:
        """Notes an array that the program computes."""
        self._result = result


def _is_computed(reference: weakref.ref[jax.Array] | None) -> bool:
    return reference is not None and is_computed(reference())


def _weak(result: jax.Array | None) -> weakref.ref[jax.Array] | None:
    try:
        return None if result is None else weakref.ref(result)
    except TypeError:  # It has no weak references.
        return None


def _last_result() -> jax.Array | None:
    return now.result() if now.result is not None else None


def place_in_program() -> tuple[int, int]:
    """Returns how far this process has come: how many calls it has made with the others, and the digest of these."""
    # Workers that do something together must have come there after the same calls. Those that have not are in different
    # places of their program, and collectives that they begin now would pair up with others. (Without a monitor there
    # is no digest.)
    running = now.monitor
    return (now.noted, 0) if running is None else running.order.last


def take_back(place: tuple[int, int]) -> None:
    """Takes back the call after `place`, if it was the last: all processes have refused it, and go on from there."""
    running = now.monitor
    if running is not None and get_ident() == now.thread and running.order.take_back(place[0] + 1):
        now.noted -= 1


def _note(running: ProgramMonitor | None, program: CallDescription) -> None:
    now.noted += 1
    if running is not None:
        running.order.note(program)


@contextlib.contextmanager
def _first(name: str) -> Iterator[None]:
    """Compiles a program that only this process runs, by its first call."""
    with phase(COMPILE), collected_later():
        yield None
    clock.made(name)


_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
