from __future__ import annotations

import threading

import numpy as np

from replicax.group.membership.attempts import Attempt


def test_a_sum_that_is_given_up_while_its_clique_is_made_never_begins():
    making, given_up = threading.Event(), threading.Event()
    summed = []

    class Clique:
        def total(self, parts):
            summed.append(parts)
            return parts

        def interrupt(self):
            """Has nothing to interrupt."""

    def clique():
        making.set()
        assert given_up.wait(10)
        return Clique()

    attempt = Attempt(clique, [np.ones(2)])
    assert making.wait(10)
    attempt.give_up()
    given_up.set()
    assert attempt.ended.wait(10)
    assert attempt.result is None
    assert "given up" in attempt.error
    assert summed == []
