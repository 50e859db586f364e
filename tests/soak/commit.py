"""Kills a process before every call that changes files while it saves; a fresh process must find a whole checkpoint.

    python tests/soak/commit.py [--quick]

The writer is stopped by the kernel at each such call (seccomp, Linux on x86-64): of Python, of TensorStore's threads
in C++, of the C library. Before call number `k` it is killed by SIGKILL, for all `k` until a save is done. Then a fresh
process looks: which checkpoints are there, whether they can be read, and what their values are. It saves once more,
which tidies up, and looks again. Calls that only read are left out: a kill before one leaves the same files as a kill
before the next call that changes them.

Both processes are forked from this one, which has imported everything and done nothing.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import fcntl
import json
import os
import platform
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
AT_ONCE = 2  # supervisors, each with a writer
LONGEST_S = 120.0  # for one writer; longer is a hang
OTHERS_LIVE_S = 0.3  # The other worker lives on for so long.
OLD, NEW = 1.0, 2.0  # All numbers of a checkpoint are one of these, so that a mixture is seen.

# seccomp, for x86-64: linux/seccomp.h, linux/filter.h, asm/unistd_64.h.
_MACHINE = "x86_64"
_PR_SET_NO_NEW_PRIVS, _SYS_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER = 38, 317, 1, 8
_ALLOW, _USER_NOTIF, _CONTINUE = 0x7FFF0000, 0x7FC00000, 1
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_OFFSET_OF_ARGUMENTS = 16
_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, number, architecture, instruction, arguments
_RESPONSE = struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OPEN = {2: ("open", 1), 257: ("openat", 2)}  # The number of the argument that holds the flags.
_OF_DESCRIPTORS = {
    **{1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 328: "pwritev2", 40: "sendfile"},
    **{74: "fsync", 75: "fdatasync", 77: "ftruncate", 285: "fallocate", 326: "copy_file_range", 277: "sync_file_range"},
}
_OF_PATHS = {
    **{82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat", 86: "link", 87: "unlink", 88: "symlink", 90: "chmod"},
    **{76: "truncate", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 265: "linkat", 266: "symlinkat"},
    **{268: "fchmodat", 280: "utimensat", 316: "renameat2", 437: "openat2"},
}


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def why_not() -> str:
    """Returns why calls cannot be watched here; an empty string if they can."""
    if not sys.platform.startswith("linux") or platform.machine() != _MACHINE:
        return f"seccomp's numbers are known for Linux on {_MACHINE} only"
    child = os.fork()
    if child == 0:
        try:
            watch_calls()
            os._exit(0)
        except OSError:
            os._exit(1)
    return "seccomp is forbidden here" if os.waitpid(child, 0)[1] else ""


def watch_calls() -> int:
    """Has the kernel stop this thread, and those it starts, at calls that change files; returns what tells of them."""
    program = [(_LOAD, 0, 0, 0)]
    for number, (_, argument) in _OPEN.items():
        flags = _OFFSET_OF_ARGUMENTS + 8 * argument
        program += [(_JUMP_IF_EQUAL, 0, 4, number), (_LOAD, 0, 0, flags), (_JUMP_IF_SET, 0, 1, _WRITES)]
        program += [(_RETURN, 0, 0, _USER_NOTIF), (_RETURN, 0, 0, _ALLOW)]
    for number in [*_OF_DESCRIPTORS, *_OF_PATHS]:
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _USER_NOTIF)]
    program += [(_RETURN, 0, 0, _ALLOW)]
    instructions = (_Instruction * len(program))(*[_Instruction(*each) for each in program])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    filters = ctypes.byref(_Program(len(program), instructions))
    listener = libc.syscall(_SYS_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, filters)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


class Watched:
    """A forked process whose calls that change files in a folder are counted.

    Args:
        folder: The folder. Calls elsewhere (pipes, logs, caches) go on uncounted.
        run: What the process does; it gets a function to call when counting is to begin. Its end is the process's.
    """

    def __init__(self, folder: Path, run: Callable[[Callable[[], None]], object]):
        ours, its = socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            ours.close()
            _run(its, run)
        its.close()
        self._socket, self._folder = ours, str(folder)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        (self._listener,) = descriptors
        self._counts = False
        self.calls: list[str] = []
        self.status: int | None = None

    def files(self) -> list[int]:
        """Returns what `select` is to wait for."""
        return [self._listener, self._socket.fileno()]

    def go_on(self, kill_before: int | None) -> None:
        """Lets it go on at the call at which it is stopped, or kills it there."""
        ready = {descriptor for descriptor, _ in _poll(self.files(), 0)}
        if self._socket.fileno() in ready:
            if self._socket.recv(1):
                self._counts = True
                self._socket.send(b"g")
            else:
                self.status = os.waitpid(self.process, 0)[1]
        elif self._listener in ready:
            notification = bytearray(_NOTIF.size)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, notification)
            except OSError:  # It is gone.
                return
            identity, thread, _, number, _, _, *arguments = _NOTIF.unpack(notification)
            if self._counts and (call := self._call(thread, number, arguments)):
                self.calls.append(call)
                if len(self.calls) == kill_before:
                    self.kill()
                    return
            try:
                fcntl.ioctl(self._listener, _SEND, bytearray(_RESPONSE.pack(identity, 0, 0, _CONTINUE)))
            except OSError:
                return

    def kill(self) -> None:
        """Kills it."""
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)
            self.status = os.waitpid(self.process, 0)[1]

    def close(self) -> None:
        """Kills it if it lives, and closes what it was watched by."""
        self.kill()
        os.close(self._listener)
        self._socket.close()

    def _call(self, thread: int, number: int, arguments: Sequence[int]) -> str:
        """Describes a call; returns an empty string if it concerns no file in the folder."""
        if number in _OF_DESCRIPTORS:
            try:
                places = [os.readlink(f"/proc/{self.process}/fd/{arguments[0]}")]
            except OSError:
                return ""
        else:
            places = [place for each in arguments[:4] if (place := _text_at(thread, each))]
            if places and not places[0].startswith("/"):  # `rmtree` names files by the descriptor of their folder.
                try:
                    places = [os.path.join(os.readlink(f"/proc/{self.process}/fd/{arguments[0]}"), places[0])]
                except OSError:  # by the working directory, which is elsewhere
                    return ""
        names = {**_OF_DESCRIPTORS, **_OF_PATHS, **{each: name for each, (name, _) in _OPEN.items()}}
        if not any(place.startswith(self._folder) for place in places):
            return ""
        return f"{names[number]} {' '.join(place.removeprefix(self._folder) for place in places)}"


def _text_at(thread: int, address: int) -> str:
    """Returns a path in the memory of another process; an empty string if there is none."""
    try:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            found = memory.read(4096).split(b"\0", 1)[0]
        return found.decode() if found else ""
    except (OSError, OverflowError, UnicodeDecodeError):
        return ""


def _poll(descriptors: Sequence[int], timeout_s: float) -> list[tuple[int, int]]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll.poll(1000 * timeout_s)


def _run(its: socket.socket, run: Callable[[Callable[[], None]], object]) -> None:
    """Is the forked process."""

    def begin() -> None:
        its.send(b"b")
        its.recv(1)

    code = 1
    try:
        listener = watch_calls()
        socket.send_fds(its, [b"l"], [listener])
        os.close(listener)
        run(begin)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# What is done.


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A save.

    Attributes:
        name: Its name.
        before: The values of the checkpoints that are there, by step.
        step: The step that is saved, with the value `NEW`.
        max_to_keep: How many are kept.
        workers: Number of processes that save.
        victim: The one that is killed first; the others shortly after.
        aside: Whether an earlier writer was killed when the checkpoint of the step had lost its name.
    """

    name: str
    before: Mapping[int, float]
    step: int
    max_to_keep: int | None = 3
    workers: int = 1
    victim: int = 0
    aside: bool = False

    def whole(self) -> list[dict[int, float]]:
        """Returns what may be found, from before the save to after it."""
        after = {**self.before, self.step: NEW}
        kept = dict(sorted(after.items())[-self.max_to_keep :]) if self.max_to_keep else after
        return [dict(self.before), after, kept]


