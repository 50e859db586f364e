"""Which process of a job reports."""

from __future__ import annotations

from replicax.contracts.group import current_group


def follows_others() -> bool:
    """Returns whether others have trained before this process, a newcomer or the replacement of a lost worker."""
    # It may be the chief even so, as the first worker is when it comes again; another one may have reported meanwhile.
    return current_group().came_later


def is_chief() -> bool:
    """Returns whether this process is the one of its job that reports now."""
    return current_group().is_chief
