"""Random programs with odd forms and typical mistakes, against the plain library: a few of `tests/soak/silent.py`."""

import dataclasses

import jax
import pytest

from tests.soak.silent import judged
from tests.soak.silent_programs import drawn

for package in ("equinox", "flax", "optax"):  # Those that the programs import.
    pytest.importorskip(package)

#: Of each framework, and with each mistake.
SEEDS = (100, 101, 103, 105, 106, 109, 112, 121, 129, 132, 185, 319)


@pytest.fixture(autouse=True)
def _fast():
    jax.config.update("jax_disable_most_optimizations", True)  # Most of the time is XLA's.
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def _check(seed):
    verdict = judged(drawn(seed))
    assert verdict.kind != "broken", verdict.said
    assert not verdict.is_silent, f"{verdict.said}\n{verdict.program.text}"
    assert not verdict.is_right_refused, f"{verdict.said}\n{verdict.program.text}"


@pytest.mark.daily(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_gives_the_plain_librarys_numbers_or_says_that_it_is_wrong(seed):
    _check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_many_programs_do(first):
    for seed in range(first, first + 10):
        _check(seed)


def test_the_judge_finds_what_is_wrong():
    program = drawn(100)
    text = program.text.replace("rx.compute_average_loss(", "2 * rx.compute_average_loss(")
    assert text != program.text
    assert judged(dataclasses.replace(program, text=text)).is_silent
