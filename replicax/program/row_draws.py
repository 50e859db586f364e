"""Random numbers by rows: what the replicas draw together is what one device draws for the global batch.

In a strategy with `random_numbers="per_row"` all replicas have the same seeds. A draw that has a number for each row is
made in parts: each replica gets what belongs to its rows (`program/row_bits.py`). Any other draw is the same on all
replicas. So nothing depends on the number of replicas, and training with dropout goes on alike when it changes.

A shape does not say whether it has to do with rows: of a draw of shape (8, 4) a replica with 8 rows cannot know. So the
function is traced a second time as one device would run it, on all rows. A draw that is (32, 4) there has rows; one
that is (8, 4) there too has none. The first trace guesses, and where it was wrong the function is traced again.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import NamedTuple, cast

import jax

import replicax.errors as replicax_errors
from replicax.compat.jax import vary, varying_axes
from replicax.compat.jax_draws import intercept_draws
from replicax.compat.jax_tracing import is_kept_by_jax, is_on_devices, trace_anew_from_here
from replicax.errors import ProgramError
from replicax.program.row_bits import bits_of_rows
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.once import once

_FEW_KEYS = 4  # as many as `jax.random.split` is often asked for, whatever the number of rows
_OURS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (jax.__file__, replicax_errors.__file__))
_NO_PART = -1


class _Group(NamedTuple):
    """Draws among which those of the other trace are looked for.

    Attributes:
        kind: `"bits"` or `"keys"`.
        place: Where in the user's code they are made, if that matters.
    """

    kind: str
    place: Hashable = None


class _Draw(NamedTuple):
    """One draw.

    Attributes:
        shape: Its shape.
        dimension: The dimension of the rows; None if it has none.
    """

    shape: tuple[int, ...]
    dimension: int | None


class RowDraws:
    """The random numbers that a replica function draws with keys that are the same on all replicas.

    Args:
        name: The function's name, for messages.
        replicas: Number of replicas.
        rows: The numbers of rows that its arguments have on one replica.
        as_one_device: Traces the function as one device runs it, with the draws noted in another object.
    """

    def __init__(
        self, name: str, replicas: int, rows: frozenset[int], as_one_device: Callable[[RowDraws], None] | None = None
    ):
        self.replicas = replicas
        self._name, self._rows, self._as_one_device = name, rows, as_one_device
        self._by_place = False
        self._taken: dict[_Group, list[_Draw]] = {}
        self._right: dict[_Group, list[_Draw]] = {}
        self._of_one: dict[_Group, list[_Draw]] | None = None

    def begin(self) -> None:
        """Begins a trace of the function."""
        self._taken = {}

    def dimension(self, kind: str, shape: tuple[int, ...]) -> int | None:
        """Returns the dimension of the rows in a draw that is made now; None if it has none."""
        group = _Group(kind, _place() if self._by_place else None)
        if self._by_place:
            trace_anew_from_here()  # Or JAX would not come by here again for a draw of this shape.
        taken = self._taken.setdefault(group, [])
        known = self._right.get(group, [])
        known = [*known[len(taken) : len(taken) + 1], *known]
        guess = self._guess(kind, shape)
        dimension = next((draw.dimension for draw in known if draw.shape == shape), guess)
        taken.append(_Draw(shape, dimension))
        return dimension

    def _guess(self, kind: str, shape: tuple[int, ...]) -> int | None:
        if kind == "keys" and shape[0] <= _FEW_KEYS:
            return None
        return next((i for i, size in enumerate(shape) if size in self._rows), None)

    def are_right(self, has_built: bool) -> bool:
        """Returns whether all draws of the last trace were made as one device makes them; if not, trace again.

        Args:
            has_built: Whether the trace created variables, and may have drawn what no later one draws.

        Raises:
            ProgramError: One device draws something of which a replica has no part, or the function cannot be traced
                for all rows.
        """
        if not self._taken:
            return True
        if self._of_one is None:
            self._of_one = self._drawn_by_one()
        right: dict[_Group, list[_Draw]] = {}
        for group, taken in self._taken.items():
            found = self._matched(group, [draw.shape for draw in taken], has_built)
            if found is None:
                self._by_place, self._of_one, self._right = True, None, {}
                return False
            right[group] = [_Draw(draw.shape, dimension) for draw, dimension in zip(taken, found, strict=True)]
        self._right = right
        return right == self._taken

    def _drawn_by_one(self) -> dict[_Group, list[_Draw]]:
        assert self._as_one_device is not None
        noted = RowDraws(self._name, 1, frozenset(size * self.replicas for size in self._rows))
        noted._by_place = self._by_place
        try:
            self._as_one_device(noted)
        except Exception as error:
            raise ProgramError(
                f"{self._name} draws random numbers, and random_numbers='per_row' asks for those that one device draws "
                f"for the rows of all {self.replicas} replicas. To know them it was traced for so many rows, which "
                f"failed: {type(error).__name__}: {error}. Write it for any number of rows (take it from the "
                "arguments' shapes), or use random_numbers='per_replica'."
            ) from error
        return noted._taken

    def _matched(self, group: _Group, shapes: list[tuple[int, ...]], has_built: bool) -> list[int | None] | None:
        """Returns what is right for each draw of a group; None if the places have to be known for that."""
        assert self._of_one is not None
        of_one = [draw.shape for draw in self._of_one.get(group, [])]
        if self._by_place and len(of_one) == len(shapes):
            found = [self._dimension_of(*pair) for pair in zip(shapes, of_one, strict=True)]
            if _NO_PART not in found:
                return found
        right: list[int | None] = []
        for shape in shapes:
            fitting = {self._dimension_of(shape, whole) for whole in of_one} - {_NO_PART}
            if not fitting and has_built:
                fitting = {None}
            if len(fitting) > 1 and not self._by_place:
                return None
            if len(fitting) != 1:
                raise ProgramError(self._refusal(group, shape, of_one))
            right += fitting
        return right

    def _dimension_of(self, part: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
        """Returns the dimension by which a draw for all replicas is larger; None if it is no larger."""
        if part == whole:
            return None
        if len(part) != len(whole):
            return _NO_PART
        larger = [i for i, (a, b) in enumerate(zip(part, whole, strict=True)) if a != b]
        fits = len(larger) == 1 and whole[larger[0]] == part[larger[0]] * self.replicas
        return larger[0] if fits else _NO_PART

    def _refusal(self, group: _Group, shape: tuple[int, ...], of_one: list[tuple[int, ...]]) -> str:
        what = "keys" if group.kind == "keys" else "random numbers"
        where = f" ({group.place[-1]})" if isinstance(group.place, tuple) else ""
        shapes = ", ".join(map(str, dict.fromkeys(of_one))) or "nothing of the kind"
        return (
            f"{self._name} draws {what} of shape {shape} on each of {self.replicas} replicas{where}. For the rows of "
            f"all of them one device draws {shapes}, and it is not clear which part of that is a replica's. With "
            "random_numbers='per_row' a draw has one dimension that grows with the rows, in proportion, or none. Draw "
            "numbers for each row and use what you need of them, and make different draws in different lines."
        )


_active: ContextVar[RowDraws | None] = ContextVar("replicax_row_draws", default=None)


@contextlib.contextmanager
def drawing(draws: RowDraws | None) -> Iterator[None]:
    """Lets `draws` decide about the random numbers that are drawn in a `with` block; None: each replica by itself."""
    if draws is not None:
        _intercept()
    token = _active.set(draws)
    try:
        yield
    finally:
        _active.reset(token)


@once
def _intercept() -> None:
    intercept_draws(_drawn)


def _drawn(
    key: jax.Array, bit_width: int | None, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], jax.Array]
) -> jax.Array:
    draws = _active.get()
    # A key that varies is a replica's or a row's own. Numbers that are drawn at once are no part of the program.
    if draws is None or key.ndim or not shape or REPLICA_AXIS in varying_axes(key) or not _is_of_replica():
        return draw(shape)
    dimension = draws.dimension("keys" if bit_width is None else "bits", shape)
    if dimension is None:
        return draw(shape)
    if draws.replicas == 1:  # Typed as in the other trace, so that loops are traced alike.
        return vary(draw(shape), REPLICA_AXIS)
    return bits_of_rows(key, bit_width, shape, dimension, draws.replicas, draw)


def _is_of_replica() -> bool:
    return is_kept_by_jax() or is_on_devices()


def _place() -> Hashable:
    """Returns where the running code is, by the lines that are not JAX's or ours; ends with `file:line (function)`."""
    frame: FrameType | None = sys._getframe(1)
    found: list[Hashable] = []
    nearest = ""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append((code, frame.f_lasti))
            nearest = nearest or f"{code.co_filename}:{frame.f_lineno} ({code.co_name})"
        frame = frame.f_back
    return (*found, nearest)


def with_rows_together(array: jax.Array) -> jax.Array:
    """Returns a stand-in for a per-replica value, stacked, all of whose rows belong to one replica."""
    replicas, *rest = array.shape
    shape = (1, replicas * rest[0], *rest[1:]) if rest else (1,)
    return cast(jax.Array, jax.ShapeDtypeStruct(shape, array.dtype))
