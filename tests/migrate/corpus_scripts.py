"""The scripts of tests/migrate/corpus: what the manifest says about each, and what TensorFlow computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

from replicax.tensorflow.proof.recording import Recording

FOLDER = Path(__file__).resolve().parent / "corpus"
RECORDINGS = Path(__file__).resolve().parent / "recordings"
#: What lies beside the scripts for them to import.
HELPERS = ("small_data.py", "portpicker.py")


class Script(NamedTuple):
    """One script of the corpus.

    Attributes:
        name: Its file's name without the suffix.
        repository: Where it is from.
        url: The page of the original.
        tensorflow: The TensorFlow that it needs: `"2.21"`, `"2.15"`, or another that is not at hand.
        keras: The Keras that it is written for.
        arguments: Its arguments.
        environment: Its environment.
        steps: How many training steps it makes at least, up to 50.
        replicas: On how many devices it runs: a script may ask for a mesh.
        scales: Whether its batches grow with the number of replicas. Then TensorFlow's numbers are those of as many
            replicas; otherwise they are those of one, which any number has to reproduce.
    """

    name: str
    repository: str
    url: str
    tensorflow: str
    keras: int
    arguments: tuple[str, ...]
    environment: dict[str, str]
    steps: int
    replicas: tuple[int, ...]
    scales: bool

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    def recording_path(self, replicas: int) -> Path:
        return RECORDINGS / f"{self.name}.{replicas}.json"

    def recording(self, replicas: int) -> Recording | None:
        """Returns what TensorFlow computed; None if no TensorFlow at hand runs the script."""
        path = self.recording_path(replicas if self.scales else 1)
        return Recording.read(path) if path.is_file() else None


def scripts() -> list[Script]:
    """Returns all scripts, in the order of the manifest."""
    found = json.loads((FOLDER / "manifest.json").read_text())
    return [
        Script(
            each["name"],
            each["repository"],
            each["url"],
            each["tensorflow"],
            each["keras"],
            tuple(each["arguments"]),
            each["environment"],
            each["steps"],
            tuple(each["replicas"]),
            each["scales"],
        )
        for each in found
    ]


def beside(folder: Path) -> Path:
    """Puts into a folder what scripts import from their own folder; returns the folder."""
    for name in HELPERS:
        if (FOLDER / name).is_file():
            shutil.copy(FOLDER / name, folder / name)
    return folder
