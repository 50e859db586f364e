"""Which operations of a trace took the time."""

import gzip
import json

import pytest

from replicax.errors import LaunchError
from replicax.tools.profiling import hot_spots, traces


def written(folder, worker, events):
    path = folder / worker / "plugins" / "profile" / "now" / "perfetto_trace.json.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def operation(name, microseconds, program="jit_step"):
    return {"ph": "X", "name": name, "dur": microseconds, "args": {"hlo_op": name, "hlo_module": program}}


def test_times_are_summed_by_operation_and_program(tmp_path):
    events = [operation("dot", 100), operation("add", 300), operation("dot", 500), operation("dot", 100, "jit_other")]
    events += [{"ph": "X", "name": "python", "dur": 9000}, {"ph": "M", "name": "process_name", "args": {"name": "x"}}]
    first, second, third = hot_spots(written(tmp_path, "worker-0", events))
    assert first[:3] == ("jit_step", "dot", 2)
    assert first.seconds == pytest.approx(6e-4)
    assert first.share == pytest.approx(0.6)
    assert second[:3] == ("jit_step", "add", 1)
    assert third[:3] == ("jit_other", "dot", 1)


def test_the_longest_come_first_and_no_more_than_asked_for(tmp_path):
    trace = written(tmp_path, "worker-0", [operation(f"op{i}", i) for i in range(1, 9)])
    first, second = hot_spots(trace, most=2)
    assert (first.operation, second.operation) == ("op8", "op7")
    assert first.share == pytest.approx(8 / 36)  # Of the time of all, shown or not.


def test_traces_are_found_by_worker(tmp_path):
    paths = {f"worker-{i}": written(tmp_path, f"worker-{i}", []) for i in (1, 0)}
    assert list(traces(tmp_path)) == ["worker-0", "worker-1"]
    assert traces(tmp_path) == paths
    assert hot_spots(paths["worker-0"]) == []


def test_what_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "perfetto_trace.json.gz"
    path.write_bytes(b"nothing")
    with pytest.raises(LaunchError, match="no trace"):
        hot_spots(path)
