"""Arguments that a shell, Kubernetes or YAML could change, and what a program got of them."""

from __future__ import annotations

from pathlib import Path

ARGUMENTS = ("--epochs", "3", "it's", "$HOME", "$(NAME)", "a\nb", '"', "\\")


def words(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]
