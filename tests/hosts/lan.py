"""Hosts on this machine, and the network between them.

Each host is a set of Linux namespaces: processes, network, mounts (for a hosts file of its own) and name. All of it
belongs to one process, `machine.py`, which ends when the test does, in whatever way. Nothing of it has a name in the
system; the kernel removes it. The hosts' private addresses exist in these namespaces only, which are connected with
nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.host import Host
from tests.hosts.switch import Switch

# What the hosts file of a host says of itself, besides localhost.
DEBIAN = "127.0.1.1 {name}"
RIGHT = "{own} {name}"


class Lan:
    """Some hosts and the network between them, until the block ends.

    Args:
        names: The hosts' names.
        folder: For logs, temporary files, and the hosts' own files.
        line: What the hosts file of each host says of itself, with `{name}` and `{own}` for its name and address.
        ipv6: Whether the hosts have IPv6 addresses, and no others.

    Raises:
        HostsUnavailable: This machine cannot make hosts.
    """

    def __init__(self, names: Sequence[str], folder: Path, line: str = DEBIAN, ipv6: bool = False):
        self._names, self._folder, self._line = names, folder, line
        form, self._prefix = ("fd73::{}", 64) if ipv6 else ("10.73.0.{}", 24)
        self.addresses = [form.format(number) for number in range(1, len(names) + 1)]
        self.hosts: list[Host] = []
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Lan:
        with contextlib.ExitStack() as ending:
            switch = Switch()
            ending.callback(switch.close)
            for index in range(len(self._names)):
                host = self._make(index)
                ending.callback(host.off)
                switch.plug_in(host.cable)
                self.hosts.append(host)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def _make(self, index: int) -> Host:
        name = self._names[index]
        folder = self._folder / name
        folder.mkdir()
        mac = f"02:00:00:00:00:{index + 1:02x}"
        addresses = [f"{self.addresses[index]}/{self._prefix}"]
        settings = {"name": name, "files": self._files(index, folder), "addresses": addresses, "mac": mac}
        return Host(name, json.dumps(settings), mac, folder)

    def _files(self, index: int, folder: Path) -> dict[str, str]:
        """Writes the files that this host sees in the place of the machine's."""
        me = self._line.format(name=self._names[index], own=self.addresses[index])
        others = [f"{self.addresses[i]} {name}" for i, name in enumerate(self._names) if i != index]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", me, *others, ""]))
        (folder / "resolv.conf").write_text("")
        both = {"/etc/hosts": folder / "hosts", "/etc/resolv.conf": folder / "resolv.conf"}
        return {path: str(own) for path, own in both.items() if Path(path).exists()}
