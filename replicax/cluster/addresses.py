"""Addresses of tasks: `host:port`, with a name, an IPv4 address or an IPv6 address in brackets as host."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from replicax.errors import ClusterError

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")
_PORT = re.compile(r"0|[1-9][0-9]{0,9}")
_CURE = "Write 'host:port', such as '10.0.0.1:2222', 'worker-0.example:2222' or '[fd00::1]:2222'."


class Address(NamedTuple):
    """A parsed address; different spellings of one host (capital letters, `localhost`) are equal."""

    host: str
    port: int

    def is_loopback(self) -> bool:
        """Returns whether only processes on the same machine can reach it."""
        try:
            ip = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.endswith(".localhost")
        return ip.is_loopback or ip.is_unspecified  # Other machines cannot connect to 0.0.0.0.


def parse_address(text: object, field: str) -> Address:
    """Parses an address; errors call it `field`."""
    if not isinstance(text, str):
        raise ClusterError(field, text if text is not None else "null", "must be a string 'host:port'", _CURE)
    if not text:
        raise ClusterError(field, text, "is an empty address", _CURE)
    if "://" in text:
        raise ClusterError(
            field, text, "must be an address without a scheme", f"Drop {text.split('://')[0]!r}. {_CURE}"
        )
    if any(letter.isspace() for letter in text):
        raise ClusterError(field, text, "must be an address without spaces", _CURE)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise ClusterError(field, text, "has no port", _CURE)
    return Address(_parse_host(host, text, field), _parse_port(port, text, field))


def join_address(host: str, port: int | str) -> str:
    """Returns `"host:port"`; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _parse_port(port: str, text: str, field: str) -> int:
    if not _PORT.fullmatch(port) or not 0 < int(port) < 2**16:
        raise ClusterError(field, text, f"must have a port from 1 to 65535, not {port!r}", _CURE)
    return int(port)


def _parse_host(host: str, text: str, field: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ClusterError(field, text, f"has no valid IPv6 address in its brackets: {host!r}", _CURE) from None
    if ":" in host:
        raise ClusterError(field, text, "has an IPv6 address without brackets, or two ports", _CURE)
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ClusterError(field, text, f"has no valid IPv4 address: {host!r}", _CURE) from None
    if not _NAME.fullmatch(host):
        raise ClusterError(field, text, f"has no valid name of a host: {host!r}", _CURE)
    host = host.lower().rstrip(".")
    return "127.0.0.1" if host == "localhost" else host
