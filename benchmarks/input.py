"""How many rows a second reach the devices: `python benchmarks/input.py [--only images] [--rounds 5]`.

Each source is read beside the bare libraries: a loop that a careful person writes by hand, with the same decoder, as
many threads, and batches put on the devices by `jax.device_put`; Grain's own pipeline; torch's `DataLoader` and
`tf.data` where they are installed. Sources that are read in a moment are read in several epochs, so that what a second
brings is measured and not how a pass begins. Readings alternate, in turn forwards and backwards, and each counts with
its best round. On two workers each reads its half, by hand too; the slower one counts. `fit` trains a model of one
layer, ours under a strategy beside Keras's own with a `PyDataset` of as many threads.

Prints for each source and number of devices the rows a second, `RESULT input_kept_min` (ours of the loop by hand, the
smallest of all sources), `RESULT input_kept_for_the_work_min` (the same by seconds of processors, which other programs
on the machine disturb less) and `RESULT input_vs_best_peer` (of the fastest of the others); the first two for two
workers, too; `RESULT input_fit_vs_keras_min`, of Keras's `fit`; and `RESULT input_memory_of_bound`: how much of the
memory that docs/guides/your-data.md grants a pass has taken at most.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import gc
import importlib.util
import io
import os
import struct
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("KERAS_BACKEND", "jax")

import replicax as rx

if __name__ == "__main__":  # A worker has one.
    rx.config.set_virtual_devices(8)

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.runtime.devices import cores
from replicax.values import is_per_replica
from tests.data.row_kinds import example, framed

IMAGES, SIZE, BATCH = 768, (224, 224), 64
LENGTH, WINDOWS = 1024, 16_384
ROWS, COLUMNS = 50_000, 64
FEATURES = {"image": rx.data.FixedLenFeature([], "string"), "label": rx.data.FixedLenFeature([], "int64")}


def jpegs() -> list[bytes]:
    """Returns generated images; 32 of them, again and again."""
    from PIL import Image

    draw, found = np.random.default_rng(0), []
    for _ in range(32):
        rough = Image.fromarray(draw.integers(0, 256, (28, 28, 3), dtype=np.uint8))
        rough.resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC).save(file := io.BytesIO(), "jpeg", quality=90)
        found.append(file.getvalue())
    return [found[index % 32] for index in range(IMAGES)]


def write(folder: Path) -> None:
    """Writes all files."""
    images = jpegs()
    for part in range(4):
        mine = list(enumerate(images))[part::4]
        records = b"".join(framed(example(image=image, label=n % 10)) for n, image in mine)
        (folder / f"{part}.tfrecord").write_bytes(records)
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for n, image in mine:
                for ending, data in (("jpg", image), ("cls", str(n % 10).encode())):
                    member = tarfile.TarInfo(f"{n:06}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    for n, image in enumerate(images):
        at = folder / "folder" / str(n % 10)
        at.mkdir(parents=True, exist_ok=True)
        (at / f"{n:06}.jpg").write_bytes(image)
    np.random.default_rng(0).integers(0, 50_000, LENGTH * WINDOWS + 1, dtype=np.uint16).tofile(folder / "tokens.bin")
    table = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)
    np.save(folder / "rows.npy", table)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({f"c{n}": table[:, n] for n in range(COLUMNS)}), folder / "rows.parquet", row_group_size=10_000
    )


# The loops by hand.


def decoded(image: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(image)) as opened:
        return np.asarray(opened.convert("RGB"))


def in_threads(items: Iterator[Any], function: Callable[[Any], Any], batch: int) -> Iterator[Any]:
    """Yields stacked batches of what a function makes of items, in as many threads as there are cores."""
    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        waiting: collections.deque[Any] = collections.deque()
        rows: list[Any] = []
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > batch:
                rows.append(waiting.popleft().result())
            if len(rows) == batch:
                yield tuple(np.stack(column) for column in zip(*rows, strict=True))
                rows = []
        rows += [each.result() for each in waiting]
        for start in range(0, len(rows), batch):
            yield tuple(np.stack(column) for column in zip(*rows[start : start + batch], strict=True))


def records(folder: Path, part: slice) -> Iterator[bytes]:
    """Yields the records of TFRecord files, as Grain's reader does: without a look at their checksums."""
    for path in sorted(folder.glob("*.tfrecord"))[part]:
        with path.open("rb", buffering=1 << 20) as file:
            while head := file.read(12):
                (length,) = struct.unpack("<Q", head[:8])
                yield file.read(length)
                file.read(4)


