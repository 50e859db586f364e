"""Training over slow wires: replicax beside hand-written JAX and torch DDP, on hosts that are network namespaces.

    sudo python benchmarks/wires.py [--quick] [--hosts 2] [--torch PYTHON] [--install DIR] [--only 33M@1gbit ...]

Each host has an address of its own and a link whose rate a token bucket limits, and one process of each contestant, on
one core: host i on core i of the machine. A host of its own would share no core with another, and what is measured is
how well a step's computing hides behind its communication, which a second core for the one that computes would blur.
All contestants are alive at once and make some steps when it is their turn. Before that each makes the same first steps
from the same weights on the same batches, and its losses must be those of the others. A figure is the median over
turns, a ratio the median of the ratios of neighbouring turns. Ratios hold, milliseconds do not. At last comes DiLoCo,
beside training in step (`wires_diloco.py`).

Everything is removed at the end, also after Ctrl-C and SIGTERM. Where hosts cannot be made, one line says why.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import wires_models as models
from peers import interpreters
from timing import print_table
from wires_diloco import measure_accuracy, measure_rounds
from wires_hosts import Hosts, jax_hosts, torch_hosts
from wires_network import Plan, WiresUnavailable, bytes_per_second, network, planned, sent_bytes, set_rate, why_not

OURS, BY_HAND, DDP = "replicax", "hand-written JAX", "torch DDP"
# Of each link and model: turns, and steps in a turn.
CASES = {"33M@1gbit": (6, 2), "mlp@1gbit": (7, 20), "mlp@100mbit": (5, 4), "33M@100mbit": (2, 1)}
ROUNDS, ACCURACY = "diloco@100mbit", "diloco-accuracy"
QUICK = {"33M@1gbit": (3, 1), "mlp@1gbit": (3, 10)}
FIRST_STEPS = 3
RELATIVE = 2e-3  # Two libraries' sums differ in the last bits, and Adam's first steps are as large for small gradients.
BUCKET_CAPS_MB = (25, 50, 100)


class Contestants:
    """What trains one model: who runs it, by name.

    Args:
        jax: The processes with JAX.
        torch: Those with torch; None without it.
        model: Its name.
    """

    def __init__(self, jax: Hosts, torch: Hosts | None, model: str):
        self._model, self.runners = model, {OURS: jax, BY_HAND: jax}
        for name in self.runners:
            jax.call("make", name=name, model=model, by=name)
        if torch is not None:
            self.runners[DDP] = torch

    def make_ddp(self, bucket_cap_mb: float) -> None:
        """Makes torch's model anew, its buckets of at most so many MB."""
        self.runners[DDP].call("make", name=DDP, model=self._model, bucket_cap_mb=bucket_cap_mb)

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Makes steps and returns what the first host says of them."""
        return self.runners[name].call("run", name=name, steps=steps)[0]

    def seconds(self, name: str, steps: int) -> float:
        """Returns the seconds of a step: those of the slowest host."""
        return max(float(each["seconds"]) for each in self.runners[name].call("run", name=name, steps=steps))

    def close(self) -> None:
        """Frees the memory."""
        for name, hosts in self.runners.items():
            hosts.call("drop", name=name)


def check_losses(contestants: Contestants) -> list[float]:
    """Lets each make the first steps and returns the losses.

    Raises:
        RuntimeError: They are not the same.
    """
    found = {name: contestants.run(name, FIRST_STEPS)["losses"] for name in contestants.runners}
    wanted = found[OURS]
    for name, losses in found.items():
        for ours, other in zip(wanted, losses, strict=True):
            if abs(ours - other) > RELATIVE * abs(ours):
                raise RuntimeError(f"{name} has the losses {losses} and {OURS} {wanted}: they do not train the same")
    return wanted


def choose_bucket_cap(contestants: Contestants, caps: tuple[float, ...]) -> float:
    """Returns the size of buckets with which DDP is fastest."""
    seconds = {}
    for cap in caps:
        contestants.make_ddp(cap)
        contestants.run(DDP, 2)
        seconds[cap] = min(contestants.seconds(DDP, 1) for _ in range(2))
    print("  DDP's buckets: " + ", ".join(f"{cap:g} MB {1000 * s:.0f} ms" for cap, s in seconds.items()), flush=True)
    return min(seconds, key=seconds.__getitem__)


def measured(contestants: Contestants, turns: int, steps: int) -> dict[str, list[float]]:
    """Returns each contestant's seconds of a step, by turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants.runners}
    for turn in range(turns + 1):
        for name in times:
            seconds = contestants.seconds(name, steps)
            if turn:
                times[name].append(seconds)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Returns the median of the ratios of two contestants' turns."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def measure_model(plan: Plan, jax: Hosts, torch: Hosts | None, model: str, cases: dict[str, tuple[int, int]]) -> None:
    """Measures one model at all rates and prints tables and results."""
    rates = [case.partition("@")[2] for case in cases]
    set_rate(plan, rates[0])
    contestants = Contestants(jax, torch, model)
    if torch is not None:
        caps = BUCKET_CAPS_MB if len(cases) > 1 and model == "33M" else BUCKET_CAPS_MB[:1]
        contestants.make_ddp(choose_bucket_cap(contestants, caps))
    check_losses(contestants)
    for rate, (turns, steps) in zip(rates, cases.values(), strict=True):
        set_rate(plan, rate)
        times = measured(contestants, turns, steps)
        before = sent_bytes(plan.hosts[0])
        contestants.run(OURS, 1)
        report(model, rate, times, sent_bytes(plan.hosts[0]) - before, len(plan.hosts))
    contestants.close()


