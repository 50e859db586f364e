"""Ends scripts in every way while they write; what was written last must be there, or the end must say that it is not.

    python tests/soak/endings.py [--quick] [--cases manager,csv]

A case is a writer (`endings_job.py`), an ending, and how the script runs: alone, as two workers of `replicax run`, as
one, in a notebook's kernel, or as workers of a notebook. Saves are slowed down, so that the ending comes meanwhile. A
fresh process looks at the files afterwards. Lost is what was promised and is not there; silent is a loss, or a save
that failed, where the exit code is 0 or no word names it. `os._exit` may lose; the next save must say so.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = Path(__file__).with_name("endings_job.py")
_BLOCK = 32768  # of a run of Weights & Biases
LONGEST_S = 240.0  # for one case; longer is a hang
AT_ONCE = 2
SIGNALS = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT}
CODES = {"last": {0}, "exception": {1}, "exit": {3}, "os_exit": {0}, "sigterm": {-15, 143}, "sigint": {-2, 130, 1}}
RESUME = 75  # of a script that saves when it is told to go
SAVES_AT_SIGTERM = ("preempted", "backup")


class Case(NamedTuple):
    """A script and how it ends.

    Attributes:
        writer: What it writes.
        ending: How it ends.
        how: Where it runs.
    """

    writer: str
    ending: str
    how: str

    def __str__(self) -> str:
        return f"{self.writer}, {self.ending}, {self.how}"


_ALL = ("last", "exception", "exit", "sigterm", "sigint")
_ENDS = ("last", "exception", "exit", "sigint")  # SIGTERM ends a thread that trains.
_INSIDE = ("exception", "exit", "sigterm", "sigint")  # of what a user's function is called from
_ALONE = {
    **{
        "manager": (*_ALL, "os_exit"),
        "full_disk": _ALL,
        "checkpoint": ("last", "exit"),
        "thread": _ENDS,
    },
    **{"daemon": _ENDS, "preempted": ("sigterm",), "export": _ENDS},
    **{"csv": (*_ALL, "os_exit"), "event_files": _ALL, "event_files_full_disk": _ALL, "mlflow": ("last", "exception")},
    **{"wandb": ("last", "exception"), "backup": _INSIDE, "keras_events": _INSIDE, "estimator": _INSIDE},
}
_TWO = {
    **{"manager": (*_ALL, "os_exit"), "full_disk": ("last", "exit"), "checkpoint": ("last",)},
    **{"thread": ("last", "exit"), "daemon": ("last",), "preempted": ("sigterm",)},
    **{"elastic": ("last", "exception", "exit")},
    **{"csv": ("last",), "event_files": ("last", "exception"), "backup": ("exception", "sigterm"), "islands": _ALL},
    **{"keras_events": ("exit",), "estimator": ("exception", "exit"), "snapshot": ("exception", "exit")},
}
_ONE = {"manager": ("last", "exit", "sigterm"), "full_disk": ("last",), "preempted": ("sigterm",)}
CASES = [
    *(Case(writer, ending, "alone") for writer, endings in _ALONE.items() for ending in endings),
    *(Case(writer, ending, "two workers") for writer, endings in _TWO.items() for ending in endings),
    *(Case(writer, ending, "one worker") for writer, endings in _ONE.items() for ending in endings),
    *(Case(writer, "last", how) for writer in ("manager", "full_disk") for how in ("kernel", "workers of a notebook")),
]
QUICK = (Case("manager", "exit", "alone"), Case("event_files_full_disk", "last", "alone"))

_CELL = """
import runpy, sys
sys.argv = [{job!r}, {writer!r}, "last", {folder!r}]
kept = runpy.run_path({job!r}, run_name="__main__")
"""
_NOTEBOOK = """
import sys
import replicax as rx

def train(job, writer, folder):
    import os, runpy, sys
    sys.argv = [job, writer, "last", folder]
    runpy.run_path(job, run_name="__main__")

if __name__ == "__main__":
    rx.notebook.launch(train, ({job!r}, {writer!r}, {folder!r}), workers=2)
"""


def run(case: Case, folder: Path) -> tuple[int | None, str]:
    """Runs a case; returns its exit code, None if it hung, and what it said."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    environment["MLFLOW_ALLOW_FILE_STORE"] = "true"
    if case.how == "kernel":
        return _run_in_kernel(case, folder, environment)
    script = [str(JOB), case.writer, case.ending, str(folder)]
    command, workers = [sys.executable, *script], 1
    if case.how in ("one worker", "two workers"):
        workers = 2 if case.how == "two workers" else 1
        options = {"elastic": ["--elastic", "1:2"], "islands": ["--islands"], "snapshot": ["--restarts", "1"]}
        launcher = [sys.executable, "-m", "replicax", "run", "--workers", str(workers)]
        command = [*launcher, "--log-dir", str(folder / "logs"), *options.get(case.writer, []), *script]
    if case.how == "workers of a notebook":
        notebook = folder / "notebook.py"
        notebook.write_text(_NOTEBOOK.format(job=str(JOB), writer=case.writer, folder=str(folder)))
        command = [sys.executable, str(notebook)]
    output = folder / "output.txt"
    with output.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True, cwd=folder)
        try:
            _signal(process, case, folder, workers)
            code: int | None = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    logs = [path.read_text() for path in sorted(folder.glob("logs/*.log"))]
    return code, "\n".join([output.read_text(), *logs])


