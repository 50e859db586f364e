"""The processes of `wires.py`: one of each kind on every host, which wait to be told what to do."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wires_network import CARD, Plan
from wires_told import ANSWER

HERE = Path(__file__).resolve().parent


def on_host(plan: Plan, index: int, command: Sequence[str]) -> list[str]:
    """Returns the command that runs another one on a host, on the host's core."""
    cores = sorted(os.sched_getaffinity(0))
    # `setpriv`: none stays behind a driver that was killed.
    enter = ["ip", "netns", "exec", plan.hosts[index], "setpriv", "--pdeathsig", "KILL"]
    return [*enter, "taskset", "--cpu-list", str(cores[index % len(cores)]), *command]


class Hosts:
    """One process on each host; a call goes to all of them at once, since they compute together.

    Args:
        plan: The hosts.
        command: What runs on each: an interpreter and a script.
        environments: What each host's process finds in its environment.
        folder: For their logs.

    Each process has one core: host i that of number i, modulo the cores. A host of its own would share none, and with
    both cores open to both, one host's threads would compute on the other's core while that one waits for the wire.
    """

    def __init__(self, plan: Plan, command: Sequence[str], environments: Sequence[dict[str, str]], folder: Path):
        self._name = Path(command[-1]).stem
        self._logs = [folder / f"{self._name}-{index}.log" for index in range(len(plan.hosts))]
        self._processes = []
        for index, told in enumerate(environments):
            with self._logs[index].open("w") as log:
                process = subprocess.Popen(
                    on_host(plan, index, command),
                    env={**os.environ, **told},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,  # What has arrived and was not asked for stays where `select` sees it.
                )
            self._processes.append(process)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Waits until all processes are up and connected."""
        self._answers(timeout_s, "the start")

    def call(self, name: str, /, timeout_s: float = 240, **arguments: Any) -> list[dict[str, Any]]:
        """Lets every host's process do something and returns what each answers.

        Raises:
            RuntimeError: One has failed, ended, or not answered in time.
        """
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # It has ended, and says why when it is asked for its answer.
                process.stdin.write(json.dumps({"call": name, **arguments}).encode() + b"\n")
        return self._answers(timeout_s, name)

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _answers(self, timeout_s: float, what: str) -> list[dict[str, Any]]:
        deadline, found = time.monotonic() + timeout_s, []
        for index, process in enumerate(self._processes):
            answer = self._answer(process, deadline)
            if answer is None or "error" in answer:
                log = self._logs[index].read_text()[-3000:]
                state = f"code {process.poll()}" if answer is None else answer["error"]
                raise RuntimeError(f"{self._name} on host {index}: no answer to {what} ({state})\n{log}")
            found.append(answer)
        return found

    def _answer(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any] | None:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    return None
                line = process.stdout.readline().decode(errors="replace")
                if not line:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)
                    return None
                if line.startswith(ANSWER):
                    return json.loads(line.removeprefix(ANSWER))
        return None


def jax_environments(plan: Plan, port: int, **environment: str) -> list[dict[str, str]]:
    """Returns what tells the process of JAX on each host who the others are."""
    cluster = {"worker": [f"{address}:{port}" for address in plan.addresses]}
    return [
        {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **environment,
        }
        for index in range(len(plan.hosts))
    ]  # fmt: skip


@contextlib.contextmanager
def jax_hosts(plan: Plan, python: str, port: int = 4100, **environment: str) -> Iterator[Hosts]:
    """Starts a process with replicax and hand-written JAX on each host."""
    with _running(
        plan, [python, "-u", str(HERE / "wires_jax.py")], jax_environments(plan, port, **environment)
    ) as hosts:
        yield hosts


@contextlib.contextmanager
def island_hosts(plan: Plan, python: str, elastic: bool, port: int = 4300) -> Iterator[Hosts]:
    """Starts an island on each host."""
    told = jax_environments(plan, port, WIRES_ELASTIC=str(int(elastic)))
    with _running(plan, [python, "-u", str(HERE / "wires_islands.py")], told) as hosts:
        yield hosts


def run_on_hosts(plan: Plan, command: list[str], port: int, timeout_s: float) -> str:
    """Runs a script with JAX on all hosts and returns what they print.

    Raises:
        RuntimeError: One has failed, or has not ended in time.
    """
    processes = [
        subprocess.Popen(
            on_host(plan, index, command),
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, told in enumerate(jax_environments(plan, port))
    ]
    deadline, said = time.monotonic() + timeout_s, []
    try:
        for process in processes:
            said.append(process.communicate(timeout=max(deadline - time.monotonic(), 0.1))[0])
            if process.returncode:
                raise RuntimeError(f"`{' '.join(command)}` ended with code {process.returncode}:\n{said[-1][-3000:]}")
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"`{' '.join(command)}` has not ended after {timeout_s:g} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return "".join(said)


@contextlib.contextmanager
def torch_hosts(plan: Plan, python: str, port: int = 4200) -> Iterator[Hosts]:
    """Starts a process with torch on each host."""
    told = [
        {
            "RANK": str(index), "WORLD_SIZE": str(len(plan.hosts)), "MASTER_ADDR": plan.addresses[0],
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": CARD, "OMP_NUM_THREADS": "1",
        }
        for index in range(len(plan.hosts))
    ]  # fmt: skip
    with _running(plan, [python, "-u", str(HERE / "wires_torch.py")], told) as hosts:
        yield hosts


@contextlib.contextmanager
def _running(plan: Plan, command: list[str], told: list[dict[str, str]]) -> Iterator[Hosts]:
    with tempfile.TemporaryDirectory(prefix="wires-") as folder:
        hosts = Hosts(plan, command, told, Path(folder))
        try:
            hosts.wait_until_ready(120)
            yield hosts
        finally:
            hosts.close()
