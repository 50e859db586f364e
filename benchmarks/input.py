"""How many rows a second reach the devices: `python benchmarks/input.py [--only images] [--rounds 5]`.

Each source is read beside the bare libraries: a loop that a careful person writes by hand, with the same decoder, as
many threads, and batches put on the devices by `jax.device_put`; Grain's own pipeline; torch's `DataLoader` and
`tf.data` where they are installed. Sources that are read in a moment are read in several epochs, so that what a second
brings is measured and not how a pass begins. Readings alternate, and each counts with its best round.

Prints for each source and number of devices the rows a second, `RESULT input_kept_min` (ours of the loop by hand, the
smallest of all sources), `RESULT input_kept_for_the_work_min` (the same by seconds of processors, which other programs
on the machine disturb less) and `RESULT input_vs_best_peer` (of the fastest of the others).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib.util
import io
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import replicax as rx

rx.config.set_virtual_devices(8)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from replicax.data.rows import cores  # noqa: E402
from replicax.values import is_per_replica  # noqa: E402
from tests.data.row_kinds import example, framed  # noqa: E402

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


def records(folder: Path) -> Iterator[bytes]:
    """Yields the records of all TFRecord files, as Grain's reader does: without a look at their checksums."""
    for path in sorted(folder.glob("*.tfrecord")):
        with path.open("rb", buffering=1 << 20) as file:
            while head := file.read(12):
                (length,) = struct.unpack("<Q", head[:8])
                yield file.read(length)
                file.read(4)


def from_record(record: bytes) -> tuple[np.ndarray, np.int32]:
    row = rx.data.parse_example(record, FEATURES)
    return decoded(row["image"]), np.int32(row["label"])


def samples(folder: Path) -> Iterator[dict[str, bytes]]:
    import webdataset as wds

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    yield from wds.WebDataset(urls, shardshuffle=False, nodesplitter=None, workersplitter=None)


def by_hand_tokens(folder: Path, batch: int) -> Iterator[Any]:
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    order = np.random.default_rng(0).permutation(WINDOWS)
    for start in range(0, WINDOWS, batch):
        found = np.stack([tokens[n * LENGTH : n * LENGTH + LENGTH + 1] for n in order[start : start + batch]])
        found = found.astype(np.int32)
        yield found[:, :-1], found[:, 1:]


def by_hand_parquet(folder: Path, batch: int) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(folder / "rows.parquet") as file:
        for block in file.iter_batches(batch):
            yield {name: block.column(name).to_numpy(zero_copy_only=False) for name in block.schema.names}


def by_hand_numpy(folder: Path, batch: int) -> Iterator[Any]:
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    order = np.random.default_rng(0).permutation(ROWS)
    for start in range(0, ROWS, batch):
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
    by_hand: Callable[[Path, int], Iterator[Any]]
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
        lambda folder, batch: in_threads(records(folder), from_record, batch),
        {"tf.data": tf_records} if installed("tensorflow") else {},
    ),
    "images, WebDataset": Source(
        BATCH,
        lambda folder: rx.data.read_webdataset(str(folder / "*.tar")).map(sample_rows),
        lambda folder, batch: in_threads(
            samples(folder), lambda sample: (decoded(sample["jpg"]), np.int32(sample["cls"])), batch
        ),
        {},
    ),
    "images, folders": Source(
        BATCH,
        lambda folder: rx.data.read_images(str(folder / "folder"), SIZE).shuffle(1),
        lambda folder, batch: in_threads(iter(range(IMAGES)), Folder(folder).__getitem__, batch),
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


def on_devices(batches: Iterator[Any], devices: int) -> int:
    """Puts batches on devices, two ahead as `strategy.distribute_dataset` does; returns the number of rows."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:devices]), "x"), PartitionSpec("x"))
    rows, ahead = 0, collections.deque[Any](maxlen=2)
    for batch in batches:
        leaves = jax.tree.leaves(batch)
        where = sharding if len(leaves[0]) % devices == 0 else jax.devices()[0]
        ahead.append(jax.device_put(batch, where))
        rows += len(leaves[0])
    jax.block_until_ready(list(ahead))
    return rows


def repeated(read: Callable[[Path, int], Iterator[Any]], epochs: int, folder: Path, batch: int) -> Iterator[Any]:
    """Yields the batches of several epochs."""
    for _ in range(epochs):
        yield from read(folder, batch)


def ours_on_devices(batches: rx.data.RowBatches, devices: int) -> int:
    strategy = rx.MirroredStrategy([f"cpu:{n}" for n in range(devices)])
    rows, value = 0, None
    for value in strategy.distribute_dataset(batches):
        leaf = jax.tree.leaves(value, is_leaf=is_per_replica)[0]
        rows += leaf.stacked.shape[0] * leaf.stacked.shape[1] if is_per_replica(leaf) else leaf.shape[0]
    jax.block_until_ready(value)
    return rows


def rates(read: Callable[[], int]) -> tuple[float, float]:
    """Returns the rows a second, of time and of processor time."""
    began, worked = time.perf_counter(), time.process_time()
    rows = read()
    return rows / (time.perf_counter() - began), rows / (time.process_time() - worked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sources whose name has this in it")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kept, against, worked = [], [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        for name, source in SOURCES.items():
            if options.only not in name:
                continue
            batches = source.ours(folder).batch(source.batch).repeat(source.epochs)
            for devices in (1, 8):
                readers: dict[str, Callable[[], int]] = {
                    reader: lambda r=read, s=source, d=devices: on_devices(repeated(r, s.epochs, folder, s.batch), d)
                    for reader, read in {"by hand": source.by_hand, **source.peers}.items()
                }
                readers["replicax"] = lambda b=batches, d=devices: ours_on_devices(b, d)
                found: dict[str, float] = collections.defaultdict(float)
                work: dict[str, float] = collections.defaultdict(float)
                for _ in range(options.rounds):
                    for reader, read_all in readers.items():
                        rate, of_work = rates(read_all)
                        found[reader], work[reader] = max(found[reader], rate), max(work[reader], of_work)
                worked.append(work["replicax"] / work["by hand"])
                kept.append(found["replicax"] / found["by hand"])
                against.append(found["replicax"] / max(value for peer, value in found.items() if peer != "replicax"))
                shown = ", ".join(f"{reader} {value:,.0f}" for reader, value in found.items())
                print(
                    f"{name}, {devices} device(s), rows/s: {shown}; kept {kept[-1]:.2f}, for the work {worked[-1]:.2f}",
                    flush=True,
                )
    print(f"RESULT input_kept_min {min(kept):.2f}")
    print(f"RESULT input_kept_for_the_work_min {min(worked):.2f}")
    print(f"RESULT input_vs_best_peer {min(against):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
