"""Hosts on this machine: network namespaces with addresses of their own, joined by links of a given rate.

Two hosts have one cable between them, more have a switch: a bridge in a namespace of its own. What a host sends passes
a token bucket (`tc ... tbf`) of the link's rate; towards the hosts of a switch another one stands, since there a link
can be asked for more than it carries. Nothing is delayed or lost by intent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CARD = "wire0"
_NAME = re.compile(r"rxw(\d+)-(\d+|switch)")
_BURST = "128kb"  # more than the largest piece (64 KiB) that TCP hands to a card at once
_LATENCY = "50ms"


class WiresUnavailable(Exception):
    """This machine cannot make hosts; it says why."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Names and addresses of the hosts of one run.

    Attributes:
        hosts: The hosts' names, which are those of their namespaces.
        addresses: Their IPv4 addresses.
        switch: The namespace of the switch; None with two hosts.
    """

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    switch: str | None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All namespaces of the run."""
        return (*self.hosts, *([self.switch] if self.switch else []))

    def commands(self) -> list[list[str]]:
        """Returns the commands that make the hosts and their cables, without a rate."""
        made = [["ip", "netns", "add", name] for name in self.namespaces]
        made += [["ip", "-n", name, "link", "set", "lo", "up"] for name in self.namespaces]
        if self.switch is None:
            one, other = self.hosts
            made.append(_cable(one, CARD, other, CARD))
        else:
            made.append(["ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge"])
            made.append(["ip", "-n", self.switch, "link", "set", "bridge", "up"])
            for index, host in enumerate(self.hosts):
                made.append(_cable(host, CARD, self.switch, f"port{index}"))
                made.append(["ip", "-n", self.switch, "link", "set", f"port{index}", "master", "bridge", "up"])
        for host, address in zip(self.hosts, self.addresses, strict=True):
            made.append(["ip", "-n", host, "address", "add", f"{address}/24", "dev", CARD])
            made.append(["ip", "-n", host, "link", "set", CARD, "up"])
        return made

    def senders(self) -> list[tuple[str, str]]:
        """Returns the namespace and card of each end that sends at the link's rate."""
        ports = [(self.switch, f"port{index}") for index in range(len(self.hosts))] if self.switch else []
        return [*((host, CARD) for host in self.hosts), *ports]


def _cable(one: str, card: str, other: str, others_card: str) -> list[str]:
    peer = ["peer", "name", others_card, "netns", other]
    return ["ip", "link", "add", card, "netns", one, "type", "veth", *peer]


def planned(hosts: int, run: int) -> Plan:
    """Returns the plan of a run with `hosts` hosts; `run` is the number of its process, which no other run has.

    Raises:
        ValueError: There are fewer than two hosts, or more than the addresses.
    """
    if not 2 <= hosts <= 250:
        raise ValueError(f"from 2 to 250 hosts, got {hosts}")
    names = tuple(f"rxw{run}-{index}" for index in range(hosts))
    addresses = tuple(f"10.78.0.{index + 1}" for index in range(hosts))
    return Plan(names, addresses, f"rxw{run}-switch" if hosts > 2 else None)


def why_not() -> str | None:
    """Returns the sentence that says why this machine cannot make hosts; None where it can."""
    for tool in ("ip", "tc", "taskset", "setpriv"):
        if shutil.which(tool) is None:
            return f"wires: skipped, there is no `{tool}` here: install iproute2 and util-linux."
    if os.geteuid() != 0:
        return f"wires: skipped, network namespaces need root and this is user {os.geteuid()}: run it with sudo."
    return None


@contextlib.contextmanager
def network(plan: Plan, rate: str) -> Iterator[None]:
    """Makes the hosts of a plan with links of a rate such as `"1gbit"`, and removes them in every case.

    Raises:
        WiresUnavailable: The kernel refuses; it says which command and why.
    """
    remove_left_behind()
    try:
        for command in plan.commands():
            _run(command)
        for namespace, card in plan.senders():
            _run(["tc", "-n", namespace, "qdisc", "add", "dev", card, "root", *_shape(rate)])
        yield
    finally:
        for name in plan.namespaces:
            # The cables go with their ends.
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def set_rate(plan: Plan, rate: str) -> None:
    """Gives all links another rate."""
    for namespace, card in plan.senders():
        _run(["tc", "-n", namespace, "qdisc", "change", "dev", card, "root", *_shape(rate)])


def _shape(rate: str) -> list[str]:
    return ["tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY]


def sent_bytes(host: str) -> int:
    """Returns how many bytes a host has sent on its link since it was made: frames with all their headers."""
    return parse_sent_bytes(_run(["ip", "-n", host, "-s", "-j", "link", "show", "dev", CARD]))


def parse_sent_bytes(shown: str) -> int:
    """Returns the bytes sent that `ip -s -j link show dev ...` tells of.

    Raises:
        WiresUnavailable: It tells of none.
    """
    try:
        [card] = json.loads(shown)
        return int(card["stats64"]["tx"]["bytes"])
    except (ValueError, KeyError, TypeError):
        raise WiresUnavailable(f"`ip -s -j link` tells of no bytes sent: {shown!r:.300}") from None


def bytes_per_second(rate: str) -> float:
    """Returns what a rate such as `"1gbit"` or `"100mbit"` carries.

    Raises:
        ValueError: It is no such rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m|g)bit", rate)
    if found is None:
        raise ValueError(f"a rate such as '1gbit' or '100mbit', got {rate!r}")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]] / 8


def left_behind(names: list[str]) -> list[str]:
    """Returns those of `names` that are namespaces of runs whose process is gone (it was killed)."""
    found = [(name, _NAME.fullmatch(name)) for name in names]
    return [name for name, match in found if match and not Path(f"/proc/{match[1]}").exists()]


def remove_left_behind() -> None:
    """Removes namespaces of runs that were killed."""
    shown = _run(["ip", "netns", "list"])
    for name in left_behind([line.split()[0] for line in shown.splitlines() if line.strip()]):
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise WiresUnavailable(f"`{' '.join(command)}`: {done.stderr.strip() or f'code {done.returncode}'}")
    return done.stdout
