"""Draws the pictures of guides/plots.md and guides/tuning.md anew by running the pages."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import replicax.tools.plots as plots

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "plots"
KINDS = ("losses", "learning_rates", "memory_per_device", "bytes_per_step", "staleness", "worker_timeline")


def drawing_both(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the plot that a page writes twice: for light and for dark ground."""

    @functools.wraps(draw)
    def both(*args: Any, path: Any = None, dark: bool = False, **kwargs: Any) -> Any:
        for name, is_dark in (("light", False), ("dark", True)) if path else ():
            draw(*args, path=IMAGES / f"{Path(path).stem}-{name}.svg", dark=is_dark, **kwargs)
        return draw(*args, dark=dark, **kwargs)

    return both


def main() -> None:
    """Runs both pages."""
    for kind in KINDS:
        setattr(plots, kind, drawing_both(getattr(plots, kind)))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for page in ("plots", "tuning"):
            namespace: dict[str, Any] = {"__name__": "__main__"}
            text = (DOCS / "guides" / f"{page}.md").read_text()
            for code in re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
                exec(code, namespace)
    print(*sorted(os.listdir(IMAGES)), sep="\n")


if __name__ == "__main__":
    main()
