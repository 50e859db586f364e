"""The result of a restore: the values that it returns, and what was left out of it or is deferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax.checkpoint.deferred import DeferredRestore
from replicax.checkpoint.places import Place
from replicax.errors import UnmatchedError
from replicax.typing import PyTree


class LoadStatus(dict[str, PyTree]):
    """The objects that have values in them, by name, with the restored values; and how much of a checkpoint was used.

    A restore is strict unless it is asked to be partial: every name must be on both sides. Only models and optimizers
    that are not built may lack values after it: they get them when they are built. The assertions are TensorFlow's;
    each returns the status.
    """

    def __init__(
        self,
        values: Mapping[str, PyTree],
        source: Place | None,
        matched: int = 0,
        unused: Sequence[str] = (),
        unmatched: Sequence[str] = (),
        waiting: Sequence[DeferredRestore] = (),
        notes: Sequence[str] = (),
    ):
        super().__init__(values)
        # The notes say, in sentences, what was left out on purpose: of a checkpoint of TensorFlow's, say, the state of
        # metrics. The source is None if there was no checkpoint to restore.
        self._source, self._matched, self.notes = source, matched, tuple(notes)
        self._unused, self._unmatched, self._waiting = tuple(unused), tuple(unmatched), tuple(waiting)

    def assert_consumed(self) -> LoadStatus:
        """Checks that all of the checkpoint was given to objects, and that it had something for all of them."""
        self._check_any()
        waiting = [each.what_to_do() for each in self._waiting if each.is_missed]
        if self._unused or self._unmatched or waiting:
            lists = (
                f"Not all of the checkpoint {self._source} was used. Only in the checkpoint: "
                f"{[*self._unused] or 'nothing'}; only in the objects: {[*self._unmatched] or 'nothing'}."
            )
            raise UnmatchedError(" ".join([lists, *waiting]))
        return self

    def assert_existing_objects_matched(self) -> LoadStatus:
        """Checks that the checkpoint had something for all variables that exist; some may not be made yet."""
        self._check_any()
        if self._unmatched:
            raise UnmatchedError(f"The checkpoint {self._source} has nothing for {list(self._unmatched)}.")
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        """Checks that the checkpoint and the objects have something in common."""
        self._check_any()
        if not self._matched and not any(each.wanted for each in self._waiting):
            raise UnmatchedError(f"Nothing in the checkpoint {self._source} belongs to one of the objects.")
        return self

    def expect_partial(self) -> LoadStatus:
        """Does nothing: a partial restore warns at once of what it leaves out. (TensorFlow warns at the end.)"""
        return self

    def _check_any(self) -> None:
        if self._source is None:
            raise UnmatchedError("There was no checkpoint to restore: the path was None, so all objects are as before.")
