"""Damages the fixtures in many ways, and counts what reading them answers with anything but a `CheckpointError`.

    python -m tests.migrate.mutations [COUNT]

Most damage is done to the files' bytes. TensorFlow's files have checksums, so that each tensor must have its values, or
the read must fail; HDF5 has none. The rest is done inside, and the checksums are made right again, as by somebody who
wants to do harm: then any answer is right that is no crash, takes no more time and memory than the file deserves.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from replicax.tensorflow.checkpoints.crc32c import crc32c
from replicax.tensorflow.checkpoints.table import Table
from tests.migrate import bundles, recorded

BASES = (
    "values_dtypes", "values_shapes", "values_shards", "values_nested", "saver_partitioned", "saver_adam",
    "saver_sharded", "saver_first_version", "saver_first_version_sharded", "manager", "saved_model_keras",
    "opt_tf_keras_legacy_adam", "opt_keras3_new_adam", "tf_keras_h5_mlp", "tf_keras_legacy_h5_nested",
    "tf_keras_h5_whole",
)  # fmt: skip
LONGEST_S = 20.0  # for files of some KB, on a machine that does other things too
MOST_BYTES = 64 << 20
Rng = np.random.Generator


def raw_errors(count: int, seed: int = 0) -> list[str]:
    """Returns what was wrong, a text for each of `count` damaged checkpoints that was answered wrongly."""
    found = list[str]()
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        with tempfile.TemporaryDirectory() as folder:
            base = BASES[i % len(BASES)]
            shutil.copytree(recorded.FIXTURES / base, Path(folder) / base)
            inside = bool(rng.random() < 0.4) and bool(list((Path(folder) / base).glob("**/*.index")))
            done = (damage_inside if inside else damage_bytes)(Path(folder) / base, rng)
            problem = answer(Path(folder) / base, exact=not inside)
        if problem:
            found.append(f"{i}: {base}: {done}: {problem}")
    return found


def answer(fixture: Path, exact: bool) -> str:
    """Returns how reading a damaged fixture failed to fail well; empty if it did well."""
    tracemalloc.start()
    began = time.monotonic()
    values = dict[str, np.ndarray]()
    try:
        checkpoint = open_checkpoint(recorded.checkpoint_of(fixture))
        for name, info in checkpoint.tensors.items():
            try:
                if info.dtype is not None:
                    values[name] = checkpoint.read(name)
            except CheckpointError:
                pass
        if checkpoint.graph is not None:
            len(checkpoint.graph.paths), len(checkpoint.graph.variables)
    except CheckpointError:
        pass
    except Exception:
        return traceback.format_exc()
    finally:
        took, peak = time.monotonic() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if took > LONGEST_S or peak > MOST_BYTES:
        return f"it took {took:.1f} s and {peak >> 20} MiB"
    if exact and not list(fixture.glob("**/*.h5")):
        expected = recorded.recorded(fixture)
        wrong = [
            name
            for name, value in values.items()
            if name not in expected or not recorded.identical(value, expected[name])
        ]
        if wrong:
            return f"wrong values of {wrong}"
    return ""


def damage_bytes(fixture: Path, rng: Rng) -> str:
    """Damages a file of a checkpoint, removes it, or exchanges it with another one. Returns what was done."""
    checkpoint = recorded.checkpoint_of(fixture)
    parent = checkpoint if checkpoint.is_dir() else checkpoint.parent
    files = sorted(path for path in parent.glob("**/*") if path.is_file() and _belongs(path))
    path = files[rng.integers(len(files))]
    names = list(BYTES)
    kind = names[rng.integers(len(names))]
    if kind == "remove":
        path.unlink()
    elif kind == "exchange":
        other = files[rng.integers(len(files))]
        data, others = path.read_bytes(), other.read_bytes()
        path.write_bytes(others)
        other.write_bytes(data)
    else:
        path.write_bytes(BYTES[kind](bytearray(path.read_bytes()), rng))
    return f"{kind} {path.name}"


def _belongs(path: Path) -> bool:
    """Returns whether a file is one of the checkpoint's; `checkpoint` only names one, without a checksum."""
    return path.suffix not in (".json", ".npz", ".pb") and path.name != "checkpoint"


def _flip(data: bytearray, rng: Rng) -> bytes:
    for _ in range(int(rng.integers(1, 4))):
        if data:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _huge(data: bytearray, rng: Rng) -> bytes:
    size = int(rng.choice([1, 2, 4, 8]))
    begin = int(rng.integers(max(len(data) - size, 1)))
    data[begin : begin + size] = b"\xff" * size
    return bytes(data)


