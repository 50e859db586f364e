from __future__ import annotations

import pytest

from replicax.errors import ClusterError
from replicax.ray_cluster.memory import object_store_memory
from replicax.ray_cluster.task_counts import TaskCounts, given_counts, told_counts


@pytest.mark.parametrize(
    ("given", "counts"),
    [((None, None), None), ((2, 3), TaskCounts(2, 3)), ((4, None), TaskCounts(workers=4, servers=1))],
)
def test_numbers_that_were_given(given, counts):
    assert given_counts(*given) == counts


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((None, 1), "workers is missing"),
        ((0, 1), "workers must be an int of at least 1, got 0"),
        ((1, 0), "servers must be an int of at least 1, got 0"),
        ((1, -1), "servers must be an int of at least 1, got -1"),
        ((True, 1), "workers must be an int"),
        (("2", 1), "workers must be an int of at least 1, got '2'"),
    ],
)
def test_what_is_no_number_of_tasks(given, says):
    with pytest.raises(ClusterError, match=says):
        given_counts(*given)


def test_numbers_in_the_environment():
    assert told_counts({}) is None
    assert told_counts({"REPLICAX_PS_WORKERS": "2", "REPLICAX_PS_SERVERS": "1"}) == TaskCounts(2, 1)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"REPLICAX_PS_WORKERS": "2"}, "REPLICAX_PS_SERVERS is not set"),
        ({"REPLICAX_PS_SERVERS": "2"}, "REPLICAX_PS_WORKERS is not set"),
        ({"REPLICAX_PS_WORKERS": "0", "REPLICAX_PS_SERVERS": "1"}, "REPLICAX_PS_WORKERS must be an int of at least 1"),
        ({"REPLICAX_PS_WORKERS": "x", "REPLICAX_PS_SERVERS": "1"}, "REPLICAX_PS_WORKERS must be an int"),
    ],
)
def test_what_is_no_number_in_the_environment(environ, says):
    with pytest.raises(ClusterError, match=says):
        told_counts(environ)


def test_the_object_store_takes_what_is_there_and_no_more_than_two_gibibytes(tmp_path):
    assert 100 * 2**20 <= object_store_memory(str(tmp_path)) <= 2**30
    assert 100 * 2**20 <= object_store_memory(str(tmp_path / "absent")) <= 2**30
