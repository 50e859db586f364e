"""Several messages as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def joined(messages: Sequence[bytes]) -> bytes:
    """Returns messages as one."""
    lengths = b"".join(len(message).to_bytes(8, "big") for message in messages)
    return b"".join([len(messages).to_bytes(4, "big"), lengths, *messages])


def separated(joined: bytes) -> list[bytes]:
    """Returns the messages that `joined` made one."""
    count = int.from_bytes(joined[:4], "big")
    lengths = [int.from_bytes(joined[4 + 8 * i : 12 + 8 * i], "big") for i in range(count)]
    ends = list(itertools.accumulate(lengths, initial=4 + 8 * count))
    return [joined[start:end] for start, end in itertools.pairwise(ends)]
