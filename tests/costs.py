"""What the tests cost: seconds of a processor of each.

`make test` ends with the ten that took most. `REPLICAX_TESTS_COSTS=FILE` writes those of all, and those of each folder.
A test that is neither `slow`, `multiprocess` nor `nightly` fails where it costs too much on a quiet machine. Beside
other work, which takes its share of caches and memory, the same tests cost up to three times as much.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_NAME = "seconds of a processor"
_SHOWN = 10
_LIMIT_S = 5.0
_SLOWER_BESIDE_OTHERS = 2.0  # The tests of `make test` share caches and memory with two other processes.
_BEGAN = pytest.StashKey[tuple[float, float]]()


def _used() -> tuple[float, float]:
    """Returns the seconds of this process, and those of its children that have ended."""
    times = os.times()
    return time.process_time(), times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGAN] = _used()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        own, of_children = (now - before for now, before in zip(_used(), item.stash[_BEGAN], strict=True))
        cost = own + of_children
        report.user_properties.append((_NAME, cost))
        if cost > _LIMIT_S * _SLOWER_BESIDE_OTHERS and report.passed and not _may_be_slow(item) and _is_quiet():
            report.outcome = "failed"
            report.longrepr = (
                f"It took {cost:.1f} seconds of a processor, {of_children:.1f} of them of ended children; "
                f"on a quiet machine {_LIMIT_S:.0f} are the limit. "
                "Make it smaller, let @pytest.mark.daily(n) choose fewer cases, or mark it nightly or slow."
            )
    return report


def _is_quiet() -> bool:
    """Says whether no more runs here than the tests: three processes, and at times their children."""
    return os.getloadavg()[0] <= (os.cpu_count() or 1) + 3


def _may_be_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "multiprocess", "nightly"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # A process of pytest-xdist knows its own tests only.
        return
    costs = {
        report.nodeid: value
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, value in report.user_properties
        if name == _NAME
    }
    most = sorted(costs.items(), key=lambda each: -each[1])
    terminalreporter.section(f"{sum(costs.values()):.0f} {_NAME}; most of them")
    for test, cost in most[:_SHOWN]:
        terminalreporter.write_line(f"{cost:6.1f} {test}")
    if path := os.environ.get("REPLICAX_TESTS_COSTS"):
        folders: collections.Counter[str] = collections.Counter()
        for test, cost in costs.items():
            folders["/".join(test.partition("::")[0].split("/")[:2])] += cost
        lines = [f"{cost:8.1f} {name}" for name, cost in [*folders.most_common(), *most]]
        Path(path).write_text("\n".join(lines) + "\n")
