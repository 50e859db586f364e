"""The immutable queue, against a deque."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, strategies as st

from replicax.parameter_server.scheduling.ledger import Fifo

CHANGES = st.lists(st.tuples(st.sampled_from(["append", "push_front", "pop", "without"]), st.integers(0, 5)))


@given(changes=CHANGES)
def test_it_does_what_a_deque_does_and_no_queue_before_is_changed(changes):
    queue: Fifo[int] = Fifo()
    model: collections.deque[int] = collections.deque()
    seen = []
    for change, item in changes:
        if change == "append":
            queue = queue.append(item)
            model.append(item)
        elif change == "push_front":
            queue = queue.push_front(item)
            model.appendleft(item)
        elif change == "without":
            queue = queue.without(item)
            model = collections.deque(each for each in model if each != item)
        elif model:
            taken, queue = queue.pop()
            assert taken == model.popleft()
        seen.append((queue, list(model)))
    for queue, expected in seen:
        assert list(queue) == expected
        assert len(queue) == len(expected)


def test_nothing_can_be_taken_from_an_empty_queue():
    with pytest.raises(IndexError, match="empty"):
        Fifo().append(1).pop()[1].pop()


def test_a_long_queue_is_dropped_without_recursion():
    queue: Fifo[int] = Fifo()
    for item in range(200_000):
        queue = queue.append(item)
    assert queue.pop()[0] == 0
    assert len(queue) == 200_000
    del queue