def _signal(process: subprocess.Popen[bytes], case: Case, folder: Path, workers: int) -> None:
    """Sends the signal of a case when all workers are where it is to come."""
    if case.ending not in SIGNALS:
        return
    deadline = time.monotonic() + LONGEST_S
    while process.poll() is None and len(list(folder.glob("ready-*"))) < workers:
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, LONGEST_S)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(SIGNALS[case.ending])


def _run_in_kernel(case: Case, folder: Path, environment: dict[str, str]) -> tuple[int | None, str]:
    """Runs a cell and shuts the kernel down, as Jupyter does."""
    from jupyter_client.manager import KernelManager

    output = folder / "output.txt"
    with output.open("w") as out:
        kernel = KernelManager(kernel_name="python3")
        kernel.shutdown_wait_time = 30
        kernel.start_kernel(env=environment, stdout=out, stderr=out, cwd=str(folder))
        try:
            client = kernel.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=LONGEST_S)
            cell = _CELL.format(job=str(JOB), writer=case.writer, folder=str(folder))
            client.execute_interactive(cell, timeout=LONGEST_S, output_hook=lambda message: None)
            client.stop_channels()
            provisioner: Any = kernel.provisioner
            process = provisioner.process
        finally:
            kernel.shutdown_kernel()
    return process.returncode, output.read_text()


# What is there.


def problems(case: Case, folder: Path) -> list[str]:
    """Returns what was promised and is not there."""
    promised = json.loads((folder / "promised.json").read_text())
    found = []
    for what, value in promised.items():
        check = _CHECKS.get(what)
        problem = check(folder, value, promised) if check is not None else ""
        found += [problem] if problem else []
    return found


def _steps(folder: Path, steps: list[int], promised: dict[str, Any]) -> str:
    import numpy as np

    import replicax as rx

    w = rx.Variable(np.zeros((16, 8), np.float32))
    manager = rx.CheckpointManager(folder / "saved", objects={"w": w})
    if manager.all_steps() != steps:
        return f"steps {manager.all_steps()} in the place of {steps}"
    manager.restore(steps[-1])
    value = promised.get("value", promised.get("last", 0))
    return "" if np.all(w.numpy() == value) else f"step {steps[-1]} has {np.unique(w.numpy())}, and not {value}"


def _newest(folder: Path, wanted: bool, promised: dict[str, Any]) -> str:
    import replicax as rx

    return "" if rx.latest_checkpoint(folder / "saved") else "no checkpoint"


def _exported(folder: Path, wanted: bool, promised: dict[str, Any]) -> str:
    import numpy as np

    import replicax as rx

    if not (folder / "exported").is_dir():
        return "no export"
    result = rx.load_export(folder / "exported")(np.ones((16, 8), np.float32))
    return "" if np.all(np.asarray(result) == 2.0) else "the export computes something else"


def _logged(folder: Path, steps: list[int], promised: dict[str, Any]) -> str:
    found: list[int] = []
    if (folder / "log.csv").exists():
        found = [int(row.split(",")[0]) for row in (folder / "log.csv").read_text().split()[1:]]
    elif (folder / "events").exists():
        found = sorted(step for tag, step in _scalars(folder / "events") if tag == "loss")
    elif (folder / "mlruns").exists():
        table = next(folder.glob("mlruns/*/*/metrics/loss"))
        found = [int(row.split()[2]) for row in table.read_text().splitlines()]
    else:
        run = next(folder.glob("wandb/offline-run-*/*.wandb"), None)
        found = steps if run is not None and _offline_steps(run) == len(steps) else []
    return "" if found == steps else f"logged {found}"


def _offline_steps(file: Path) -> int:
    """Returns how many values a run of Weights & Biases has: records in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, count, record = file.read_bytes(), 7, 0, b""
    while at + 7 <= len(data):
        if at % _BLOCK > _BLOCK - 7:
            at += _BLOCK - at % _BLOCK
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            count += Record.FromString(record).WhichOneof("record_type") == "history"
            record = b""
    return count


def _scalars(folder: Path) -> list[tuple[str, int]]:
    """Returns the names and steps of the scalars in event files."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.glob("**/events.out.tfevents.*"):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            found += [(value.tag, event.step) for value in event.summary.value]
            data = data[16 + size :]
    return found


