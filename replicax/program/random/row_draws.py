"""Random numbers by rows: what the replicas draw together is what one device draws for the global batch.

In a strategy with `random_numbers="per_row"` all replicas have the same seeds. A draw that has a number for each row is
made in parts: each replica gets what belongs to its rows (`program/random/row_bits.py`). Any other draw is the same on
all replicas. So nothing depends on the number of replicas, and training with dropout goes on alike when it changes.

A shape does not say whether it has to do with rows: of a draw of shape (8, 4) a replica with 8 rows cannot know. So the
function is traced a second time as one device would run it, on all rows. A draw that is (32, 4) there has rows; one
that is (8, 4) there too has none. The first trace guesses, and where it was wrong the function is traced again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Hashable
from types import FrameType
from typing import NamedTuple, cast

import jax

import replicax.context as context
import replicax.errors as replicax_errors
from replicax.compat.jax_tracing import trace_anew_from_here
from replicax.errors import ProgramError

_FEW_KEYS = 4  # as many as `jax.random.split` is often asked for, whatever the number of rows
_PACKAGES = (os.path.dirname(jax.__file__), os.path.dirname(os.path.dirname(replicax_errors.__file__)))
_OURS = tuple(os.path.abspath(path) + os.sep for path in _PACKAGES)
_NO_PART = -1
_MAX_CORRECTIONS = 6


class _Group(NamedTuple):
    """Draws among which those of the other trace are looked for."""

    kind: str  # `"bits"`, `"keys"`, or the sampler that draws
    refused: tuple[int, ...] = ()  # dimensions that cannot have rows: along them a draw depends on the rows of others
    is_in_part: bool = False  # made in a micro-batch: those of one device may have another part of the rows
    place: Hashable = None  # where in the user's code they are made, if that matters


class _Draw(NamedTuple):
    shape: tuple[int, ...]
    dimension: int | None  # of the rows; None if it has none


class RowDraws:
    """The random numbers that a replica function draws with keys that are the same on all replicas."""

    def __init__(
        self, name: str, replicas: int, rows: frozenset[int], as_one_device: Callable[[RowDraws], None] | None = None
    ):
        self.replicas = replicas
        # `rows` are the numbers of rows that the arguments have on one replica. `as_one_device` traces the function as
        # one device runs it, and notes the draws in the object that it is given.
        self._name, self._rows, self._as_one_device = name, rows, as_one_device
        self._by_place = False
        self._corrections = 0
        self._taken: dict[_Group, list[_Draw]] = {}
        self._right: dict[_Group, list[_Draw]] = {}
        self._of_one: dict[_Group, list[_Draw]] | None = None

    def begin(self) -> None:
        """Begins a trace of the function."""
        self._taken = {}

    def dimension(self, kind: str, shape: tuple[int, ...], refused: tuple[int, ...] = ()) -> int | None:
        """Returns the dimension of the rows in a draw that is made now; None if it has none."""
        part = context.current().part_of_rows
        group = _Group(kind, refused, part != 1, _place() if self._by_place else None)
        if self._by_place:
            trace_anew_from_here()  # Or JAX would not come by here again for a draw of this shape.
        taken = self._taken.setdefault(group, [])
        known = self._right.get(group, [])
        known = [*known[len(taken) : len(taken) + 1], *known]
        guess = self._guess(kind, shape, {round(rows * part) for rows in self._rows})
        dimension = next((draw.dimension for draw in known if draw.shape == shape), guess)
        taken.append(_Draw(shape, dimension))
        return dimension

    def _guess(self, kind: str, shape: tuple[int, ...], rows: Collection[int]) -> int | None:
        if kind == "keys" and shape[0] <= _FEW_KEYS:
            return None
        return next((i for i, size in enumerate(shape) if size in rows), None)

    def are_right(self, has_built: bool) -> bool:
        """Returns whether all draws of the last trace were made as one device makes them; if not, trace again."""
        if not self._taken:
            return True
        if self._of_one is None:
            self._of_one = self._drawn_by_one()
        right = {group: self._matched(group, taken, has_built) for group, taken in self._taken.items()}
        known = {
            group: [draw if found is None else found for draw, found in zip(self._taken[group], all_found, strict=True)]
            for group, all_found in right.items()
        }
        for group, draws in known.items():
            # A replica's part of such a draw would depend on the rows of others.
            if any(draw.dimension in group.refused for draw in draws if draw.dimension is not None):
                raise ProgramError(self._mixing(group))
        if known != self._taken:  # Other keys may be those of rows then, and other draws are to be looked for.
            self._right = known
            return self._not_yet()
        unknown = [
            (group, i)
            for group, all_found in right.items()
            for i, each in enumerate(all_found)
            if each is None and not group.is_in_part
        ]
        if unknown and not self._by_place:
            self._by_place, self._of_one, self._right = True, None, {}
            return self._not_yet()
        for group, i in unknown:
            raise ProgramError(self._refusal(group, self._taken[group][i].shape))
        return True

    def _not_yet(self) -> bool:
        self._corrections += 1
        if self._corrections > _MAX_CORRECTIONS:
            raise ProgramError(
                f"{self._name} draws other random numbers each time that it is traced ({self._corrections} times by "
                "now), or other ones for each number of rows: with random_numbers='per_row' it is not clear which of "
                "them belong to rows. Let the function draw the same whenever it is called."
            )
        return False

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

    def _matched(self, group: _Group, taken: list[_Draw], has_built: bool) -> list[_Draw | None]:
        """Returns what is right for each draw of a group; None where that is not known."""
        shapes, of_one = [draw.shape for draw in taken], self._shapes_of_one(group)
        if self._by_place and len(of_one) == len(shapes):
            found = [_Draw(*pair) for pair in zip(shapes, map(self._dimension_of, shapes, of_one), strict=True)]
            if all(draw.dimension != _NO_PART for draw in found):
                return list(found)
        right: list[_Draw | None] = []
        for shape in shapes:
            fitting = {self._dimension_of(shape, whole) for whole in of_one} - {_NO_PART}
            if not fitting and has_built:  # The trace created variables, and may have drawn what no later one draws.
                fitting = {None}
            right.append(_Draw(shape, *fitting) if len(fitting) == 1 else None)
        return right

    def _shapes_of_one(self, group: _Group) -> list[tuple[int, ...]]:
        assert self._of_one is not None
        return [draw.shape for draw in self._of_one.get(group, [])]

    def _dimension_of(self, part: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
        """Returns the dimension by which a draw for all replicas is larger; None: no larger; `_NO_PART`: no fit."""
        if part == whole:
            return None
        if len(part) != len(whole):
            return _NO_PART
        larger = [i for i, (a, b) in enumerate(zip(part, whole, strict=True)) if a != b]
        fits = len(larger) == 1 and whole[larger[0]] == part[larger[0]] * self.replicas
        return larger[0] if fits else _NO_PART

    def _mixing(self, group: _Group) -> str:
        return (
            f"{self._name} asks jax.random for a {group.kind} for the rows of its batch. With "
            "random_numbers='per_row' it would be that of one device for the rows of all "
            f"{self.replicas} replicas, of which a replica has no part. Exchange rows with "
            "jax.random.permutation(key, rows) itself, put them together first "
            "(rx.get_replica_context().all_gather(rows, axis=0)), or do it in the dataset, before the batch is split; "
            "split keys of jax.random.key(seed, impl='threefry2x32')."
        )

    def _refusal(self, group: _Group, shape: tuple[int, ...]) -> str:
        what = group.kind if group.kind == "keys" else "random numbers"
        where = f" ({group.place[-1]})" if isinstance(group.place, tuple) else ""
        shapes = ", ".join(map(str, dict.fromkeys(self._shapes_of_one(group)))) or "nothing of the kind"
        return (
            f"{self._name} draws {what} of shape {shape} on each of {self.replicas} replicas{where}. For the rows of "
            f"all of them one device draws {shapes}, and it is not clear which part of that is a replica's. With "
            "random_numbers='per_row' a draw has one dimension that grows with the rows, in proportion, or none. Draw "
            "numbers for each row and use what you need of them, and make different draws in different lines."
        )


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
