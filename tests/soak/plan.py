"""Compares plans of scripts with what the same scripts hold and send when they run.

For each pair of step and strategy: the state of a plan for eight devices is that of the arrays after a real step on
eight virtual devices, and its collectives are those of the program that was compiled there. With libtpu each pair is
compiled for TPU slices, too; `--only tpu` does no more than that.

A busy machine runs it in parts: `--part 3/8` is the third of eight. `--merge` adds up what the parts have kept.

Usage: python tests/soak/plan.py [--part K/N] [--out FILE] [--tpu v5e:2x4,v6e:2x4] [--only tpu] | --merge FILE ...
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # Where libtpu is installed, JAX would look for TPUs first.

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax

import replicax as rx
import replicax.context as context
from replicax.planning import Plan, Topology
from replicax.planning.planner import kind_of, plan_of
from tests.soak.plan_compiled import compiled_for
from tests.soak.plan_steps import PAIRS, loop_optax, loop_sgd, mirrored, name_of, part_of, workers


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
    with context.entered(planner=recorder), contextlib.nullcontext() if make is None else make().scope():
        step()
    assert recorder.plan is not None, step.__name__
    return recorder


def _compared(step: Any, make: Any) -> dict[str, Any]:
    """Returns what was found about a pair."""
    real = _really(step, make)
    begin = time.perf_counter()
    plan = rx.plan(step, strategy=make, on="cpu:8", hosts=2 if make is workers else None)
    seconds = time.perf_counter() - begin
    own = sum(each.bytes for each in plan.state if not each.name.startswith("argument"))
    assert real.plan is not None
    planned, held = (own, plan.batch), (real.held, real.plan.batch)
    if planned != held:
        print(f"  planned {planned} bytes of state and batch, held {held}")
    if plan.collectives != real.plan.collectives:
        print(f"  planned {plan.collectives}\n  compiled {real.plan.collectives}")
    same = {"state": planned == held, "collectives": plan.collectives == real.plan.collectives}
    return {"name": name_of(step, make), **same, "seconds": seconds}


def _peaks(on: str) -> list[bool]:
    """Returns of steps written in plain JAX whether a plan's memory is what the compiler says of them."""
    same = []
    for step in (loop_sgd, loop_optax):
        script = str(Path(__file__).with_name("plan_by_hand.py"))
        done = subprocess.run([sys.executable, script, on, step.__name__], capture_output=True, text=True, check=True)
        by_hand = json.loads(done.stdout.splitlines()[-1])
        memory = rx.plan(step, strategy=mirrored, on=on).memory
        assert memory is not None
        planned = {name: getattr(memory, name) for name in by_hand}
        print(f"{step.__name__} on {on}: planned {planned}, by hand {by_hand}", flush=True)
        same.append(planned == by_hand)
    return same


def _results(found: Sequence[dict[str, Any]]) -> None:
    compared = [each for each in found if "state" in each]
    if compared:
        print(f"RESULT plan_pairs {len(compared)}")
        print(f"RESULT plan_state_exact {sum(each['state'] for each in compared) / len(compared):.3f}")
        print(f"RESULT plan_collectives_exact {sum(each['collectives'] for each in compared) / len(compared):.3f}")
        print(f"RESULT plan_longest_seconds {max(each['seconds'] for each in compared):.1f}")
    # Pairs that libtpu takes for all slices.
    taken = [{each["name"] for each in found if each.get("on") == on and each["compiled"]} for on in _slices_of(found)]
    print(f"RESULT tpu_compiled_steps {len(set.intersection(*taken)) if taken else 0}")
    print(f"RESULT tpu_refused_steps {sum(not each.get('compiled', True) for each in found)}")


def _slices_of(found: Sequence[dict[str, Any]]) -> set[str]:
    return {each["on"] for each in found if "on" in each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tpu", default="v5e:2x4,v6e:2x4")
    parser.add_argument("--only", choices=["tpu"])
    parser.add_argument("--merge", type=Path, nargs="+")
    args = parser.parse_args()
    if args.merge:
        _results([json.loads(line) for path in args.merge for line in path.read_text().splitlines()])
        return
    rx.config.set_virtual_devices(8)
    part, parts = map(int, args.part.split("/"))
    slices = [on for on in args.tpu.split(",") if on] if importlib.util.find_spec("libtpu") is not None else []
    found = []
    for each in _found(part, parts, slices, compares=args.only is None):
        print(each, flush=True)
        found.append(each)
        if args.out is not None:
            with args.out.open("a") as out:
                print(json.dumps(each), file=out)
    _results(found)
    if slices and part == 1 and args.only is None:
        same = [each for on in slices for each in _peaks(on)]
        print(f"RESULT plan_tpu_peak_equal {sum(same) / len(same):.3f}")


def _found(part: int, parts: int, slices: Sequence[str], compares: bool) -> Iterator[dict[str, Any]]:
    if compares:
        for step, make in part_of(PAIRS, part, parts):
            yield _compared(step, make)
    for on in slices:
        yield from compiled_for(on, f"{part}/{parts}")


if __name__ == "__main__":
    main()
