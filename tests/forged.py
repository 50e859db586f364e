"""Documents as somebody would forge them who knows how their checksums are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def signed(document: Mapping[str, object]) -> str:
    """Returns a document with the checksum of its contents, as metadata of checkpoints and exports has it."""
    plain = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return json.dumps({**plain, "sha256": hashlib.sha256(text.encode()).hexdigest()})
