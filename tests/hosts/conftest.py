"""The fixture that makes hosts, or says why this machine cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.host import HostsUnavailable
from tests.hosts.lan import Lan

MakeLan = Callable[..., Lan]


def _what_is_missing() -> str:
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    tools = [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]
    if tools:
        return f"needs {', '.join(tools)} (Debian: iproute2, util-linux)"
    return "" if os.path.exists("/dev/net/tun") else "needs /dev/net/tun"


@pytest.fixture
def make_lan() -> Iterator[MakeLan]:
    """Makes hosts and a network: `make_lan("alpha", "beta")`; see `Lan`. They are gone when the test is over."""
    missing = _what_is_missing()
    if missing:
        pytest.skip(missing)
    with contextlib.ExitStack() as ending:

        def make(*names: str, **options: Any) -> Lan:
            # Short, for Ray's sockets: else its folders would be elsewhere, where nobody removes them.
            folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="r", dir="/tmp"))
            try:
                return ending.enter_context(Lan(names, Path(folder), **options))
            except HostsUnavailable as error:
                pytest.skip(f"cannot make namespaces: {error}")

        yield make