def _epochs(folder: Path, epochs: int, promised: dict[str, Any]) -> str:
    found = {step for tag, step in _scalars(folder / "events") if tag == "epoch_loss"}
    return "" if found == set(range(epochs)) else f"epochs {found}"


def _backups(folder: Path, count: int, promised: dict[str, Any]) -> str:
    from replicax.checkpoint import damaged_files
    from replicax.checkpoint.numbered import numbered

    found = [each for each in numbered(folder / "backup") if not damaged_files(each.path)]
    return "" if found and found[-1].number >= count else f"backups {[each.number for each in found]}"


def _estimator(folder: Path, step: int, promised: dict[str, Any]) -> str:
    from replicax.checkpoint import damaged_files
    from replicax.checkpoint.numbered import numbered

    found = [each for each in numbered(folder / "saved") if not damaged_files(each.path)]
    return "" if found and found[-1].number >= step else f"steps {[each.number for each in found]}"


def _restored(folder: Path, step: int, promised: dict[str, Any]) -> str:
    return "" if step == promised["wanted"] else f"the next attempt goes on from step {step}"


_CHECKS: dict[str, Callable[[Path, Any, dict[str, Any]], str]] = {
    **{"steps": _steps, "newest": _newest, "exported": _exported, "logged": _logged, "epochs": _epochs},
    **{"backups": _backups, "estimator": _estimator, "restored": _restored},
}


class Found(NamedTuple):
    """What came of a case: what is lost, whether in silence, and what else was wrong."""

    lost: str
    silent: bool
    wrong: str


def examine(case: Case, folder: Path) -> Found:
    """Runs a case and looks at what it has left."""
    code, said = run(case, folder)
    if code is None:
        return Found("", False, f"it hung:\n{said[-3000:]}")
    if not (folder / "promised.json").exists():
        return Found("", False, f"code {code} before anything was promised:\n{said[-3000:]}")
    lost = "; ".join(problems(case, folder))
    fails = json.loads((folder / "promised.json").read_text()).get("fails")
    if case.ending == "os_exit":
        return Found("", bool(lost) and not code and not _said_later(folder), "")
    silent = bool(lost) and code == 0
    wrong = ""
    if fails is not None:
        silent = silent or (code == 0 and case.how != "kernel") or fails not in said
    else:
        expected = {RESUME} if case.ending == "sigterm" and case.writer in SAVES_AT_SIGTERM else CODES[case.ending]
        if case.writer == "snapshot":
            expected = {0}  # of the second attempt
        wrong = "" if code in expected or case.how == "kernel" else f"code {code}, and not {expected}:\n{said[-3000:]}"
    return Found(f"{lost} (code {code}):\n{said[-3000:]}" if lost else "", silent, wrong)


def _said_later(folder: Path) -> bool:
    """Returns whether the next process that saves says that one was cut short."""
    script = (
        "import sys, numpy as np, replicax as rx\n"
        "manager = rx.CheckpointManager(sys.argv[1], objects={'w': rx.Variable(np.zeros((16, 8), np.float32))})\n"
        "manager.save(9)\n"
        "manager.close()\n"
    )
    command = [sys.executable, "-c", script, str(folder / "saved")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    return "00000003" in ran.stderr


def soak(cases: Sequence[Case], at_once: int = AT_ONCE) -> dict[Case, Found]:
    """Returns what came of the cases."""

    def one(case: Case) -> Found:
        with tempfile.TemporaryDirectory() as name:
            begun = time.monotonic()
            try:
                found = examine(case, Path(name))
            except Exception as error:
                found = Found("", False, repr(error))
            words = (found.lost and f"LOST {found.lost}", "SILENT" if found.silent else "", found.wrong)
            said = " | ".join(filter(None, words)) or "well"
            print(f"{case} ({time.monotonic() - begun:.0f} s): {said}", flush=True)
            return found

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return dict(zip(cases, pool.map(one, cases), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the most telling cases")
    parser.add_argument("--cases", help="only cases with one of these words, such as 'manager' or 'two workers'")
    arguments = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # What a shell runs in the background ignores it.
    words = arguments.cases.split(",") if arguments.cases else [""]
    cases = QUICK if arguments.quick else [each for each in CASES if any(word in str(each) for word in words)]
    found = soak(cases)
    wrong = sum(bool(each.wrong) for each in found.values())
    lost, silent = sum(bool(each.lost) for each in found.values()), sum(each.silent for each in found.values())
    print(f"RESULT endings_cases {len(found)}")
    print(f"RESULT endings_wrong {wrong}")
    print(f"RESULT endings_lost {lost}")
    print(f"RESULT endings_silent {silent}")
    return bool(lost or silent or wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
