"""The first process of a host: it sets the host up within its new namespaces, and when it ends, all of the host does.

Run by its path, by `unshare`, without site packages. See `lan.py`.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

CARD = "eth0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_JUMBO = "9000"  # Fewer and larger frames: each of them goes through Python.


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Sets the host up, gives its end of the cable away, and stays until the other side of `control` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then closes `control`.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The first process inherits all orphans.
    socket.sethostname(settings["name"])
    for path, source in settings["files"].items():
        _run("mount", "--bind", source, path)
    _run("ip", "link", "set", "lo", "up")
    cable = _card(settings["addresses"], settings["mac"])
    control.sendmsg([b"ready"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [cable]))])
    os.close(cable)
    control.recv(1)


def _card(addresses: list[str], mac: str) -> int:
    """Makes the network card; returns the file that its frames come out of and go into."""
    cable = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(cable, _TUNSETIFF, struct.pack("16sH22x", CARD.encode(), _IFF_TAP | _IFF_NO_PI))
    _run("ip", "link", "set", CARD, "address", mac, "mtu", _JUMBO)
    for address in addresses:
        _run("ip", "address", "add", address, "dev", CARD, *(["nodad"] if ":" in address else []))
    _run("ip", "link", "set", CARD, "up")
    return cable


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
