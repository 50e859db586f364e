"""Records what TensorFlow computes in the scripts of the corpus.

    python tests/migrate/record.py --python 2.21=/path/to/python --python 2.15=/path/to/python [script ...]

For a developer's machine with TensorFlow; the recordings are committed, so that nobody else needs it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from replicax.tensorflow.proof.running import Run, RunFailedError, on_tensorflow
from tests.migrate.corpus_scripts import RECORDINGS, Script, beside, scripts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the scripts; all of them without")
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH", help="an interpreter")
    parser.add_argument("--replicas", type=int, action="append", help="how many replicas")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    options = parser.parse_args()
    pythons = {version: Path(path) for version, path in (each.split("=", 1) for each in options.python)}
    RECORDINGS.mkdir(exist_ok=True)
    wanted = [
        each for each in scripts() if each.tensorflow in pythons and (each.name in options.names or not options.names)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(_record, script, pythons[script.tensorflow], replicas)
            for script in wanted
            for replicas in (script.replicas if script.scales else (1,))
            if replicas in (options.replicas or script.replicas)
        ]
        return 0 if sum(not each.result() for each in runs) == 0 else 1


def _record(script: Script, python: Path, replicas: int) -> bool:
    """Records one run; returns whether it made its steps.

    The batches of eight replicas are given to one, in the scripts whose batches grow with the number of replicas: the
    numbers are the same, and it takes a tenth of the time.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = beside(Path(folder)) / script.path.name
        text = script.path.read_text()
        if replicas > 1 and (batch := re.search(r"(?<=BATCH_SIZE_PER_REPLICA = )\d+", text)):
            text, replicas_of_run = text[: batch.start()] + str(int(batch[0]) * replicas) + text[batch.end() :], 1
        else:
            replicas_of_run = replicas
        copy.write_text(text)
        run = Run(copy, script.arguments, script.environment, replicas_of_run, stop=True)
        try:
            recording = on_tensorflow(run, python, legacy_keras=script.keras == 2)
        except RunFailedError as error:
            print(f"{script.name} on {replicas}: {error}", flush=True)
            return False
    made = len(recording.objectives)
    print(f"{script.name} on {replicas}: {made} steps, {recording.objectives[:2]} {recording.error[-700:]}", flush=True)
    if recording.error or made < script.steps:
        return False
    recording.write(script.recording_path(replicas))
    return True


if __name__ == "__main__":
    sys.exit(main())