def report(model: str, rate: str, times: dict[str, list[float]], sent: int, hosts: int) -> None:
    """Prints a table and the results of one model at one rate."""
    payload = 2 * (hosts - 1) / hosts * models.gradient_bytes(models.MODELS[model])
    floor = payload / bytes_per_second(rate)
    rows = [
        (name, f"{1000 * statistics.median(each):.1f}", f"{ratio(times, name, BY_HAND):.3f}")
        for name, each in times.items()
    ]
    rows.append(("the wire alone", f"{1000 * floor:.1f}", ""))
    print_table(f"{model} on {hosts} hosts at {rate}", ("", "ms a step", "of hand-written JAX"), rows)
    print(f"  a step of ours sends {sent / 1e6:.2f} MB from a host; its gradients are {payload / 1e6:.2f} MB")
    if DDP in times:
        name = "wires_1gbit_vs_ddp" if (model, rate) == ("33M", "1gbit") else f"wires_{model}_{rate}_vs_ddp"
        print(f"RESULT {name} {ratio(times, OURS, DDP):.3f}")
    print(f"RESULT wires_{model}_{rate}_vs_handwritten {ratio(times, OURS, BY_HAND):.3f}", flush=True)


def stop(number: int, frame: object) -> NoReturn:
    del frame
    raise SystemExit(128 + number)


@contextlib.contextmanager
def contest(plan: Plan, torch: str) -> Iterator[tuple[Hosts, Hosts | None]]:
    """Makes the hosts and starts the contestants on them."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(network(plan, "1gbit"))
        jax = stack.enter_context(jax_hosts(plan, sys.executable))
        yield jax, stack.enter_context(torch_hosts(plan, torch)) if torch else None


def main() -> None:
    everything = [*CASES, ROUNDS, ACCURACY]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few turns, and 1 Gbit/s only")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--install", type=Path, metavar="DIR", help="make a virtual environment with torch in it")
    parser.add_argument("--only", nargs="*", default=[], choices=everything, metavar="CASE", help=", ".join(everything))
    parser.add_argument("--not-elastic", action="store_true", help="DiLoCo's islands exchange by JAX's collectives")
    args = parser.parse_args()

    def wanted(case: str) -> bool:
        return case in args.only or not args.only

    if (reason := why_not()) is not None:
        print(reason)
        return
    signal.signal(signal.SIGTERM, stop)
    cases = {name: how for name, how in (QUICK if args.quick else CASES).items() if wanted(name)}
    installed = interpreters.install(args.install, "torch") if args.install else ""
    torch = args.torch or installed or interpreters.default("torch") or ""
    if not torch:
        print("  no torch here: --torch PYTHON names an interpreter that has it, --install DIR makes one")
    plan = planned(args.hosts, os.getpid())
    try:
        with contest(plan, torch if cases else "") as (jax, torchs):
            for model in models.MODELS:
                own = {name: how for name, how in cases.items() if name.startswith(f"{model}@")}
                if own:
                    measure_model(plan, jax, torchs, model, own)
            if wanted(ROUNDS):
                measure_rounds(plan, jax, elastic=not args.not_elastic)
            if wanted(ACCURACY):
                measure_accuracy(plan)
    except WiresUnavailable as error:
        print(f"wires: skipped, this machine makes no hosts: {error}")


if __name__ == "__main__":
    main()