SCENARIOS = (
    Scenario("first", {}, 1),
    Scenario("next", {1: OLD}, 2),
    Scenario("replacing", {1: OLD}, 1),
    Scenario("replacing one of two", {1: OLD, 2: OLD}, 1),
    Scenario("keeping one", {1: OLD}, 2, max_to_keep=1),
    Scenario("replacing, keeping one", {1: OLD}, 1, max_to_keep=1),
    Scenario("replacing what a kill left", {1: OLD}, 1, aside=True),
    Scenario("two workers, next", {1: OLD}, 2, max_to_keep=1, workers=2),
    Scenario("two workers, replacing", {1: OLD}, 1, workers=2),
    Scenario("two workers, replacing, the other", {1: OLD}, 1, workers=2, victim=1),
)
QUICK = ("replacing, keeping one",)


def objects(value: float) -> dict[str, Any]:
    """Returns what is saved; all its numbers are `value`."""
    import numpy as np

    import replicax as rx

    return {"a": rx.Variable(np.full((16, 8), value, np.float32)), "b": rx.Variable(np.full(24, value, np.float32))}


def write(folder: Path, step: int, value: float, max_to_keep: int | None, begin: Callable[[], None]) -> None:
    """Restores what there is and saves a step."""
    import numpy as np

    import replicax as rx

    saved = objects(value)
    manager = rx.CheckpointManager(folder, max_to_keep=max_to_keep, objects=saved)
    manager.restore_or_initialize()
    for variable in saved.values():
        variable.assign(np.full(variable.shape, value, np.float32))
    begin()
    manager.save(step)
    manager.close()


