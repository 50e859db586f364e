"""Which places the workers of a client have. Connections are tested in tests/job/processes/test_servers.py."""

from __future__ import annotations

import contextlib

import pytest

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.ray_cluster import workers
from replicax.ray_cluster.workers import connect_workers

SERVERS = ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"], "chief": ["127.0.0.1:3"]})


@pytest.fixture
def ray_of(monkeypatch: pytest.MonkeyPatch):
    """Lets a cluster have nodes with these resources."""

    def made(*nodes: dict[str, float]) -> list[object]:
        attached: list[object] = []
        monkeypatch.setattr(workers, "alive_resources", lambda: list(nodes))
        monkeypatch.setattr(workers, "attach", lambda address, *_: attached.append(address) or contextlib.ExitStack())
        monkeypatch.setattr(
            workers, "attach_to_tasks", lambda spec, *rest, **_: attached.append(rest[-1]) or contextlib.ExitStack()
        )
        return attached

    return made


def test_a_worker_has_its_servers_resource_whole_and_all_of_its_gpus(ray_of):
    attached = ray_of({"replicax_chief_0": 1.0, "GPU": 2.0}, {"replicax_worker_0": 1.0}, {"replicax_worker_1": 1.0})
    room = {"replicax_room": 1.0}
    cluster = connect_workers(SERVERS)
    assert attached == ["client"]
    assert cluster.is_of_servers
    assert [place.name for place in cluster.places] == [
        "chief:0 at 127.0.0.1:3", "worker:0 at 127.0.0.1:1", "worker:1 at 127.0.0.1:2",
    ]  # fmt: skip
    assert [place.bundle for place in cluster.places] == [
        {"replicax_chief_0": 1.0, "GPU": 2.0, **room}, {"replicax_worker_0": 1.0, **room},
        {"replicax_worker_1": 1.0, **room},
    ]  # fmt: skip
    cluster.close()


def test_workers_that_come_and_go_have_room_wherever_there_is_some(ray_of):
    ray_of({"CPU": 2.0, "replicax_room": 1.0}, {"CPU": 4.0, "GPU": 2.0})
    at_servers, anywhere = connect_workers(SERVERS, most=2), connect_workers(address="host:1", most=3)
    assert [place.bundle for place in at_servers.places] == [{"replicax_room": 1.0, "GPU": 1.0}] * 2
    assert [place.name for place in anywhere.places] == ["worker:0", "worker:1", "worker:2"]
    assert anywhere.options(2) == {
        "num_cpus": 1.0, "num_gpus": 1.0, "resources": {}, "scheduling_strategy": "SPREAD",
    }  # fmt: skip
    assert at_servers.options(0)["resources"] == {"replicax_room": 1.0}


def test_workers_in_any_ray_cluster_share_its_gpus(ray_of):
    attached = ray_of({"CPU": 8.0, "GPU": 4.0})
    cluster = connect_workers(address="host:1", workers=2)
    assert attached == ["host:1"]
    assert not cluster.is_of_servers
    assert [(place.name, place.bundle) for place in cluster.places] == [
        ("worker:0", {"CPU": 1.0, "GPU": 2}), ("worker:1", {"CPU": 1.0, "GPU": 2}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cluster": SERVERS, "workers": 2}, "tells all of it"),
        ({"cluster": ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]})}, r"remote_cluster\.ps is not"),
        ({"address": "auto"}, "workers must be an int of at least 1"),
        ({"address": "auto", "workers": True}, "workers must be an int of at least 1"),
        ({"cluster": SERVERS, "start_timeout": 0}, "start_timeout must be a positive number"),
    ],
)
def test_mistakes(ray_of, given, says):
    ray_of()
    with pytest.raises(ClusterError, match=says):
        connect_workers(given.pop("cluster", None), **given)


def test_servers_that_are_not_there_are_named(bare: pytest.MonkeyPatch):
    bare.setenv("REPLICAX_TOKEN", "0" * 32)
    with pytest.raises(ClusterTimeoutError, match=r"client waited 0.3 s at 127.0.0.1:3 for chief:0 at 127.0.0.1:3, w"):
        connect_workers(SERVERS, start_timeout=0.3)


def test_a_client_needs_the_token(bare: pytest.MonkeyPatch):
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN is not set"):
        connect_workers(SERVERS, start_timeout=0.3)
