"""What came of a restore: the values that it returns, and what was left out of it or waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicax.checkpoint.deferred import Deferred
from replicax.errors import UnmatchedError


class LoadStatus(dict[str, Any]):
    """The objects that have values in them, by name, with the restored values; and how much of a checkpoint was used.

    A restore is strict by itself: unless it is asked for a partial one, every name must be on both sides. What may be
    open after it are the values of models and optimizers that are not built: they get them when they are. The
    assertions are TensorFlow's; each returns the status.

    Args:
        values: The values by the objects' names.
        source: The checkpoint, for messages; None if there was none to restore.
        matched: How many names both sides have.
        unused: Names in the checkpoint that no object has.
        unmatched: Names in the objects that the checkpoint lacks.
        waiting: What waits for objects to be built.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: Any,
        matched: int = 0,
        unused: Sequence[str] = (),
        unmatched: Sequence[str] = (),
        waiting: Sequence[Deferred] = (),
    ):
        super().__init__(values)
        self._source, self._matched = source, matched
        self._unused, self._unmatched, self._waiting = tuple(unused), tuple(unmatched), tuple(waiting)

    def assert_consumed(self) -> LoadStatus:
        """Checks that all of the checkpoint was given to objects, and that it had something for all of them.

        Raises:
            UnmatchedError: It was not: it lists the names, and the objects that are not built yet.
        """
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
        """Checks that the checkpoint had something for all variables that there are; some may not be made yet.

        Raises:
            UnmatchedError: It had not: it lists the names.
        """
        self._check_any()
        if self._unmatched:
            raise UnmatchedError(f"The checkpoint {self._source} has nothing for {list(self._unmatched)}.")
        return self

    def assert_nontrivial_match(self) -> LoadStatus:
        """Checks that the checkpoint and the objects have something in common.

        Raises:
            UnmatchedError: They have not.
        """
        self._check_any()
        if not self._matched and not any(each.wanted for each in self._waiting):
            raise UnmatchedError(f"Nothing in the checkpoint {self._source} belongs to one of the objects.")
        return self

    def expect_partial(self) -> LoadStatus:
        """Does nothing: a partial restore says what it leaves out as it happens. (TensorFlow warns at the end.)"""
        return self

    def _check_any(self) -> None:
        if self._source is None:
            raise UnmatchedError("There was no checkpoint to restore: the path was None, so all objects are as before.")
