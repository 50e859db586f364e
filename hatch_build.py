"""The package's description on the package index: README.md, with links that lead to the repository.

Hatchling runs it when it builds; nothing else uses it.
"""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s]+\))")


class Readme(MetadataHookInterface):
    """Gives the metadata a README whose relative links work elsewhere."""

    def update(self, metadata: dict) -> None:
        """Adds `readme`: the text, its links pointing into the repository at this version's tag."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        target = rf"\1{metadata['urls']['Repository']}/blob/v{metadata['version']}/\2"
        metadata["readme"] = {"content-type": "text/markdown", "text": _LINK.sub(target, text)}