def write_as_worker(folder: Path, scenario: Scenario, worker: int, ports: Sequence[int], begin: Any) -> None:
    """Is a worker of a cluster; each writes its part of the variables. Its words are for when a save fails."""
    os.dup2(os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    import numpy as np

    import replicax as rx

    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": worker}})
    strategy = rx.FullyShardedStrategy(min_size=8, start_timeout=60, stall_timeout=60)
    with strategy.scope():
        saved = objects(NEW)
    manager = rx.CheckpointManager(folder, max_to_keep=scenario.max_to_keep, objects=saved)
    manager.restore_or_initialize()
    for variable in saved.values():
        variable.assign(np.full(variable.shape, NEW, np.float32))
    begin()
    manager.save(scenario.step)
    manager.close()


def look(folder: Path) -> tuple[dict[int, float], str]:
    """Returns the values of the checkpoints in a folder by step, and what is wrong with one of them."""
    import numpy as np

    import replicax as rx
    from replicax.checkpoint import damaged_files

    found: dict[int, float] = {}
    try:
        manager = rx.CheckpointManager(folder, objects=objects(0.0))
        for step in manager.all_steps():
            read = objects(0.0)
            if damaged := damaged_files(manager.path(step)):
                return found, f"step {step}: {damaged}"
            rx.CheckpointManager(folder, objects=read).restore(step)
            numbers = {float(each) for variable in read.values() for each in np.unique(variable.numpy())}
            if len(numbers) > 1:
                return found, f"step {step} has the values {sorted(numbers)}"
            found[step] = numbers.pop()
        latest = rx.latest_checkpoint(folder)
        if (latest is None) != (not found):
            return found, f"the latest is {latest}, and there are {sorted(found)}"
        if latest is not None:
            read = objects(0.0)
            rx.Checkpoint(**read).restore(latest)
            if {float(each) for each in np.unique(read["a"].numpy())} != {found[max(found)]}:
                return found, f"{latest} has other values than step {max(found)}"
    except Exception as error:
        return found, repr(error)
    return found, ""


def fresh(work: Callable[[], Any]) -> Any:
    """Returns what a function returns in a process that has only imported what it needs."""
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with os.fdopen(write_end, "w") as file:
                json.dump(work(), file)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read) as file:
        text = file.read()
    code = os.waitpid(child, 0)[1]
    if code:
        raise RuntimeError(f"a process that looks ended with {code}")
    return json.loads(text)


def prepare(folder: Path, scenario: Scenario) -> None:
    """Writes the checkpoints that are there before."""
    folder.mkdir()
    for step, value in scenario.before.items():
        fresh(lambda step=step, value=value: write(folder, step, value, None, lambda: None))
    if scenario.aside:
        (folder / f"{scenario.step:08d}").rename(folder / f".{scenario.step:08d}.0123abcd.replaced")


def saved_until(folder: Path, scenario: Scenario, point: int | None) -> tuple[list[str], bool]:
    """Saves, with a kill before a call; returns the victim's calls, and whether it was killed."""
    from replicax.testing import free_ports

    if scenario.workers == 1:
        works = [lambda begin: write(folder, scenario.step, NEW, scenario.max_to_keep, begin)]
    else:
        ports = free_ports(scenario.workers)
        works = [
            lambda begin, worker=worker: write_as_worker(folder, scenario, worker, ports, begin)
            for worker in range(scenario.workers)
        ]
    processes = [Watched(folder, work) for work in works]
    victim = processes[scenario.victim]
    deadline = time.monotonic() + LONGEST_S
    try:
        while any(each.status is None for each in processes):
            living = [each for each in processes if each.status is None]
            _poll([file for each in living for file in each.files()], 0.1)
            for each in living:
                each.go_on(point if each is victim else None)
            if victim.status not in (None, 0) and deadline > time.monotonic() + OTHERS_LIVE_S:
                deadline = time.monotonic() + OTHERS_LIVE_S
            if time.monotonic() > deadline:
                if victim.status is None:
                    raise RuntimeError(f"{scenario.name}: no end after {victim.calls}")
                break
        killed = victim.status == signal.SIGKILL
        if not killed and any(each.status for each in processes):
            log = Path(f"{folder}.log")
            said = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{scenario.name}: a writer failed: {[each.status for each in processes]}\n{said}")
        return victim.calls, killed
    finally:
        for each in processes:
            each.close()


