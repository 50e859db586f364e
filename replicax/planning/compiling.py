"""The compiler of a step, and its words on it: its memory, its text, and how many bytes it reads and writes.

libtpu needs seconds to order a program and to give each of its arrays a place in memory, and then minutes to generate
the code of a large one: twenty seconds for each layer of GPT-2. Nothing that a plan says comes of the second part but
the size of the code. XLA writes what it has after the first into a folder (`xla_dump_to`; openxla.org/xla/hlo_dumps),
so a process that only plans reads it there, and ends.
"""

from __future__ import annotations

import concurrent.futures
import logging
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from replicax.compat.protocol_buffers import Message
from replicax.planning.buffers import bytes_accessed
from replicax.planning.report import Memory

_log = logging.getLogger(__name__)
#: For so many seconds a plan waits for the code of a step: that of a small one is there by then.
PATIENCE_S = 15.0
_LIBTPU = "libtpu"  # Its version follows.
_SECONDS_BETWEEN_LOOKS = 0.2
_CODE = 0.08  # of the memory of a device: where less is left, the size of the code decides whether a step fits
_UNIT = 2**14  # bytes; libtpu rounds temporaries up
_PLACED = ".after_optimizations.hlo.pb"
_WRITTEN_LATER = ".after_optimizations_after_buffer_assignment.hlo.pb"


class CompiledStep(NamedTuple):
    """A step that was compiled, as far as a plan has to know it."""

    memory: Memory | None
    text: str  # its HLO, in the order in which it runs; empty where the compiler shows none
    accessed: float  # bytes that each device reads and writes, loops once


NOT_COMPILED = CompiledStep(None, "", 0.0)


def compiled(lowered: jax.stages.Lowered, by: str, patience: float | None, limit: int | None) -> CompiledStep:
    """Returns what the compiler says of a step.

    Args:
        lowered: The step.
        by: The compiler's name.
        patience: For how many seconds to wait for its code once all arrays have their places; None for the end of it.
            Then a thread goes on compiling until the process ends.
        limit: The bytes of memory of a device; None if they are not known.
    """
    if patience is None:
        return _whole(lowered.compile(), by)
    with tempfile.TemporaryDirectory(prefix="replicax-plan-", ignore_cleanup_errors=True) as folder:
        options: dict[str, str | bool] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        done = _in_thread(lowered, options | {"xla_dump_hlo_as_proto": True})
        placed, since = None, 0.0
        while not concurrent.futures.wait([done], _SECONDS_BETWEEN_LOOKS).done:
            if placed is None and [*Path(folder).glob(f"*{_WRITTEN_LATER}")]:
                try:
                    placed, since = _placed(Path(folder), by), time.monotonic()
                except (ValueError, LookupError) as error:
                    _log.warning("%s writes files that are not known: its code is awaited. (%s)", by, error)
                    break
            if placed is not None and time.monotonic() - since >= patience and not _depends_on_code(placed, limit):
                return placed
        return _whole(done.result(), by)


def _depends_on_code(placed: CompiledStep, limit: int | None) -> bool:
    """Returns whether the size of the code may decide if a step fits."""
    assert placed.memory is not None
    return limit is not None and 0 <= limit - placed.memory.needed < _CODE * limit


def _in_thread(
    lowered: jax.stages.Lowered, options: dict[str, str | bool]
) -> concurrent.futures.Future[jax.stages.Compiled]:
    """Compiles in a thread that nobody waits for when the process ends."""
    done: concurrent.futures.Future[jax.stages.Compiled] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(lowered.compile(compiler_options=options))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="replicax-compile", daemon=True).start()
    return done


def _whole(step: jax.stages.Compiled, by: str) -> CompiledStep:
    text, costs = step.as_text() or "", step.cost_analysis() or {}
    accessed = bytes_accessed(text) if by.startswith(_LIBTPU) else costs.get("bytes accessed", 0.0)
    return CompiledStep(_memory(step, by), text, accessed)


def _memory(step: jax.stages.Compiled, by: str) -> Memory | None:
    found: Any = step.memory_analysis()
    if found is None:
        return None
    # For CPUs XLA leaves temporaries out of the peak.
    peak = getattr(found, "peak_memory_in_bytes", None) if by.startswith(_LIBTPU) else None
    return Memory(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        aliased=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        code=found.generated_code_size_in_bytes,
        peak=peak or None,
        by=by,
    )


# XLA's files. The numbers of fields are those of xla/service/hlo.proto.


def _placed(folder: Path, by: str) -> CompiledStep:
    (file,) = folder.glob(f"*{_PLACED}")
    program = Message(file.read_bytes())
    (assignment,) = program.messages(3)
    text = file.with_name(file.name.removesuffix("hlo.pb") + "txt").read_text(encoding="utf-8", errors="replace")
    memory = _memory_of(assignment, f"{by}, without the code", _UNIT)
    return CompiledStep(memory, text, bytes_accessed(text))


def _memory_of(assignment: Message, by: str, unit: int = 1) -> Memory:
    """Returns what the places of all arrays come to in the memory of the device, the way XLA adds them up."""
    size, of_threads, argument, result, space, constant, in_place = 2, 3, 5, 7, 8, 12, 13
    found = [each for each in assignment.messages(3) if not each.unsigned(of_threads) and not each.unsigned(space)]
    own = [each for each in found if not any(map(each.unsigned, (argument, result, constant)))]

    def total(*flags: int) -> int:
        return sum(each.unsigned(size) for each in found if all(map(each.unsigned, flags)))

    temporaries = sum(each.unsigned(size) for each in own)
    # For its peak XLA takes the space in which most is there at a time; a small program has it in a TPU's inner memory.
    sizes = {each.unsigned(1): each.unsigned(2) for each in assignment.messages(1)}
    courses = (_most_at_a_time(trace.messages(1), sizes) for trace in assignment.messages(4))
    return Memory(
        arguments=total(argument),
        outputs=total(result),
        aliased=total(argument, in_place),
        temporaries=-(-temporaries // unit) * unit,
        code=None,
        peak=total() - temporaries + max(courses, default=0),
        by=by,
    )


def _most_at_a_time(events: Sequence[Message], sizes: dict[int, int]) -> int:
    """Returns the most bytes of arrays that are there at a time, some of which share one place."""
    kind, array, shares_with, freed, shares = 1, 2, 5, 1, 2
    now = most = 0
    place_of: dict[int, int] = {}
    users: dict[int, int] = {}
    for each in events:
        place = each.unsigned(array)
        if each.unsigned(kind) == freed:
            place = place_of[place]
            users[place] -= 1
            now -= 0 if users[place] else sizes[place]
            continue
        if each.unsigned(kind) == shares:
            place = place_of.get(each.unsigned(shares_with), each.unsigned(shares_with))
        place_of[each.unsigned(array)] = place
        now += 0 if users.get(place) else sizes[place]
        users[place] = users.get(place, 0) + 1
        most = max(most, now)
    return most
