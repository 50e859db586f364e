"""Runs random programs, with a typical mistake or an odd form, in the plain library and in replicax, and compares.

The reference is the same program written for the plain library, on the whole batch, without replicax. A right program
must give its numbers; one with a mistake must be refused, or warned of, or give the right numbers nevertheless.

Usage: python tests/soak/silent.py --programs 1000 [--seed 0] [--only SEED]
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = (  # Most of the time is XLA's.
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_use_fusion_emitters=false"
    )

import argparse
import dataclasses
import logging
import sys
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax
import numpy as np

import replicax as rx
from tests.outside.forms import original
from tests.soak.silent_programs import Program, drawn

DEVICES = 4
#: By how much inputs are moved to see what a program makes of rounding, relative; and how that is written.
MOVE = 1e-6
INPUTS = 'rng.normal(size=(n, 8)).astype("float32")'
MOVED = f'(rng.normal(size=(n, 8)) * (1 + {MOVE})).astype("float32")'


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is to be said of one program.

    Attributes:
        kind: "equal", "refused", "warned", "wrong", "raw" (an error that is not ours) or "broken" (the plain form is).
        said: The error, the warning or the difference.
    """

    program: Program
    kind: str
    said: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether numbers differ without a word. A right program must be right, whatever is said."""
        return self.kind == "wrong" or (self.kind == "warned" and not self.program.mistake)

    @property
    def is_right_refused(self) -> bool:
        """Whether a right program was not run."""
        return self.kind in ("refused", "raw") and not self.program.mistake


def judged(program: Program) -> Verdict:
    """Runs a program in both worlds."""
    try:
        expected = _outcome(program, original(program.text))
    except Exception:
        return Verdict(program, "broken", traceback.format_exc())
    with _said() as words:
        try:
            found = _outcome(program, program.text)
        except rx.errors.ReplicaxError as error:
            return Verdict(program, "refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            return Verdict(program, "raw", "".join(traceback.format_exception(error)[-4:]))
    difference = _difference(expected, found, program.tolerance)
    if difference:  # Where the gradient is almost zero, some optimizers turn rounding into steps: how much, here?
        moved = _outcome(program, original(program.text).replace(INPUTS, MOVED))
        difference = _difference(expected, found, program.tolerance, moved)
    if not difference:
        return Verdict(program, "equal", "; ".join(words))
    return Verdict(program, "warned" if words else "wrong", "; ".join([difference, *words]))


class _said:
    """Collects what replicax warns of."""

    def __enter__(self) -> list[str]:
        self.words: list[str] = []
        self.caught = warnings.catch_warnings(record=True)
        self.warnings = self.caught.__enter__()
        warnings.simplefilter("always")
        self.handler = logging.Handler(logging.WARNING)
        self.handler.emit = lambda record: self.words.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("replicax").addHandler(self.handler)
        return self.words

    def __exit__(self, *_: object) -> None:
        logging.getLogger("replicax").removeHandler(self.handler)
        self.caught.__exit__(None, None, None)
        ours = str(Path(rx.__file__).parent)
        self.words += [
            str(w.message) for w in self.warnings if w.filename.startswith(ours) or "replica" in str(w.message)
        ]


def _outcome(program: Program, text: str) -> list[tuple[str, Any]]:
    import keras

    keras.utils.set_random_seed(program.seed)
    module = types.ModuleType(f"silent_{program.seed}")
    sys.modules[module.__name__] = module  # Dataclasses and pickles look there.
    try:
        exec(compile(text, f"<program {program.seed}>", "exec"), module.__dict__)
        found = module.main()
        leaves = jax.tree_util.tree_flatten_with_path(found, is_leaf=lambda leaf: isinstance(leaf, rx.PerReplica))[0]
        named = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if not callable(leaf)]
        # The axes of a layer are others in replicas.
        return [(path, _value(leaf)) for path, leaf in named if ".axis_name" not in path]
    finally:
        del sys.modules[module.__name__]


def _value(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, str)):
        return leaf
    if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _difference(
    expected: list[tuple[str, Any]],
    found: list[tuple[str, Any]],
    tolerance: float,
    moved: list[tuple[str, Any]] | None = None,
) -> str:
    """Returns where two outcomes differ; empty if by no more than rounding.

    Args:
        expected: What the plain library gives.
        found: What replicax gives.
        tolerance: How far an array may be off, relative to its largest number.
        moved: What the plain library gives for inputs that are moved by `MOVE`; what moves more than they may be off
            by more.
    """
    if [path for path, _ in expected] != [path for path, _ in found]:
        return f"other leaves: {sorted({p for p, _ in expected} ^ {p for p, _ in found})[:5]}"
    for (path, a), (_, b) in zip(expected, found, strict=True):
        if type(a) is not type(b):
            return f"{path}: {type(b).__name__} {b!r}, should be {type(a).__name__} {a!r}"[:400]
        if isinstance(a, np.ndarray) and (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{path}: {b.dtype}{b.shape}, should be {a.dtype}{a.shape}"
    floats = [
        (path, *(np.asarray(each, np.float64) for each in (a, b, c)))
        for (path, a), (_, b), (_, c) in zip(expected, found, expected if moved is None else moved, strict=True)
        if not isinstance(a, str)
    ]
    for path, a, b, c in floats:
        largest = max(1e-2, float(np.max(np.abs(a), initial=0.0)))
        rounding = tolerance * max(largest, float(np.max(np.abs(a - c), initial=0.0)) / MOVE)
        if not np.allclose(a, b, rtol=0, atol=rounding, equal_nan=True):
            return (
                f"{path}: {np.ravel(b)[:4]}, should be {np.ravel(a)[:4]} (off by {np.max(np.abs(a - b)) / largest:.2g})"
            )
    return ""


def soak(seeds: Iterable[int], limit_s: float = float("inf")) -> Iterator[Verdict]:
    """Judges the programs of these seeds, until the time is over."""
    begin = time.monotonic()
    for count, seed in enumerate(seeds):
        if time.monotonic() - begin > limit_s:
            return
        yield judged(drawn(seed))
        if count % 50 == 49:
            jax.clear_caches()


def main() -> int:
    """Runs the soak and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--only", type=int, nargs="*", help="the programs of these seeds, with their text")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds; then it ends")
    parser.add_argument("--quiet", action="store_true", help="print no text of programs")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    begin = time.monotonic()
    seeds = options.only or range(options.seed, options.seed + options.programs)
    verdicts = []
    for verdict in soak(seeds, options.limit):
        verdicts.append(verdict)
        program = verdict.program
        bad = verdict.is_silent or verdict.is_right_refused or verdict.kind in ("broken", "raw")
        if bad or options.only:
            right = f"mistake {program.mistake!r}" if program.mistake else "right"
            print(f"--- {verdict.kind}: program {program.seed} ({right}), {', '.join(program.ingredients)}")
            print(verdict.said)
            if not options.quiet:
                print(program.text)
            sys.stdout.flush()
    kinds = Counter((v.kind, "mistake" if v.program.mistake else "right") for v in verdicts)
    print(f"{len(verdicts)} programs in {time.monotonic() - begin:.0f} s: {dict(kinds)}")
    warned = sum(bool(v.said) for v in verdicts if v.kind == "equal" and not v.program.mistake)
    results = {
        "silent_programs": len(verdicts),
        "silent_wrong": sum(v.is_silent for v in verdicts),
        "right_refused": sum(v.is_right_refused for v in verdicts),
        "right_warned": warned,
        "raw_errors": sum(v.kind == "raw" for v in verdicts),
        "broken_programs": sum(v.kind == "broken" for v in verdicts),
    }
    for name, value in results.items():
        print(f"RESULT {name} {value}")
    return 1 if results["silent_wrong"] or results["right_refused"] > 5 or results["broken_programs"] else 0


if __name__ == "__main__":
    sys.exit(main())