def checked(folder: Path, scenario: Scenario) -> tuple[str, str, str]:
    """Looks, saves once more, looks again; returns what is lost, half read, and left over, or empty strings."""

    def again() -> Any:
        before, problem = look(folder)
        if problem:
            return [list(before.items()), problem, [], "", []]
        write(folder, scenario.step, 3.0, scenario.max_to_keep, lambda: None)
        after, problem = look(folder)
        left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        return [list(before.items()), "", list(after.items()), problem, left]

    before, first_problem, after, second_problem, left = fresh(again)
    half = first_problem or second_problem
    found = dict(map(tuple, before))
    if not half and found not in scenario.whole():
        return f"{found} in the place of one of {scenario.whole()}", "", ""
    then = {**found, scenario.step: 3.0}
    if not half and dict(map(tuple, after)) not in (then, {scenario.step: 3.0}):
        return f"after one more save {dict(map(tuple, after))}, before it {found}", "", ""
    return "", half, f"{left}" if left else ""


def kills(template: Path, scratch: Path, scenario: Scenario, points: Iterator[int]) -> list[list[str]]:
    """Kills at each of the points, until a save comes to its end; returns what was called and what was found."""
    found = []
    for point in points:
        folder = scratch / f"{point}"
        shutil.copytree(template, folder)
        calls, killed = saved_until(folder, scenario, point)
        found.append([calls[-1] if killed else "", *checked(folder, scenario)])
        shutil.rmtree(folder)
        if not killed:
            break
    return found


def soak(names: Sequence[str], every: int = 1, at_once: int = AT_ONCE) -> dict[str, Any]:
    """Returns how many points there were, and what was lost, half read, and left over at which of them.

    Args:
        names: The scenarios.
        every: Kills before every so-manieth call only.
        at_once: Number of kills that are made at the same time.
    """
    warnings.filterwarnings("ignore", category=RuntimeWarning, message=".*fork.*")
    result: dict[str, Any] = {"points": 0, "lost": [], "half_read": [], "left_over": [], "calls": collections.Counter()}
    with tempfile.TemporaryDirectory() as name:
        for scenario in (each for each in SCENARIOS if each.name in names):
            begun = time.monotonic()
            template = Path(name, "template")
            prepare(template, scenario)
            found = _in_parts(template, Path(name), scenario, every, at_once)
            shutil.rmtree(template)
            points = [each for each in found if each[0]]
            result["points"] += len(points)
            for call, lost, half_read, left_over in found:
                for kind, problem in (("lost", lost), ("half_read", half_read), ("left_over", left_over)):
                    result[kind] += [f"{scenario.name}, before {call or 'nothing'}: {problem}"] if problem else []
            result["calls"].update(each[0].split()[0] for each in points)
            print(f"{scenario.name}: {len(points)} points, {time.monotonic() - begun:.0f} s", flush=True)
    return result


def _in_parts(template: Path, scratch: Path, scenario: Scenario, every: int, at_once: int) -> list[list[str]]:
    """Divides the points among processes."""
    reads = []
    for part in range(at_once):
        points = iter(range(1 + part * every, sys.maxsize, at_once * every))
        read, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            code = 1
            try:
                with os.fdopen(write_end, "w") as file:
                    json.dump(kills(template, scratch, scenario, points), file)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write_end)
        reads.append((child, read))
    found = []
    for child, read in reads:
        with os.fdopen(read) as file:
            text = file.read()
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("a supervisor failed; see above")
        found += json.loads(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one scenario, every ninth call")
    parser.add_argument("--only", choices=[each.name for each in SCENARIOS], help="one scenario")
    arguments = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    if reason := why_not():
        print(f"The calls cannot be watched: {reason}.")
        return 1
    import tensorstore  # noqa: F401 - Imported before the forks, which is what takes the time.

    import replicax.checkpoint
    import replicax.strategies  # noqa: F401

    names = [arguments.only] if arguments.only else QUICK if arguments.quick else [each.name for each in SCENARIOS]
    result = soak(names, every=9 if arguments.quick else 1)
    for kind in ("lost", "half_read", "left_over"):
        print(*(f"{kind}: {each}" for each in result[kind]), sep="\n", end="\n" if result[kind] else "")
    print(f"{dict(result['calls'])}")
    print(f"RESULT commit_points {result['points']}")
    print(f"RESULT commit_left_over {len(result['left_over'])}")
    print(f"RESULT commit_lost {len(result['lost'])}")
    print(f"RESULT commit_half_read {len(result['half_read'])}")
    return bool(result["lost"] or result["half_read"] or result["left_over"])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
