"""A built site over HTTP on this machine, under the path that it has in `site_url`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PREFIX = "/replicax/"


class _Handler(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        if not path.startswith(PREFIX):
            return str(Path(self.directory) / "outside-of-the-site")  # 404
        return super().translate_path("/" + path.removeprefix(PREFIX))

    def log_message(self, *_: object) -> None:
        """Says nothing: the browser reports what fails."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder; yields the address of its index, which ends with a slash."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pages_of(folder: Path) -> list[str]:
    """Returns the pages of a site as their addresses under the index: `""`, `"quickstart/"`, `"404.html"`."""
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.html"))
    return [file.removesuffix("index.html") if file.endswith("index.html") else file for file in files]
