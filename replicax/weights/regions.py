"""Tensors that lie in one run of bytes of a file, row after row: safetensors, and most datasets of HDF5."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replicax.errors import WeightsError
from replicax.weights.pieces import Piece

_BLOCK_BYTES = 1 << 22  # Read at once, where a piece is not a run of bytes itself; a processor's cache holds it.


@dataclass(frozen=True)
class FileRegion:
    """A tensor in a file, in C order."""

    path: Path
    offset: int  # of the first value, in bytes
    shape: tuple[int, ...]
    dtype: np.dtype  # in the file's byte order

    @property
    def nbytes(self) -> int:
        """The number of bytes that it has in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Reads pieces that lie in the same rows, and each of these rows once."""
        with _opened(self.path) as file:
            if self.shape:
                self._fill(file, self.offset, self.shape, [(piece.bounds, piece.values) for piece in pieces])
                return
            for piece in pieces:
                self._fill(file, self.offset, (1,), [(((0, 1),), piece.values.reshape(1))])

    def _fill(
        self,
        file: io.RawIOBase,
        offset: int,
        shape: tuple[int, ...],
        pieces: Sequence[tuple[tuple[tuple[int, int], ...], np.ndarray]],
    ) -> None:
        pieces = [piece for piece in pieces if piece[1].size]
        if not pieces:
            return
        first, last = min(bounds[0][0] for bounds, _ in pieces), max(bounds[0][1] for bounds, _ in pieces)
        row = math.prod(shape[1:]) * self.dtype.itemsize
        if len(pieces) == 1 and self._is_run(pieces[0], shape):
            self._read(file, offset + first * row, pieces[0][1])
            return
        if len(shape) > 1 and row > _BLOCK_BYTES:
            for i in range(first, last):
                within = [(b[1:], values[i - b[0][0]]) for b, values in pieces if b[0][0] <= i < b[0][1]]
                self._fill(file, offset + i * row, shape[1:], within)
            return
        rows = max(1, _BLOCK_BYTES // row)
        block = np.empty((min(rows, last - first), *shape[1:]), self.dtype)
        for start in range(first, last, rows):
            part = block[: min(rows, last - start)]
            self._read(file, offset + start * row, part)
            for bounds, values in pieces:
                _copy_rows(part, start, bounds, values)

    def _is_run(self, piece: tuple[tuple[tuple[int, int], ...], np.ndarray], shape: tuple[int, ...]) -> bool:
        bounds, values = piece
        is_whole = all(bound == (0, length) for bound, length in zip(bounds[1:], shape[1:], strict=True))
        return is_whole and values.dtype == self.dtype and values.flags.c_contiguous

    def _read(self, file: io.RawIOBase, offset: int, values: np.ndarray) -> None:
        memory = memoryview(values.reshape(-1).view(np.uint8).data)
        while memory:
            try:
                file.seek(offset)  # Each call of `fill` has opened its own file. Windows has no `preadv`.
                count = file.readinto(memory)
            except OSError as error:
                raise WeightsError(f"{self.path} cannot be read at byte {offset}: {error}.") from error
            if not count:
                raise WeightsError(
                    f"{self.path} ends at byte {offset}, {len(memory)} bytes before the end of a tensor of shape "
                    f"{self.shape}: it was not written or copied completely. Copy it again."
                )
            memory, offset = memory[count:], offset + count


def _copy_rows(block: np.ndarray, start: int, bounds: tuple[tuple[int, int], ...], values: np.ndarray) -> None:
    """Copies what a piece has of some rows, from `start` on; it converts them to the piece's dtype."""
    first, last = max(start, bounds[0][0]), min(start + len(block), bounds[0][1])
    if first < last:
        part = (slice(first - start, last - start), *(slice(*bound) for bound in bounds[1:]))
        np.copyto(values[first - bounds[0][0] : last - bounds[0][0]], block[part], casting="unsafe")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.RawIOBase]:
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115  # An error of the block is none of opening it.
    except OSError as error:
        raise WeightsError(f"{path} cannot be opened: {error}.") from error
    with file:
        yield file
