from __future__ import annotations

import json
import sys

import pytest

from replicax.cluster import ClusterSpec, SimpleClusterResolver
from replicax.errors import ClusterError
from replicax.ray_cluster import connect
from tests.ray_cluster.conftest import python


def test_without_a_cluster_the_ways_to_one_are_told(bare: pytest.MonkeyPatch):
    with pytest.raises(
        ClusterError, match=r"The cluster was not found. Run .*replicax run --ps 1 --workers 2.*TF_CONFIG"
    ):
        connect()
    bare.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(ClusterError, match="The cluster was not found"):
        connect()


def test_an_address_needs_numbers(bare: pytest.MonkeyPatch):
    with pytest.raises(ClusterError, match="The cluster does not tell how many workers to use, got 'auto'"):
        connect(address="auto")


def test_a_cluster_of_tasks_needs_a_token_and_a_coordinator(bare: pytest.MonkeyPatch):
    spec = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN is not set"):
        connect(SimpleClusterResolver(spec))
    with pytest.raises(ClusterError, match=r"task.type cannot coordinate"):
        connect(SimpleClusterResolver(spec, task_type="worker", task_id=0))
    with pytest.raises(ClusterError, match="resolver tells all of it"):
        connect(SimpleClusterResolver(spec), workers=1)
    bare.setenv("TF_CONFIG", json.dumps({"cluster": spec, "task": {"type": "ps", "index": 0}}))
    with pytest.raises(ClusterError, match=r"task.type cannot coordinate"):
        connect()
    with pytest.raises(ClusterError, match="cluster is empty"):
        connect(SimpleClusterResolver(ClusterSpec()))


def test_without_ray_the_way_to_install_it_is_told(bare: pytest.MonkeyPatch):
    bare.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"ray cannot be imported .* pip install 'replicax\[ray\]'"):
        connect(workers=1)


def test_importing_replicax_does_not_import_ray():
    done = python("import sys, replicax as rx, replicax.testing, replicax.ray_cluster; print('ray' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
