"""A call in a process of its own: its result, its error, its end, and the environment of an evaluator."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from replicax.errors import EstimatorError
from replicax.estimator.client import Beside, evaluator_environment
from replicax.job.processes.call import Call, payload_of

WORKER = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}


def beside(function, *args) -> Beside:
    return Beside(payload_of(Call(function, args)), {**os.environ, "TF_CONFIG": json.dumps(WORKER)})


def test_the_result_comes_back_from_the_evaluator_of_the_cluster():
    def role(word):
        import json
        import os

        return word, json.loads(os.environ["TF_CONFIG"])["task"]["type"], os.getppid()

    with beside(role, "hello") as process:
        assert process.result() == ("hello", "evaluator", os.getpid())


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [("raises", ZeroDivisionError, "by nothing"), ("exits", EstimatorError, r"code 3 and without a result")],
)
def test_its_error_is_raised_here(how, error, words):
    def fails():
        import os

        if how == "exits":
            os._exit(3)
        raise ZeroDivisionError("by nothing")

    with beside(fails) as process, pytest.raises(error, match=words):
        process.result()


def test_it_ends_with_the_block(tmp_path):
    def waits(path):
        import os
        import time

        path.write_text(str(os.getpid()))
        time.sleep(600)

    file: Path = tmp_path / "pid"
    with beside(waits, file):
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGCONT)


def test_an_evaluator_is_no_worker_and_computes_on_the_cpu():
    environ = {"TF_CONFIG": json.dumps(WORKER), "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", "HOME": "/h"}
    found = evaluator_environment(environ)
    assert json.loads(found.pop("TF_CONFIG")) == {**WORKER, "task": {"type": "evaluator", "index": 0}}
    assert found == {"HOME": "/h", "JAX_PLATFORMS": "cpu"}
