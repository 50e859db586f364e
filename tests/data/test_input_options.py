from __future__ import annotations

import pytest

from replicax.data import AutoShardPolicy, InputOptions
from replicax.errors import ArgumentError


def test_defaults():
    assert InputOptions() == InputOptions(prefetch=2, remainder="exact")


@pytest.mark.parametrize("prefetch", [-1, 1.5, None, True])
def test_prefetch_is_a_number_of_steps(prefetch):
    with pytest.raises(ArgumentError, match=f"prefetch.*{prefetch!r}"):
        InputOptions(prefetch=prefetch)


@pytest.mark.parametrize("remainder", ["pad", None, True, ["drop"]])
def test_remainder_is_one_of_two(remainder):
    with pytest.raises(ArgumentError, match=r"exact.*drop.*got"):
        InputOptions(remainder=remainder)


@pytest.mark.parametrize("policy", ["drop", None, True])
def test_uneven_workers_is_one_of_three(policy):
    with pytest.raises(ArgumentError, match=r"uneven_workers.*drain.*shortest.*error"):
        InputOptions(uneven_workers=policy)


@pytest.mark.parametrize("seconds", [0, -1, "long", True, float("nan")])
def test_worker_timeout_is_a_time(seconds):
    with pytest.raises(ArgumentError, match="positive number of seconds"):
        InputOptions(worker_timeout=seconds)


def test_a_policy_or_its_name():
    assert InputOptions(auto_shard_policy="DATA") == InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
    for policy in ("dat", None, 1):
        with pytest.raises(ArgumentError, match=r"'off', 'auto', 'file', 'data', 'hint'"):
            InputOptions(auto_shard_policy=policy)
