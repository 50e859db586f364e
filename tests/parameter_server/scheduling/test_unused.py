"""Notes of what nobody refers to any more."""

from __future__ import annotations

import gc

from replicax.parameter_server.scheduling.unused import Unused, UnusedObjects


class Owner:
    """Somebody for whom something was provided."""


def test_a_note_is_taken_when_the_owner_is_gone_and_read_once():
    unused = UnusedObjects()
    first, second = Owner(), Owner()
    unused.watch(first, 7)
    unused.watch(second, ("program", 3), servers=(0, 2))
    assert list(unused.take()) == []
    del second
    gc.collect()
    assert list(unused.take()) == [Unused(("program", 3), (0, 2))]
    del first
    gc.collect()
    assert list(unused.take()) == [Unused(7)]
    assert list(unused.take()) == []
