"""How long each example takes and what it prints: the page `docs/examples.md`.

    python benchmarks/gallery.py                      # runs all, some minutes, and writes the page
    python benchmarks/gallery.py --only fit_mnist     # runs this one and keeps what is known of the others
    python benchmarks/gallery.py --page               # runs nothing and writes the page anew

The seconds are those of the whole command, imports and compilation included, on eight virtual CPU devices. What was
measured is kept in `benchmarks/gallery.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
MEASURED = ROOT / "benchmarks" / "gallery.json"
PAGE = ROOT / "docs" / "examples.md"
LINES, COLUMNS = 1, 88  # of an output that the page shows
DEADLINE_S = 280.0


class Example(NamedTuple):
    """An example of the gallery.

    Attributes:
        file: The script, under `examples/`.
        arguments: What follows it.
        launcher: What `replicax run` is given; without it the script runs by itself.
        picture: A picture that it draws, of which the page shows a copy.
        shows_output: Whether the page shows how it is run and what it prints; what the schemes of DTensor print is in
            their guide.
    """

    file: str
    arguments: str = ""
    launcher: str = ""
    picture: str = ""
    shows_output: bool = True

    @property
    def command(self) -> str:
        start = f"replicax run {self.launcher}" if self.launcher else "python"
        return f"{start} examples/{self.file} {self.arguments}".strip()


SECTIONS = {
    "Keras `fit`": [Example("fit_seed.py"), Example("fit_mnist.py"), Example("multi_worker_fit.py", "", "--workers 2")],
    "Keras loops": [
        Example("custom_loop_seed.py"),
        Example("custom_loop_keras.py"),
        Example("multi_worker_custom_loop.py", "", "--workers 3"),
        Example("imagenet_like.py"),
    ],
    "JAX, optax and flax": [
        Example("custom_loop_optax.py"),
        Example("resumable_loop.py", "runs/loop --kill 20", "--workers 2 --restarts 1"),
        Example("flax_mnist.py"),
        Example("flax_vae.py"),
    ],
    "Large models and tables": [
        Example("finetune_gemma_lora.py"),
        Example("recommender.py", "--rows 20000 --kinds one_device mirrored"),
    ],
    "Asynchronous training and slow links": [
        Example("parameter_server_custom_loop.py", "", "--ps 2 --workers 3"),
        Example("parameter_server_fit.py", "", "--ps 2 --workers 3"),
        Example("diloco_mnist.py", "", "--workers 2"),
    ],
    "Roles and clients": [Example("estimator_mnist.py"), Example("standalone_client.py", "", "--workers 2")],
    "DTensor": [
        Example("dtensor_mlp.py", "--seeds 22,23", picture="runs/dtensor_mlp/loss.png"),
        *(
            Example(f"dtensor_schemes/{name}.py", shows_output=False)
            for name in ("data_parallel", "model_parallel", "data_model", "sequence", "spatial", "embedding", "table")
        ),
    ],
}


class Measurement(NamedTuple):
    """What an example came to: its seconds, and the last lines that it printed."""

    seconds: float
    output: list[str]


def measured(example: Example) -> Measurement:
    """Runs an example.

    Raises:
        RuntimeError: It failed.
    """
    words = shlex.split(example.command)
    words[:1] = [sys.executable, "-m", "replicax"] if words[0] == "replicax" else [sys.executable]
    environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{example.command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if example.picture:
        shutil.copy(ROOT / example.picture, PAGE.parent / _copy_of(example))
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout).splitlines() if line.strip()]
    return Measurement(round(seconds, 1), lines[-LINES:])


def known() -> dict[str, Measurement]:
    """Returns what has been measured, by command."""
    if not MEASURED.exists():
        return {}
    return {command: Measurement(*values) for command, values in json.loads(MEASURED.read_text())["examples"].items()}


def page(measurements: dict[str, Measurement]) -> str:
    """Returns the page."""
    parts = [
        "# Examples",
        "Each example is one file and runs without changes (`pip install '.[examples]'`). Seconds are of the whole"
        " command, on two cores with eight virtual devices (`benchmarks/gallery.py`).",
    ]
    for title, examples in SECTIONS.items():
        parts.append(f"## {title}")
        for example in examples:
            found = measurements.get(example.command)
            if not example.shows_output:
                parts.append(f"- {_linked(example)}: {_about(example, found)}")
                continue
            parts += [f"### {_linked(example)}", _about(example, found), _printed(example, found)]
            if example.picture:
                parts.append(f"![What `{example.file}` draws]({_copy_of(example)}){{ .picture }}")
    return "\n\n".join(parts) + "\n"


def _copy_of(example: Example) -> str:
    return f"images/example-{Path(example.file).stem}.png"


def _all() -> list[Example]:
    return [example for examples in SECTIONS.values() for example in examples]


def _doc(example: Example) -> str:
    return ast.get_docstring(ast.parse((EXAMPLES / example.file).read_text())) or ""


def _about(example: Example, found: Measurement | None) -> str:
    title = _doc(example).partition("\n")[0]
    return f"{title}{f' {found.seconds} s.' if found else ''}"


def _linked(example: Example) -> str:
    return f"[{example.file}]({_repository()}/blob/main/examples/{example.file})"


def _printed(example: Example, found: Measurement | None) -> str:
    lines = [f"$ {example.command}", *(found.output[-LINES:] if found else [])]
    text = "\n".join(part for line in lines for part in _cut(line))
    return f"```console\n{text}\n```"


def _repository() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def _cut(line: str) -> list[str]:
    return textwrap.wrap(line, COLUMNS, drop_whitespace=False, subsequent_indent="  ") or [""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="the examples whose name contains one of these")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    arguments = parser.parse_args()
    measurements = known()
    for example in [] if arguments.page else _all():
        if any(name in example.file for name in arguments.only):
            measurements[example.command] = measured(example)
            print(f"{example.command}: {measurements[example.command].seconds} s", flush=True)
            kept = {"python": platform.python_version(), "cores": os.cpu_count(), "examples": measurements}
            MEASURED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(measurements))
    timed = [measurements[example.command] for example in _all() if example.command in measurements]
    print(f"RESULT examples_in_gallery {len(timed)}")
    print(f"RESULT examples_seconds {sum(found.seconds for found in timed):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
