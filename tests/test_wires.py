"""The parts of `benchmarks/wires.py` that need neither root nor a network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parent.parent / "benchmarks" / "wires_network.py"


@pytest.fixture(scope="module")
def wires():
    spec = importlib.util.spec_from_file_location("wires_network", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_two_hosts_have_a_cable_and_three_a_switch(wires):
    two, three = wires.planned(2, 7), wires.planned(3, 7)
    assert (two.hosts, two.addresses, two.switch) == (("rxw7-0", "rxw7-1"), ("10.78.0.1", "10.78.0.2"), None)
    assert three.namespaces == ("rxw7-0", "rxw7-1", "rxw7-2", "rxw7-switch")
    assert len(two.senders()) == 2
    assert len(three.senders()) == 6
    with pytest.raises(ValueError, match="from 2 to 250"):
        wires.planned(1, 7)


def test_bytes_sent_are_read_from_the_statistics_of_a_card(wires):
    assert wires.parse_sent_bytes('[{"stats64": {"rx": {"bytes": 1}, "tx": {"bytes": 134}}}]') == 134
    with pytest.raises(wires.WiresUnavailable, match="no bytes"):
        wires.parse_sent_bytes("[]")


def test_rates(wires):
    assert wires.bytes_per_second("1gbit") == 125e6
    with pytest.raises(ValueError, match="fast"):
        wires.bytes_per_second("fast")


def test_a_user_without_root_is_told_why_nothing_is_measured(wires, monkeypatch):
    monkeypatch.setattr(wires.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(wires.os, "geteuid", lambda: 1000)
    assert "need root" in wires.why_not()
    monkeypatch.setattr(wires.shutil, "which", lambda tool: None)
    assert "there is no `ip`" in wires.why_not()


def test_only_namespaces_of_runs_that_are_gone_are_left_behind(wires):
    import os

    assert wires.left_behind([f"rxw{os.getpid()}-0", "rxw99999999-0", "other"]) == ["rxw99999999-0"]