def from_record(record: bytes) -> tuple[np.ndarray, np.int32]:
    row = rx.data.parse_example(record, FEATURES)
    return decoded(row["image"]), np.int32(row["label"])


def samples(folder: Path, part: slice) -> Iterator[dict[str, bytes]]:
    import webdataset as wds

    urls = [str(path) for path in sorted(folder.glob("*.tar"))[part]]
    yield from wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, workersplitter=None)


def by_hand_tokens(folder: Path, batch: int, part: slice) -> Iterator[Any]:
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
    order = np.random.default_rng(0).permutation(WINDOWS)[part]
    for start in range(0, len(order), batch):
        found = windows[order[start : start + batch]].astype(np.int32)
        yield found[:, :-1], found[:, 1:]


def by_hand_parquet(folder: Path, batch: int, part: slice) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(folder / "rows.parquet") as file:
        groups = range(file.num_row_groups)[part]
        for block in file.iter_batches(batch, row_groups=groups):
            yield {name: block.column(name).to_numpy(zero_copy_only=False) for name in block.schema.names}


def by_hand_numpy(folder: Path, batch: int, part: slice) -> Iterator[Any]:
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    order = np.random.default_rng(0).permutation(ROWS)[part]
    for start in range(0, len(order), batch):
        yield rows[order[start : start + batch]]


# Ours, and Grain's.


def image_rows(row: dict[str, Any]) -> tuple[np.ndarray, np.int32]:
    return rx.data.decode_image(row["image"]), np.int32(row["label"])


def sample_rows(row: dict[str, Any]) -> tuple[np.ndarray, np.int32]:
    return row["jpg"], np.int32(row["cls"])


class Source(NamedTuple):
    """A source: its batch size, ours, the loop by hand, other libraries by name, and how many epochs are read."""

    batch: int
    ours: Callable[[Path], rx.data.Rows]
    by_hand: Callable[[Path, int, slice], Iterator[Any]]  # of a worker's files or rows: every second one, of two
    peers: dict[str, Callable[[Path, int], Iterator[Any]]]
    epochs: int = 1


