"""Comparing programs: before one runs for the first time, its fingerprint must be the same in all workers."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from replicax.errors import ProgramMismatchError
from replicax.health.peers import Peer

# What XLA calls back by a number or an address of the process.
_CALLBACK = re.compile(r"(custom_call @\w*python\w*callback\w*\(.*?)(index = \d+|\"\d{5,}\")")
_LARGEST_CONSTANT = 32  # elements; a larger one is left out of the text, and hashed as it is in memory
_LEFT_OUT = "__elided__"
_SECONDS_BETWEEN_QUESTIONS = 0.02, 0.25


@dataclasses.dataclass(frozen=True)
class AnnouncedProgram:
    """A program that a worker is about to run for the first time.

    Attributes:
        name: Name of the function.
        fingerprint: Hash of the program; empty if this worker has no part in it.
    """

    name: str
    fingerprint: str

    def differs(self, other: AnnouncedProgram) -> bool:
        """Returns whether the two cannot be the same program."""
        known = self.fingerprint and other.fingerprint
        return self.name != other.name or bool(known and self.fingerprint != other.fingerprint)


def fingerprint(lowered: Any) -> str:
    """Returns the hash of a program that JAX has lowered (`jax.stages.Lowered`) and the arrays that it closes over."""
    module = lowered.compiler_ir("stablehlo").operation
    text = module.get_asm(large_elements_limit=_LARGEST_CONSTANT)
    found = hashlib.sha256(_CALLBACK.sub(r"\1", text).encode())
    if _LEFT_OUT in text:
        for constant in _constants(module):
            found.update(constant)
    return found.hexdigest()[:16]


def _constants(operation: Any) -> Iterator[bytes | memoryview]:
    """Yields the numbers of the larger constants of a program, in its order."""
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
    except (TypeError, ValueError, BufferError):  # Neither NumPy nor MLIR's Python has such numbers: complex, bfloat16.
        yield constant.get_asm().encode()


class ProgramComparison:
    """The programs of this process, in the order in which it came to them, and the comparison with the peers'."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._announced: list[AnnouncedProgram] = []

    def announce(self, program: AnnouncedProgram) -> int:
        """Tells the peers, when they ask, of a program; returns its number."""
        with self._lock:
            self._announced.append(program)
            return len(self._announced) - 1

    def get(self, index: int) -> Mapping[str, str] | None:
        """Returns a program that has been announced."""
        with self._lock:
            return dataclasses.asdict(self._announced[index]) if index < len(self._announced) else None

    def compare(self, index: int, peers: Sequence[Peer], wait: bool) -> None:
        """Compares a program with the peers'.

        Args:
            index: Its number.
            peers: The peers.
            wait: Whether to wait until all have come to theirs. The monitor sees to it that nobody waits for ever. (A
                peer that cannot be watched is not waited for.)

        Raises:
            ProgramMismatchError: One is about to run another program.
        """
        pending = [peer for peer in peers if peer.reachable]
        pause, longest = _SECONDS_BETWEEN_QUESTIONS
        while True:
            pending = [peer for peer in pending if not self._same(index, peer)]
            if not pending or not wait:
                return
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _same(self, index: int, peer: Peer) -> bool:
        """Returns whether a peer has announced the same program; False if it has announced none yet."""
        try:
            answer = peer.client.program(index, peer.seconds_to_answer)
            theirs = None if answer is None else AnnouncedProgram(str(answer["name"]), str(answer["fingerprint"]))
        except (OSError, ValueError, KeyError, TypeError):
            return False
        mine = self._announced[index]
        if theirs is not None and mine.differs(theirs):
            raise ProgramMismatchError(
                self._name, mine.name, mine.fingerprint, peer.history.name, theirs.name, theirs.fingerprint, index
            )
        return theirs is not None
