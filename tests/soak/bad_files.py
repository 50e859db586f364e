"""Damages files of each format in many ways, and reads them: `python tests/soak/bad_files.py [--files 500]`.

Whoever reads a damaged file gets each row as it was, or a `DataError` (if the file is opened when the dataset is made,
then). With `on_error="skip"` every row that comes is one that was written, rows are missing only if some are
counted, and the others come. Formats without checksums cannot tell a changed number from another one: of them only what
their own structure tells is asked for.

Prints `RESULT bad_files`, `bad_files_raw_errors` (exceptions that are not ours, and processes that died),
`bad_files_silent` (rows lost or changed and nothing said), and `hangs`.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import gzip
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import replicax as rx
from tests.data import row_kinds

LIMIT_S = 60.0
#: What a file of these formats says of itself cannot tell all changed bytes, or that rows at the end are gone.
KNOWS_CHANGES = {"TFRecord", "TFRecord, gzip", "TFRecord, zlib", "ArrayRecord", "JSON lines, gzip"}
KNOWS_ITS_END = KNOWS_CHANGES | {"Parquet", "WebDataset", "NumPy", "images"}


def _zlib(folder: Path) -> None:
    row_kinds.tfrecord(folder, pack=zlib.compress)


def _gzip_lines(folder: Path) -> None:
    row_kinds.json_lines(folder)
    for path in list(folder.iterdir()):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


WRITE = row_kinds.WRITE | {"TFRecord, zlib": _zlib, "JSON lines, gzip": _gzip_lines}
KINDS = [kind for kind in WRITE if kind not in ("TFRecord, one file", "tokens")]


def opened(kind: str, folder: Path) -> rx.data.Rows:
    """Returns the rows of a kind."""
    if kind == "WebDataset":  # Those of a pattern, and not of braces, since one may be gone.
        rows = rx.data.read_webdataset(str(folder / "*.tar"))
        return rows.map(lambda row: np.int32(row["json"]["n"]))
    return row_kinds.OPEN[kind.removesuffix(", zlib").removesuffix(", gzip")](folder)


def damage(path: Path, draw: random.Random) -> str:
    """Damages a file in one of many ways; returns which."""
    data = bytearray(path.read_bytes())
    way = draw.choice(["flip", "flips", "cut", "zeros", "garbage", "empty", "gone", "more", "swap", "hole"])
    at = draw.randrange(len(data)) if data else 0
    if way == "gone" or not data:
        path.unlink()
        return "gone"
    if way in ("flip", "flips"):
        for _ in range(1 if way == "flip" else 20):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif way == "cut":
        del data[at:]
    elif way == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif way == "garbage":
        data = bytearray(draw.randbytes(len(data)))
    elif way == "empty":
        data.clear()
    elif way == "more":
        data += draw.randbytes(draw.randrange(1, 100))
    elif way == "swap":
        other = draw.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    else:
        del data[at : at + draw.randrange(1, 40)]
    path.write_bytes(data)
    return way


class Outcome(NamedTuple):
    """What reading a damaged file came to."""

    wrong: str  # empty, "raw error" or "silent"
    text: str


def judged(kind: str, folder: Path, way: str, skip: bool) -> Outcome:
    """Reads the files of a folder, one of which is damaged."""
    try:
        batches = opened(kind, folder).batch(8, on_error="skip" if skip else "raise", threads=2)
        strategy = rx.MirroredStrategy(["cpu:0"])
        dataset = strategy.distribute_dataset(batches)
        found: list[int] = []
        bad = 0
        for batch in dataset:
            found += np.ravel(np.asarray(batch)).tolist()
            bad = dataset.bad_rows
    except rx.ReplicaxError as error:
        return Outcome("", f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome("raw error", f"{type(error).__name__}: {error}")
    counts, right = collections.Counter(found), collections.Counter(range(row_kinds.ROWS))
    changed, lost = counts - right, right - counts
    # What is gone as a whole is missing from the list of files: nobody can know of it.
    told = (
        bad > 0 or way == "gone" or (way in ("cut", "empty", "garbage", "hole", "zeros") and kind not in KNOWS_ITS_END)
    )
    if way in ("flip", "flips", "swap", "zeros", "garbage", "hole", "more", "cut") and kind not in KNOWS_CHANGES:
        changed.clear()  # A number that is another one now.
        told = told or kind not in KNOWS_ITS_END or sum(counts.values()) == row_kinds.ROWS
    if way == "empty" and kind in ("TFRecord", "TFRecord, gzip", "TFRecord, zlib", "JSON lines, gzip"):
        told = True  # It may well have no records.
    if changed or (lost and not told):
        return Outcome("silent", f"changed {sorted(changed)[:5]}, lost {sorted(lost)[:9]}, bad {bad}")
    return Outcome("", f"{len(found)} rows, {bad} bad")


def run(kind: str, files: int, seed: int, send: Any) -> None:
    """In a process of its own: damages so many files of a kind, and sends what came of each."""
    logging.disable(logging.WARNING)
    draw = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as made:
        whole = Path(made) / "whole"
        whole.mkdir()
        WRITE[kind](whole)
        names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        for number in range(files):
            folder = Path(made) / "damaged"
            shutil.copytree(whole, folder)
            name = draw.choice(names)
            way = damage(folder / name, draw)
            for skip in (False, True):
                send.send((kind, number, str(name), way, skip, None))
                send.send((kind, number, str(name), way, skip, judged(kind, folder, way, skip)))
            shutil.rmtree(folder)
    send.send(None)


def watched(kind: str, files: int, seed: int) -> list[tuple[Any, ...]]:
    """Returns the outcomes of a kind, also if its process dies or hangs."""
    outcomes, done = [], 0
    while done < files:
        receive, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=run, args=(kind, files - done, seed + done, send))
        process.start()
        send.close()
        latest: Any = (kind, 0, "", "start", False, None)
        while True:
            began = time.monotonic()
            if not receive.poll(LIMIT_S * (3 if latest[3] == "start" else 1)):
                outcomes.append((*latest[:5], Outcome("hang", f"{time.monotonic() - began:.0f} s")))
                break
            try:
                message = receive.recv()
            except EOFError:
                process.join()
                outcomes.append((*latest[:5], Outcome("raw error", f"the process died with {process.exitcode}")))
                break
            if message is None:
                process.join()
                return outcomes
            latest = message
            if message[5] is not None:
                outcomes.append(message)
        process.kill()
        process.join()
        done += latest[1] + 1
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    each = -(-options.files // len(options.kinds))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [
            one for found in pool.map(lambda kind: watched(kind, each, options.seed), options.kinds) for one in found
        ]
    counts = collections.Counter(outcome.wrong for *_, outcome in results)
    for kind, number, name, way, skip, outcome in results:
        if outcome.wrong:
            print(
                f"{outcome.wrong}: {kind} {number} {name}, {way}, {'skip' if skip else 'raise'}: {outcome.text}"[:300]
            )
    told = sum(not outcome.wrong and "Error" in outcome.text for *_, outcome in results)
    print(f"{len(results)} readings of {len(results) // 2} damaged files; {told} ended with an error of ours.")
    print(f"RESULT bad_files {len(results) // 2}")
    print(f"RESULT bad_files_raw_errors {counts['raw error']}")
    print(f"RESULT bad_files_silent {counts['silent']}")
    print(f"RESULT hangs {counts['hang']}")
    return int(any(counts[wrong] for wrong in ("raw error", "silent", "hang")))


if __name__ == "__main__":
    raise SystemExit(main())
