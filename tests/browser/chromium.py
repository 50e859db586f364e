"""The Chromium of the system's packages, headless. None is ever downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends", "chromium")
MISSING = f"The site is looked at with Chromium, and none of {', '.join(NAMES)} is on PATH"

# A root without a user namespace of its own has no sandbox; the site is this repository's.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"]


def executable() -> str | None:
    """Returns where Chromium is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def installed_executable() -> str:
    """Returns where Chromium is; root on Debian or Ubuntu installs it first.

    Raises:
        SystemExit: There is none, and this user cannot install it.
    """
    found = executable()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "--quiet"], check=True)
        subprocess.run(INSTALL, check=True)
        found = executable()
    if found is None:
        raise SystemExit(f"{MISSING}. On Debian and Ubuntu: sudo {' '.join(INSTALL)}")
    return found


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Starts Chromium for this thread, and ends it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()
