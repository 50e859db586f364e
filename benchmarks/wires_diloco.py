"""Low communication in `wires.py`: DiLoCo beside training in step, on the same hosts and the same link.

Bytes are those that the first host's card has sent, with all headers and whatever processes say to each other to stay
together; times are per step over whole rounds, each with its exchange. The first round is not counted: in it the
islands take the first values of island 0, and programs are compiled. Accuracy is that of `examples/diloco_mnist.py`
after as many steps of as many rows, from the same first weights.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import wires_models as models
from timing import print_table
from wires_hosts import Hosts, island_hosts, run_on_hosts
from wires_network import Plan, sent_bytes, set_rate

MODEL, RATE = "mlp", "100mbit"
STEPS_IN_STEP, TURNS = 5, 3
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE, MNIST = ROOT / "examples" / "diloco_mnist.py", ROOT.parent / "shared" / "data" / "mnist"
TRAINING_STEPS = 600


def measure_rounds(plan: Plan, in_step: Hosts, elastic: bool) -> None:
    """Measures bytes and seconds of a step, of rounds and of training in step in turn."""
    name = "in step"
    in_step.call("make", name=name, model=MODEL, by="replicax")
    in_step.call("run", name=name, steps=2)
    with island_hosts(plan, sys.executable, elastic) as islands:
        islands.call("make", model=MODEL)
        islands.call("run", model=MODEL, steps=models.EVERY)
        set_rate(plan, RATE)
        turns = []
        for _ in range(TURNS):
            slow = _counted(plan, lambda: in_step.call("run", name=name, steps=STEPS_IN_STEP), STEPS_IN_STEP)
            fast = _counted(plan, lambda: islands.call("run", model=MODEL, steps=models.EVERY), models.EVERY)
            turns.append((*slow, *fast))
    in_step.call("drop", name=name)
    seconds, sent, our_seconds, our_sent = (statistics.median(column) for column in zip(*turns, strict=True))
    rows = [
        ("in step", f"{1000 * seconds:.1f}", f"{sent / 1e6:.3f}"),
        (f"DiLoCo, every {models.EVERY}", f"{1000 * our_seconds:.1f}", f"{our_sent / 1e6:.3f}"),
    ]
    print_table(f"{MODEL} on {len(plan.hosts)} hosts at {RATE}", ("", "ms a step", "MB a step"), rows)
    print(f"RESULT diloco_bytes_ratio {statistics.median(turn[3] / turn[1] for turn in turns):.4f}")
    print(f"RESULT diloco_speedup_100mbit {statistics.median(turn[0] / turn[2] for turn in turns):.2f}", flush=True)


def _counted(plan: Plan, run: Callable[[], list[dict[str, object]]], steps: int) -> tuple[float, float]:
    """Returns the seconds of a step and the bytes that the first host has sent in it.

    Raises:
        RuntimeError: At the end of a round the islands have different weights.
    """
    before = sent_bytes(plan.hosts[0])
    answers = run()
    sent = (sent_bytes(plan.hosts[0]) - before) / steps
    sums = [answer.get("sums") for answer in answers]
    if any(each != sums[0] for each in sums):
        raise RuntimeError(f"at the end of a round the islands have different weights, by their sums: {sums}")
    return max(float(str(answer["seconds"])) for answer in answers), sent


def measure_accuracy(plan: Plan) -> None:
    """Trains with both on MNIST, on digits where it is missing, and prints how much accuracy DiLoCo loses."""
    data = ["--data", "mnist", "--data-dir", str(MNIST)] if MNIST.is_dir() else ["--data", "digits"]
    set_rate(plan, "1gbit")
    found = {}
    for port, strategy in enumerate(("mirrored", "diloco"), start=4400):
        how = ["--strategy", strategy, "--every", str(models.EVERY), "--steps", str(TRAINING_STEPS), *data]
        said = run_on_hosts(plan, [sys.executable, "-u", str(EXAMPLE), *how], port, timeout_s=200)
        accuracy = re.search(r"RESULT accuracy ([\d.]+)", said)
        if accuracy is None:
            raise RuntimeError(f"{EXAMPLE} with {strategy} tells no accuracy:\n{said[-3000:]}")
        found[strategy] = float(accuracy[1])
    print(f"  {data[1]}, {TRAINING_STEPS} steps: in step {found['mirrored']:.4f}, DiLoCo {found['diloco']:.4f}")
    print(f"RESULT diloco_accuracy_loss {found['mirrored'] - found['diloco']:.4f}", flush=True)
