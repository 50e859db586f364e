"""Compares plans of scripts with what the same scripts hold and send when they run.

For each pair of step and strategy: the state of a plan for eight devices is that of the arrays after a real step on
eight virtual devices, and its collectives are those of the program that was compiled there. With libtpu each pair is
compiled for a TPU slice, too.

Usage: python tests/soak/plan.py [--pairs 44] [--tpu v5e:2x4]
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # Where libtpu is installed, JAX would look for TPUs first.

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax

import replicax as rx
import replicax.context as context
from replicax.errors import ReplicaxError
from replicax.planning import Plan, Topology
from replicax.planning.planner import kind_of, plan_of
from tests.soak.plan_steps import STEPS, STRATEGIES


class _Recorder:
    """Notes what the first training step of a real run holds, and sends."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.held = 0

    def __call__(self, program: Any, arrays: Sequence[Any]) -> None:
        if self.plan is not None or kind_of(program, arrays, program.trace(arrays)) != "train":
            return
        bound = program.variables
        variables = {id(each): each for each in (*bound.updated, *bound.constant, *bound.written)}
        self.held = sum(_bytes_here(each._value) for each in variables.values())
        self.plan = plan_of(program, arrays, Topology.of("cpu:8"))


def _bytes_here(array: jax.Array) -> int:
    return array.addressable_shards[0].data.nbytes


def _really(step: Any, make: Any) -> _Recorder:
    recorder = _Recorder()
    with context.entered(planner=recorder), make().scope():
        step()
    assert recorder.plan is not None, step.__name__
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=len(STEPS) * len(STRATEGIES))
    parser.add_argument("--tpu", default="v5e:2x4")
    args = parser.parse_args()
    rx.config.set_virtual_devices(8)
    pairs = [(step, make) for step in STEPS for make in STRATEGIES]
    stride = max(1, len(pairs) // args.pairs)
    pairs = pairs[::stride][: args.pairs]
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    same_state = same_sent = compiled = 0
    seconds = []
    for step, make in pairs:
        name = f"{step.__name__} under {make.__name__}"
        real = _really(step, make)
        begin = time.perf_counter()
        plan = rx.plan(step, strategy=make, on="cpu:8")
        seconds.append(time.perf_counter() - begin)
        own = sum(each.bytes for each in plan.state if not each.name.startswith("argument"))
        is_same_state = (own, plan.batch) == (real.held, real.plan.batch)
        is_same_sent = plan.collectives == real.plan.collectives
        same_state += is_same_state
        same_sent += is_same_sent
        print(f"{name}: state {is_same_state}, collectives {is_same_sent}, {seconds[-1]:.1f} s", flush=True)
        if not is_same_state:
            print(f"  planned {own}, held {real.held}; of the batch {plan.batch}, {real.plan.batch}")
        if not is_same_sent:
            print(f"  planned {plan.collectives}\n  compiled {real.plan.collectives}")
        if has_libtpu:
            try:
                compiled += rx.plan(step, strategy=make, on=args.tpu).memory is not None
            except ReplicaxError as error:
                print(f"  {args.tpu}: {error}")
    print(f"RESULT plan_pairs {len(pairs)}")
    print(f"RESULT plan_state_exact {same_state / len(pairs):.3f}")
    print(f"RESULT plan_collectives_exact {same_sent / len(pairs):.3f}")
    print(f"RESULT plan_seconds {max(seconds):.1f}")
    if has_libtpu:
        print(f"RESULT tpu_compiled_steps {compiled}")


if __name__ == "__main__":
    main()