class Folder:
    """The images of a folder, for Grain and torch."""

    def __init__(self, folder: Path):
        self._files = sorted((folder / "folder").rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        path = self._files[index]
        return decoded(path.read_bytes()), np.int32(path.parent.name)


class Tokens:
    """The windows of tokens, for Grain."""

    def __init__(self, folder: Path):
        self._tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")

    def __len__(self) -> int:
        return WINDOWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        found = self._tokens[index * LENGTH : index * LENGTH + LENGTH + 1].astype(np.int32)
        return found[:-1], found[1:]


def grain_of(source: Callable[[Path], Any]) -> Callable[[Path, int], Iterator[Any]]:
    def read(folder: Path, batch: int) -> Iterator[Any]:
        import grain

        options = grain.ReadOptions(num_threads=cores(), prefetch_buffer_size=2 * batch)
        yield from grain.MapDataset.source(source(folder)).shuffle(seed=1).to_iter_dataset(options).batch(batch)

    return read


def torch_folder(folder: Path, batch: int) -> Iterator[Any]:
    import torch.utils.data

    loader = torch.utils.data.DataLoader(Folder(folder), batch, shuffle=True, num_workers=cores())
    for images, labels in loader:
        yield images.numpy(), labels.numpy()


def tf_records(folder: Path, batch: int) -> Iterator[Any]:
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        row = tf.io.parse_single_example(record, features)
        return tf.io.decode_jpeg(row["image"], channels=3), row["label"]

    dataset = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord"))))
    yield from dataset.map(parse, num_parallel_calls=cores()).batch(batch).prefetch(2).as_numpy_iterator()


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


SOURCES = {
    "images, TFRecord": Source(
        BATCH,
        lambda folder: rx.data.read_tfrecord(str(folder / "*.tfrecord"), FEATURES).map(image_rows).shuffle(1),
        lambda folder, batch, part: in_threads(records(folder, part), from_record, batch),
        {"tf.data": tf_records} if installed("tensorflow") else {},
    ),
    "images, WebDataset": Source(
        BATCH,
        lambda folder: rx.data.read_webdataset(str(folder / "*.tar")).map(sample_rows),
        lambda folder, batch, part: in_threads(
            samples(folder, part), lambda sample: (decoded(sample["jpg"]), np.int32(sample["cls"])), batch
        ),
        {},
    ),
    "images, folders": Source(
        BATCH,
        lambda folder: rx.data.read_images(str(folder / "folder"), SIZE).shuffle(1),
        lambda folder, batch, part: in_threads(iter(range(IMAGES)[part]), Folder(folder).__getitem__, batch),
        {"Grain": grain_of(Folder)} | ({"torch": torch_folder} if installed("torch") else {}),
    ),
    "tokens": Source(
        64, lambda folder: rx.data.read_tokens(str(folder / "tokens.bin"), LENGTH).shuffle(1), by_hand_tokens,
        {"Grain": grain_of(Tokens)},
    ),
    "Parquet": Source(1000, lambda folder: rx.data.read_parquet(str(folder / "rows.parquet")), by_hand_parquet, {}, 5),
    "NumPy files": Source(
        1000, lambda folder: rx.data.read_numpy(str(folder / "rows.npy")).shuffle(1), by_hand_numpy, {}, 20
    ),
}  # fmt: skip


ALL = slice(None)


def on_devices(batches: Iterator[Any], mesh: Mesh, own_rows: int = 0) -> int:
    """Puts batches on devices, two ahead as `strategy.distribute_dataset` does; returns the number of rows.

    On several workers each puts `own_rows` rows of a batch there; the last one goes to its own device.
    """
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    rows, ahead = 0, collections.deque[Any](maxlen=2)
    for batch in batches:
        leaves = jax.tree.leaves(batch)
        if own_rows and len(leaves[0]) == own_rows:
            ahead.append([jax.make_array_from_process_local_data(sharding, leaf) for leaf in leaves])
        else:
            is_even = not own_rows and len(leaves[0]) % mesh.size == 0
            ahead.append(jax.device_put(batch, sharding if is_even else jax.local_devices()[0]))
        rows += len(leaves[0])
    jax.block_until_ready(list(ahead))
    return rows


def repeated(read: Callable[..., Iterator[Any]], epochs: int, *arguments: Any) -> Iterator[Any]:
    """Yields the batches of several epochs."""
    for _ in range(epochs):
        yield from read(*arguments)


def others_on_devices(
    mesh: Mesh, source: Source, folder: Path, read: Callable[..., Iterator[Any]], *part: slice
) -> int:
    return on_devices(repeated(read, source.epochs, folder, source.batch, *part), mesh)


def ours_on_devices(batches: rx.data.RowBatches, strategy: rx.Strategy) -> int:
    rows, value = 0, None
    for value in strategy.distribute_dataset(batches):
        leaf = jax.tree.leaves(value, is_leaf=is_per_replica)[0]
        rows += leaf.stacked.shape[0] * leaf.stacked.shape[1] if is_per_replica(leaf) else leaf.shape[0]
    jax.block_until_ready(value)
    return rows


class Rates(NamedTuple):
    """Rows a second, of time and of processor time."""

    time: float
    work: float


def measured(readers: dict[str, Callable[[], int]], rounds: int) -> dict[str, Rates]:
    """Returns the best rates of each reader."""
    best = dict.fromkeys(readers, Rates(0.0, 0.0))
    for turn in range(rounds):
        for name in list(readers)[:: -1 if turn % 2 else 1]:
            began, worked = time.perf_counter(), time.process_time()
            rows = readers[name]()
            took = time.perf_counter() - began, time.process_time() - worked
            best[name] = Rates(*(max(before, rows / each) for before, each in zip(best[name], took, strict=True)))
    return best


def shown(what: str, found: dict[str, Rates], ours: str = "replicax", peer: str = "by hand") -> Rates:
    """Prints the rows a second, and returns ours by those of another."""
    kept = Rates(*(mine / other for mine, other in zip(found[ours], found[peer], strict=True)))
    listed = ", ".join(f"{name} {rates.time:,.0f}" for name, rates in found.items())
    print(f"{what}, rows/s: {listed}; kept {kept.time:.2f}, for the work {kept.work:.2f}", flush=True)
    return kept


# Two workers.


def on_workers(folder: str, name: str, rounds: int) -> list[list[float]]:
    """Returns the rates of a worker of two: ours and by hand."""
    source, strategy = SOURCES[name], rx.MultiWorkerMirroredStrategy()
    worker, workers = jax.process_index(), jax.process_count()
    own = source.batch // workers
    mesh = Mesh(np.array(jax.devices()), "x")
    batches = source.ours(Path(folder)).batch(source.batch).repeat(source.epochs)
    part = slice(worker, None, workers)
    by_hand = source.by_hand
    readers: dict[str, Callable[[], int]] = {
        "by hand": lambda: on_devices(repeated(by_hand, source.epochs, Path(folder), own, part), mesh, own),
        "replicax": lambda: ours_on_devices(batches, strategy) // workers,
    }
    return [list(measured(readers, rounds)[reader]) for reader in ("by hand", "replicax")]


def of_two_workers(folder: Path, name: str, rounds: int) -> dict[str, Rates]:
    """Returns the rates of two workers together: as if both were as slow as the slower one."""
    found = rx.testing.run_workers(on_workers, workers=2, timeout=600, folder=str(folder), name=name, rounds=rounds)
    slower = np.min(np.array(found), axis=0)
    return {reader: Rates(*(2 * slower[index])) for index, reader in enumerate(("by hand", "replicax"))}


# `fit`.


def of_fit(folder: Path, rounds: int) -> dict[str, dict[str, Rates]]:
    """Returns the rates of `fit`, ours and Keras's: of arrays, and of images in folders."""
    import keras

    class Batches(keras.utils.PyDataset):
        """Batches as a careful person makes them for Keras, with as many threads."""

        def __init__(self, rows: int, batch: int, batch_at: Callable[[np.ndarray], Any]):
            super().__init__(workers=cores(), max_queue_size=cores() + 2)
            self._order, self._batch = np.random.default_rng(0).permutation(rows), batch
            self._batch_at = batch_at

        def __len__(self) -> int:
            return -(-len(self._order) // self._batch)

        def __getitem__(self, index: int) -> Any:
            return self._batch_at(self._order[index * self._batch :][: self._batch])

    def model(layers: list[Any], loss: str) -> Any:
        made = keras.Sequential([*layers, keras.layers.Dense(10)])
        made.compile("sgd", loss)
        return made

    def on_images() -> Any:
        layers = [keras.Input((*SIZE, 3)), keras.layers.GlobalAveragePooling2D()]
        return model(layers, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def on_arrays() -> Any:
        return model([keras.Input((COLUMNS,))], "mse")

    images, table = Folder(folder), np.load(folder / "rows.npy", mmap_mode="r")

    def image_batch(at: np.ndarray) -> Any:
        return tuple(np.stack(column) for column in zip(*(images[int(n)] for n in at), strict=True))

    def array_batch(at: np.ndarray) -> Any:
        rows = table[at]
        return rows, rows[:, :10]

    def with_target(rows: np.ndarray) -> Any:
        return rows, rows[:, :10]

    def fitted(trained: Any, data: Any, rows: int) -> int:
        trained.fit(data, epochs=1, verbose=0)
        return rows

    kinds: dict[str, tuple[Callable[[], Any], rx.data.RowBatches, Any, int]] = {
        "fit, images, folders": (
            on_images,
            rx.data.read_images(str(folder / "folder"), SIZE).shuffle(1).batch(BATCH),
            Batches(IMAGES, BATCH, image_batch),
            IMAGES,
        ),
        "fit, NumPy files": (
            on_arrays,
            rx.data.read_numpy(str(folder / "rows.npy")).shuffle(1).batch(1000).map(with_target),
            Batches(ROWS, 1000, array_batch),
            ROWS,
        ),
    }
    found = {}
    for name, (make, ours, batches, rows) in kinds.items():
        with rx.MirroredStrategy(["cpu:0"]).scope():
            mine = make()
        alone = make()
        readers: dict[str, Callable[[], int]] = {
            "Keras": functools.partial(fitted, alone, batches, rows),
            "replicax": functools.partial(fitted, mine, ours, rows),
        }
        for read in readers.values():
            read()  # It compiles.
        found[name] = measured(readers, rounds)
    return found


# Memory.


def memory_of_bound(batches: rx.data.RowBatches, devices: int, buffered: int) -> float:
    """Returns how much of the memory that it may take a pass has taken at most: the arrays, and Python's own."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(batches.first()))
    # docs/guides/your-data.md: tasks, here of a whole batch at most; those that wait on the devices, and two more; what
    # is encoded, and 1 MiB of an open file.
    bound = size * (cores() + 2) + size * (rx.data.InputOptions().prefetch + 2) + buffered + 2**20
    strategy = rx.MirroredStrategy([f"cpu:{n}" for n in range(devices)])
    ours_on_devices(batches, strategy)  # What is made once is no part of it.
    gc.collect()
    tracemalloc.start()
    try:
        ours_on_devices(batches, strategy)
        return tracemalloc.get_traced_memory()[1] / bound
    finally:
        tracemalloc.stop()


def encoded_bytes(name: str, folder: Path) -> int:
    """Returns how much of the files is held as it is there: what is shuffled of TFRecords, and a row group."""
    if name == "Parquet":
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(folder / "rows.parquet")
        return max(metadata.row_group(each).total_byte_size for each in range(metadata.num_row_groups))
    return sum(path.stat().st_size for path in folder.glob("*.tfrecord")) if "TFRecord" in name else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sources whose name has this in it; 'fit' for `fit`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="one worker only")
    options = parser.parse_args()
    kept: list[Rates] = []
    on_two: list[Rates] = []
    against: list[float] = []
    in_fit: list[Rates] = []
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        for name, source in SOURCES.items():
            if options.only not in name:
                continue
            batches = source.ours(folder).batch(source.batch).repeat(source.epochs)
            buffered = encoded_bytes(name, folder)
            memory[name] = memory_of_bound(source.ours(folder).batch(source.batch), 8, buffered)
            print(f"{name}: memory {memory[name]:.2f} of the bound", flush=True)
            for devices in (1, 8):
                mesh = Mesh(np.array(jax.devices()[:devices]), "x")
                strategy = rx.MirroredStrategy([f"cpu:{n}" for n in range(devices)])
                others = functools.partial(others_on_devices, mesh, source, folder)
                readers: dict[str, Callable[[], int]] = {
                    "by hand": functools.partial(others, source.by_hand, ALL),
                    "replicax": functools.partial(ours_on_devices, batches, strategy),
                    **{peer: functools.partial(others, read) for peer, read in source.peers.items()},
                }
                found = measured(readers, options.rounds)
                kept.append(shown(f"{name}, {devices} device(s)", found))
                against.append(found["replicax"].time / max(r.time for peer, r in found.items() if peer != "replicax"))
            if not options.alone:
                found = of_two_workers(folder, name, options.rounds)
                on_two.append(shown(f"{name}, 2 workers", found))
        if options.only in "fit":
            for name, found in of_fit(folder, options.rounds).items():
                in_fit.append(shown(name, found, peer="Keras"))
    results = {
        "input_kept_min": [each.time for each in kept],
        "input_kept_for_the_work_min": [each.work for each in kept],
        "input_vs_best_peer": against,
        "input_kept_on_two_workers_min": [each.time for each in on_two],
        "input_kept_for_the_work_on_two_workers_min": [each.work for each in on_two],
        "input_fit_vs_keras_min": [each.time for each in in_fit],
        "input_fit_vs_keras_for_the_work_min": [each.work for each in in_fit],
    }
    for name, values in results.items():
        if values:
            print(f"RESULT {name} {min(values):.2f}")
    if memory:
        print(f"RESULT input_memory_of_bound {max(memory.values()):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