def _exchange_ranges(data: bytearray, rng: Rng) -> bytes:
    size = int(rng.integers(1, max(len(data) // 4, 2)))
    a, b = sorted(int(i) for i in rng.integers(max(len(data) - size, 1), size=2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return bytes(data)


def _insert(data: bytearray, rng: Rng) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return bytes(data[:at]) + rng.bytes(int(rng.integers(1, 20))) + bytes(data[at:])


def _drop(data: bytearray, rng: Rng) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return bytes(data[:at] + data[at + int(rng.integers(1, 20)) :])


def _zeros(data: bytearray, rng: Rng) -> bytes:
    begin = int(rng.integers(len(data) + 1))
    end = min(begin + int(rng.integers(1, 64)), len(data))
    data[begin:end] = bytes(end - begin)
    return bytes(data)


BYTES: dict[str, Callable[[bytearray, Rng], bytes]] = {
    "flip": _flip,
    "cut": lambda data, rng: bytes(data[: int(rng.integers(len(data) + 1))]),
    "huge": _huge,
    "exchange ranges": _exchange_ranges,
    "insert": _insert,
    "drop": _drop,
    "zeros": _zeros,
    "double": lambda data, _: bytes(data * 2),
    "append": lambda data, rng: bytes(data) + rng.bytes(int(rng.integers(1, 100))),
    "empty": lambda data, _: b"",
    "noise": lambda data, rng: rng.bytes(len(data)),
    "remove": lambda data, _: bytes(data),
    "exchange": lambda data, _: bytes(data),
}
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    21,
    99,
    127,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    -1,
    -2,
)


def damage_inside(fixture: Path, rng: Rng) -> str:
    """Changes entries of the index or the object graph, with right checksums. Returns what was done."""
    index = sorted(fixture.glob("**/*.index"))[0]
    entries = dict(Table(index).items())
    graph = b"_CHECKPOINTABLE_OBJECT_GRAPH"
    if graph in entries and rng.random() < 0.4:
        entries[graph] = _other_graph(index, entries[graph], rng)
        done = "another object graph"
    else:
        keys = sorted(entries)
        for _ in range(int(rng.integers(1, 4))):
            key = keys[rng.integers(len(keys))]
            if rng.random() < 0.1:
                entries.pop(key, None)
            elif rng.random() < 0.1:
                entries[key] = entries.get(keys[rng.integers(len(keys))], b"")
            else:
                entries[key] = mutated(entries.get(key, b""), rng)
        done = "other entries"
    index.write_bytes(bundles.table(entries, per_block=int(rng.integers(1, 30))))
    return f"{done} in {index.name}"


def mutated(data: bytes, rng: Rng, depth: int = 0) -> bytes:
    """Returns a protocol buffer with one field changed, doubled, dropped or added, at any depth."""
    fields = parsed(data)
    if not fields or rng.random() < 0.1:
        number = int(rng.integers(1, 9))
        fields.insert(int(rng.integers(len(fields) + 1)), (number, 0, int(rng.choice(len(NUMBERS)))))
    i = int(rng.integers(len(fields)))
    number, kind, value = fields[i]
    chance = rng.random()
    if chance < 0.15:
        del fields[i]
    elif chance < 0.25:
        fields.insert(i, fields[i])
    elif isinstance(value, bytes) and depth < 4 and chance < 0.9:
        fields[i] = (number, kind, mutated(value, rng, depth + 1))
    elif isinstance(value, bytes):
        fields[i] = (number, kind, _flip(bytearray(value), rng))
    else:
        fields[i] = (number, kind, int(NUMBERS[rng.integers(len(NUMBERS))]))
    return b"".join(_field(*field) for field in fields)


def parsed(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """Returns the fields of a protocol buffer with their kinds; nothing of what is none."""
    from replicax.compat.protocol_buffers import varint

    fields, position = list[tuple[int, int, int | bytes]](), 0
    try:
        while position < len(data):
            tag, position = varint(data, position)
            kind = tag & 7
            if kind == 0:
                value, position = varint(data, position)
                fields.append((tag >> 3, kind, value))
                continue
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                size, position = varint(data, position)
            if size < 0 or position + size > len(data):
                return []
            part = data[position : position + size]
            fields.append((tag >> 3, kind, part if kind == 2 else int.from_bytes(part, "little")))
            position += size
    except ValueError:
        return []
    return fields


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    tag = bundles.varint(number << 3 | kind)
    if isinstance(value, bytes):
        return tag + bundles.varint(len(value)) + value
    if kind == 0:
        return tag + bundles.varint(value)
    size = 8 if kind == 1 else 4
    return tag + (value % (1 << 8 * size)).to_bytes(size, "little")


def _other_graph(index: Path, entry: bytes, rng: Rng) -> bytes:
    """Changes the object graph: ids, loops, names. It is put at the end of its file, and its entry is made to fit."""
    fields = {number: value for number, _, value in parsed(entry)}
    shard, offset, size = (int(fields.get(number, 0)) for number in (3, 4, 5))
    shards = int(parsed(dict(Table(index).items())[b""])[0][2])
    path = Path(f"{index.with_suffix('')}.data-{shard:05d}-of-{shards:05d}")
    stored = path.read_bytes()[offset : offset + size]
    length_bytes = 1
    while stored[length_bytes - 1] > 127:
        length_bytes += 1
    graph = stored[length_bytes + 4 :]
    for _ in range(int(rng.integers(1, 6))):
        graph = mutated(graph, rng)
    length = len(graph).to_bytes(4, "little")
    check = bundles.masked(crc32c(length)).to_bytes(4, "little")
    whole = bundles.masked(crc32c(check + graph, crc32c(length)))
    data = bundles.varint(len(graph)) + check + graph
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(data)
    return bundles.message((1, 7), (2, b""), (3, shard), (4, end), (5, len(data)), (6, whole), fixed32=6)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    found = raw_errors(count)
    for problem in found:
        print(problem)
    print(f"RESULT mutations {count}")
    print(f"RESULT raw_errors {len(found)}")


if __name__ == "__main__":
    main()
