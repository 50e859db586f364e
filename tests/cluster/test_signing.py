"""Only what this job's processes have signed counts, and only that is unpickled."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import jax
import pytest

import replicax
from replicax.cluster import ClusterConfig, ClusterSpec, Task, signing
from replicax.cluster.exchange import Exchange
from replicax.cluster.signing import checked, pickled, shown, signed, unpickled
from replicax.errors import ClusterError, ContextError
from replicax.group.membership.opening import open_group
from tests.cluster.fake_store import FakeStore

#: The files that unpickle, and who can have written what they read.
UNPICKLING = {
    "cluster/signing.py": "a process that knows the job's token",
    "parameter_server/actors/actor_errors.py": "an actor of this cluster: Ray has checked its token",
    "parameter_server/actors/worker.py": "the coordinator: Ray has checked its token",
    "job/processes/call.py": "the client, by a file that its own launcher hands over",
    "compat/jax_executables.py": "this process: a program that JAX has just written",
    "data/row_process.py": "a process that this one has started, or the one that has started it, by pipes",
    "planning/child.py": "the function that its parent hands to it, by its standard input",
    "strategies/multi_worker.py": "this process: the client's arguments, within a call of `job/processes/call.py`",
}


class Taken(FakeStore):
    """A store that refuses a key that is taken, as JAX's service does."""

    def put(self, key: str, value: bytes) -> None:
        if key in self.values:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: Config key {key} already exists.")
        super().put(key, value)


class Bomb:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a stranger's code has run",))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REPLICAX_TOKEN", "secret")
    return "secret"


def test_what_is_signed_comes_back(token: str):
    assert checked("exchange/3/1", signed("exchange/3/1", b"value")) == b"value"
    assert unpickled("results", pickled("results", {"loss": 1.0})) == {"loss": 1.0}


@pytest.mark.parametrize("message", [b"", b"x" * 31, b"\0" * 64, pickle.dumps(Bomb())])
def test_what_is_not_signed_is_refused(token: str, message: bytes):
    with pytest.raises(ContextError, match="lacks the signature of this job"):
        unpickled("results", message)


def test_a_signature_is_for_one_key_one_token_and_these_bytes(token: str, monkeypatch: pytest.MonkeyPatch):
    message = signed("exchange/3/1", b"value")
    for key, found in [("exchange/4/1", message), ("exchange/3/0", message), ("exchange/3/1", message[:-1] + b"x")]:
        with pytest.raises(ContextError, match=key):
            checked(key, found)
    assert signed("a", b"bc") != signed("ab", b"c")
    monkeypatch.setenv("REPLICAX_TOKEN", "another")
    with pytest.raises(ContextError):
        checked("exchange/3/1", message)


def test_without_a_token_nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("REPLICAX_TOKEN", raising=False)
    monkeypatch.setattr(signing, "_session", "")
    assert checked("key", signed("key", b"value")) == b"value"
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN is not set"):
        unpickled("results", pickle.dumps(Bomb()))
    with pytest.raises(ClusterError, match=r"Set REPLICAX_TOKEN .*replicax run"):
        pickled("results", 1)


def test_an_elastic_job_without_a_token_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch):
    # Later it would end whoever gives its state to the first newcomer.
    monkeypatch.delenv("REPLICAX_TOKEN", raising=False)
    monkeypatch.setattr(signing, "_session", "")
    addresses = ["127.0.0.1:2300", "127.0.0.1:2301"]
    config = ClusterConfig(ClusterSpec({"worker": addresses}), Task("worker", 1))
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN is not set"):
        open_group(config, 1, 2, 1.0, 1.0, environ={})


def test_a_stranger_in_the_store_is_refused(token: str):
    store = FakeStore()
    mine = Exchange("replicax/exchange", 0, range(2), store=store, timeout_s=5.0)
    store.put("replicax/exchange/7/1/0", (1).to_bytes(4, "big") + b"a stranger's")
    with pytest.raises(ContextError, match=r"replicax/exchange/7/1.*lacks the signature"):
        mine.exchange("7", b"mine")


def test_a_stranger_decides_nothing_and_takes_no_key(token: str):
    store = Taken()
    mine = Exchange("replicax/barrier/b", 0, range(2), store=store, timeout_s=5.0)
    store.values["replicax/barrier/b/0/missing/decided"] = b"[0]"
    store.values["replicax/barrier/b/0/here/0/0"] = b"a stranger's"
    for ask in (
        lambda: mine.decided("0/missing"),
        lambda: mine.decide("0/missing", b"[]"),
        lambda: mine.tell("0/here"),
    ):
        with pytest.raises(ContextError, match=r"replicax/barrier/b/0.*lacks the signature"):
            ask()
    mine.tell("1/here")
    with pytest.raises(ContextError, match="ALREADY_EXISTS"):
        mine.tell("1/here")


def test_what_is_shown_tells_no_token_and_is_for_one_purpose():
    assert shown("", "health") == ""
    assert "secret" not in shown("secret", "health")
    assert len({shown("secret", "health"), shown("secret", "process"), shown("Secret", "health")}) == 3


def test_messages_of_an_earlier_run_do_not_count(token: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signing, "_session", "")
    signing.begin_session("1")
    old = signed("exchange/3/1", b"value")
    signing.begin_session("2")
    with pytest.raises(ContextError):
        checked("exchange/3/1", old)


def test_only_known_places_unpickle():
    root = Path(replicax.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("loads", "load", "Unpickler"):
                of = ast.unparse(node.value)
                if of.split(".")[-1] in ("pickle", "cloudpickle", "marshal", "dill", "shelve"):
                    found.add(path.relative_to(root).as_posix())
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                found.add(path.relative_to(root).as_posix())
    assert found == set(UNPICKLING)
