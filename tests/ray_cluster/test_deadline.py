from __future__ import annotations

import logging

import pytest

from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.ray_cluster.deadline import PATIENCE, Deadline, wait_for


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "10", None])
def test_what_is_no_time(seconds):
    with pytest.raises(ClusterError, match="start_timeout must be a positive number of seconds"):
        Deadline(seconds)


def test_who_is_missing_is_reported_and_then_told(caplog: pytest.LogCaptureFixture):
    patience = PATIENCE._replace(again=0.06)
    caplog.set_level(logging.WARNING)
    with pytest.raises(
        ClusterTimeoutError, match=r"chief waited 0.7 s at a:1 for ps:1 at b:1 \(4 of 5 tasks here"
    ) as got:
        wait_for(lambda: ["ps:1 at b:1"], 5, "chief", "a:1", Deadline(0.7), patience)
    assert got.value.missing == ("ps:1 at b:1",)
    assert caplog.messages[0] == "4 of 5 tasks here after 0 s; missing ps:1 at b:1"
    assert len(caplog.messages) == 1


def test_the_wait_ends_with_the_last_one():
    left = [["b"], ["b"], []]
    wait_for(lambda: left.pop(0), 1, "chief", "a:1", Deadline(10))
    assert left == []
