"""Devices that need not exist, by their names."""

from __future__ import annotations

import importlib.util

import jax
import pytest

from replicax.errors import PlanError
from replicax.planning.topologies import Topology


def test_a_name_says_how_many_devices_there_are_and_their_memory():
    assert [Topology.of(name).size for name in ("v5e:4x4", "v5p:2x2x2", "v6e:16x16", "gpu:8x80GiB", "cpu:64")] == [
        16, 8, 256, 8, 64,
    ]  # fmt: skip
    assert Topology.of("gpu:8x80GiB").memory == 80 * 2**30
    assert Topology.of("v5e:4x4").memory == 16 * 2**30
    assert Topology.of("cpu:64").memory is None
    assert Topology.of("cpu:64", 4).hosts == 4


@pytest.mark.parametrize(
    ("name", "hosts", "said"),
    [
        ("tpu", None, "written like 'v5e:4x4'"),
        (8, None, "got 8"),
        ("cpu:0", None, "got 'cpu:0'"),
        ("v99:2x2", None, "Nothing is known of TPU 'v99'"),
        ("v5e:0x4", None, "each of its dimensions has a chip at least, one has 0"),
        ("v5e:3x5", None, "at most 256 chips, and sides that are powers of 2"),
        ("v5e:16x32", None, "at most 256 chips"),
        ("v5p:2x2x6", None, "sides that are 1, 2 or multiples of 4"),
        ("cpu:4097", None, "'cpu:4097' has too many devices: there can be 4096"),
        ("gpu:100000000x80GiB", 8, "too many devices"),
        ("cpu:" + "9" * 5000, None, "written like"),
        ("gpu:8x" + "9" * 400 + "GiB", None, "written like"),
        ("cpu:\u0663", None, "got 'cpu:\u0663'"),
        ("v5e:\u0664x4", None, "written like"),
        ("cpu:8x0GiB", None, "hold nothing"),
        ("cpu:8", 3, "do not divide by hosts=3"),
        ("v5e:4x4", 2, "leave out hosts=2"),
    ],
)
def test_other_names_are_refused(name, hosts, said):
    with pytest.raises(PlanError, match=said):
        Topology.of(name, hosts)


def test_devices_that_there_are_have_a_name_too():
    here = Topology.present(jax.local_devices())
    assert (here.platform, here.size, here.hosts) == ("cpu", 8, 1)


def test_without_its_compiler_a_plan_for_tpus_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install 'replicax\[plan\]'"):
        Topology.of("v5e:2x2").prepare({})


def test_flags_that_would_end_the_compiler_of_tpus_are_not_handed_on(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    flags = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"}
    Topology.of("v5e:2x2").prepare(flags)
    assert "XLA_FLAGS" not in flags
    flags["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"
    Topology.of("cpu:2").prepare(flags)
    assert "XLA_FLAGS" in flags
