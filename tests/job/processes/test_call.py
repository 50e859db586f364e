"""What travels with a call, and what comes back."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import ray.cloudpickle as cloudpickle

from replicax.errors import RemoteWorkerError
from replicax.job.processes.call import Call, Logging, Raised, Returned, error_of, pickled, result_of, unpickled


def test_modules_beside_the_script_travel_and_others_do_not(tmp_path: Path):
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "script.py").write_text(
        "import sys, helper\nfrom replicax.job.processes.call import Call, pickled\n"
        "open(sys.argv[1], 'wb').write(pickled(Call(helper.double, (4,))))\n"
        "import ray.cloudpickle\nassert 'helper' not in ray.cloudpickle.list_registry_pickle_by_value()\n"
    )
    sent = tmp_path / "sent"
    subprocess.run([sys.executable, str(tmp_path / "script.py"), str(sent)], check=True, timeout=120)
    assert "helper" not in sys.modules
    call = unpickled(sent.read_bytes())
    assert call.function(*call.args, **call.kwargs) == 8


def test_a_call_is_what_it_was():
    assert unpickled(pickled(Call(max, (1, 2), {"key": abs}))) == Call(max, (1, 2), {"key": abs})


class Odd(Exception):
    def __init__(self, one: int, two: int):
        super().__init__("odd")


def test_results_and_errors():
    assert result_of(None) is None
    assert result_of(cloudpickle.dumps(Returned(3))) == Returned(3)
    error = error_of(Raised(pickle.dumps(KeyError("x"))))
    assert isinstance(error, KeyError)
    assert error_of(Raised(None)) is None
    assert error_of(Raised(pickle.dumps(Odd(1, 2)))) is None  # Its class cannot be made from ("odd",).


def test_workers_log_as_the_client_does():
    root, own = logging.getLogger(), logging.getLogger("tests.of.logging")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s!"))
    before = root.handlers[:]
    root.handlers[:] = [handler]
    own.setLevel(logging.DEBUG)
    try:
        how = pickle.loads(pickle.dumps(Logging.here()))
        own.setLevel(logging.NOTSET)
        handler.setFormatter(None)
        how.set()
        assert own.level == logging.DEBUG
        record = logging.LogRecord("x", 10, "", 0, "words", None, None)
        assert root.handlers[0].format(record) == "words!"
    finally:
        root.handlers[:] = before
        own.setLevel(logging.NOTSET)


def test_the_error_of_a_worker_can_be_pickled():
    error = pickle.loads(pickle.dumps(RemoteWorkerError("worker 1", "exit code 3", "words")))
    assert (error.worker, error.how, error.words) == ("worker 1", "exit code 3", "words")
    assert str(error) == "worker 1 failed: exit code 3. Its last words:\nwords"


@pytest.mark.parametrize("words", ["", "x"])
def test_an_error_without_words_ends_with_a_full_stop(words: str):
    assert str(RemoteWorkerError("w", "gone", words)).startswith("w failed: gone.")
