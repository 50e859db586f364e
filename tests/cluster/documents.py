"""Hypothesis strategies for TF_CONFIG: valid documents, and ways to break one so that nobody could accept it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Document = dict[str, Any]
ROLES = ("chief", "worker", "ps", "evaluator")

ports = st.integers(1, 65535)
names = st.builds(
    "{}{}{}".format, st.sampled_from(["w", "node-", "My_Host"]), ports, st.sampled_from(["", ".a.example"])
)
ips = st.integers(1 << 24, (127 << 24) - 1).map(lambda number: str(ipaddress.IPv4Address(number)))
hosts = st.one_of(names, ips)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=5), st.just("a:1")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def valid_documents(draw: st.DrawFn, at_least: int = 1) -> Document:
    """A complete TF_CONFIG with at least `at_least` workers, and the task of one of its processes."""
    sizes = {"worker": draw(st.integers(at_least, 5)), "ps": draw(st.integers(0, 2))}
    sizes |= {"chief": draw(st.integers(0, 1)), "evaluator": draw(st.integers(0, 1))}
    count = sum(sizes.values())
    port = draw(st.integers(1, 65000))
    addresses = [f"{draw(hosts)}:{port + number}" for number in range(count)]
    cluster: dict[str, Any] = {}
    for job, size in sizes.items():
        mine, addresses = addresses[:size], addresses[size:]
        if mine:
            numbered = draw(st.booleans())
            cluster[job] = {str(index): address for index, address in enumerate(mine)} if numbered else mine
    job = draw(st.sampled_from(sorted(cluster)))
    index = draw(st.integers(0, sizes[job] - 1))
    document: Document = {
        "cluster": cluster,
        "task": {"type": job, "index": draw(st.sampled_from([index, str(index)]))},
    }
    if draw(st.booleans()):
        document["rpc_layer"] = "grpc"
    return document


def _put(draw: st.DrawFn, document: Document, address: Any) -> None:
    """Writes over the address of some task."""
    tasks = document["cluster"][draw(st.sampled_from(sorted(document["cluster"])))]
    tasks[draw(st.sampled_from([*tasks] if isinstance(tasks, dict) else range(len(tasks))))] = address


def _others(*kinds: type) -> st.SearchStrategy[Any]:
    """JSON values that are of none of these types."""
    return json_values.filter(lambda value: not isinstance(value, kinds))


def _host_of(document: Document) -> str:
    tasks = document["cluster"]["worker"]
    return (tasks["0"] if isinstance(tasks, dict) else tasks[0]).rpartition(":")[0]


def _first(document: Document) -> str:
    tasks = document["cluster"]["worker"]
    return tasks["0"] if isinstance(tasks, dict) else tasks[0]


def _copy_address(draw: st.DrawFn, document: Document) -> None:
    workers = document["cluster"]["worker"]
    workers["1" if isinstance(workers, dict) else 1] = _first(document)


def _hole(draw: st.DrawFn, document: Document) -> None:
    document["cluster"]["worker"] = {"0": "a.b.c:1", str(draw(st.integers(2, 9))): "d.e.f:1"}


def _add_job(draw: st.DrawFn, document: Document) -> None:
    document["cluster"][draw(names.filter(lambda name: name not in ROLES))] = ["new.host.x:1"]


def _swap_sections(draw: st.DrawFn, document: Document) -> None:
    document["cluster"], document["task"] = document["task"], document["cluster"]


def _loopback(draw: st.DrawFn, document: Document) -> None:
    workers = document["cluster"]["worker"]
    address = draw(st.sampled_from(["localhost", "127.0.0.1", "[::1]", "0.0.0.0"])) + f":{draw(ports)}"
    workers["1" if isinstance(workers, dict) else 1] = address


def _too_many(job: str) -> Callable[[st.DrawFn, Document], None]:
    return lambda draw, document: document["cluster"].update({job: ["p.q.r:1", "p.q.r:2"]})


def _set_task(key: str, values: st.SearchStrategy[Any]) -> Callable[[st.DrawFn, Document], None]:
    return lambda draw, document: document["task"].update({key: draw(values)})


def _set_address(values: st.SearchStrategy[Any]) -> Callable[[st.DrawFn, Document], None]:
    return lambda draw, document: _put(draw, document, draw(values))


def _set(key: str, values: st.SearchStrategy[Any]) -> Callable[[st.DrawFn, Document], None]:
    return lambda draw, document: document.update({key: draw(values)})


def _set_job(values: st.SearchStrategy[Any]) -> Callable[[st.DrawFn, Document], None]:
    return lambda draw, document: document["cluster"].update({draw(st.sampled_from(ROLES)): draw(values)})


# Each changes a valid document with at least two workers in place, into one that must be refused.
BREAK: dict[str, Callable[[st.DrawFn, Document], Any]] = {
    "cluster dropped": lambda draw, document: document.pop("cluster"),
    "task dropped": lambda draw, document: document.pop("task"),
    "task empty": _set("task", st.just({})),
    "type dropped": lambda draw, document: document["task"].pop("type"),
    "index dropped": lambda draw, document: document["task"].pop("index"),
    "cluster retyped": _set("cluster", _others(dict)),
    "task retyped": _set("task", _others(dict)),
    "rpc layer retyped": _set("rpc_layer", _others(str, type(None))),
    "job retyped": _set_job(_others(dict, list)),
    "job empty": _set_job(st.sampled_from([[], {}])),
    "type retyped": _set_task("type", _others(str)),
    "type unknown": _set_task("type", st.text(max_size=8).filter(lambda role: role not in ROLES)),
    "index retyped": _set_task("index", _others(int, str) | st.booleans()),
    "index no number": _set_task("index", st.text(max_size=4).filter(lambda t: not t.isascii() or not t.isdigit())),
    "index negative": _set_task("index", st.integers(max_value=-1) | st.integers(-9, -1).map(str)),
    "index too large": _set_task("index", st.integers(min_value=5) | st.integers(5, 99).map(str)),
    "address retyped": _set_address(_others(str)),
    "address without port": _set_address(hosts),
    "port out of range": _set_address(
        st.builds("{}:{}".format, hosts, st.integers(65536, 10**30) | st.integers(-9, 0))
    ),
    "port no number": _set_address(st.builds("{}:{}".format, hosts, st.text("abcxyz.-_ ²", max_size=4))),
    "address with spaces": _set_address(st.builds("{} {}:{}".format, hosts, hosts, ports)),
    "address with scheme": _set_address(
        st.builds("{}://{}:{}".format, st.sampled_from(["grpc", "http"]), hosts, ports)
    ),
    "address with two ports": _set_address(st.builds("{}:{}:{}".format, hosts, ports, ports)),
    "address twice": _copy_address,
    "address in two jobs": lambda draw, document: document["cluster"].update(evaluator=[_first(document)]),
    "loopback among others": _loopback,
    "hole in the indices": _hole,
    "two chiefs": _too_many("chief"),
    "two evaluators": _too_many("evaluator"),
    "unknown job": _add_job,
    "sections swapped": _swap_sections,
    "type and index swapped": lambda draw, document: document.update(
        task={"type": document["task"]["index"], "index": document["task"]["type"]}
    ),
    "slip in a key": lambda draw, document: document.update(
        {draw(st.sampled_from(["clusters", "Cluster", "cluter"])): document.pop("cluster")}
    ),
}


@st.composite
def broken_documents(draw: st.DrawFn, how: str) -> Document:
    document = draw(valid_documents(at_least=2))
    BREAK[how](draw, document)
    return document


def is_valid(document: Any) -> bool:
    """Whether a document is one that a process of a cluster may be given: a second, plain reading of the rules.

    It is for documents whose addresses are all `"a:1"` or wrong.
    """
    if not isinstance(document, dict) or any(
        not isinstance(document.get(key, {}), dict) for key in ("cluster", "task")
    ):
        return False
    cluster, task = document.get("cluster", {}), document.get("task", {})
    if not cluster:
        alone = not task or (
            "cluster" in document
            and task.get("type") in ("chief", "worker", "evaluator")
            and task.get("index") in (0, "0")
        )
        return alone and not isinstance(task.get("index"), (bool, float))
    jobs = [[*tasks.values()] if isinstance(tasks, dict) and [*tasks] == ["0"] else tasks for tasks in cluster.values()]
    # One address only, so one task only; an evaluator need not be in the cluster.
    return (
        jobs == [["a:1"]]
        and next(iter(cluster)) in ("chief", "worker")
        and task.get("type") in (next(iter(cluster)), "evaluator")
        and task.get("index") in (0, "0")
        and not isinstance(task["index"], (bool, float))
    )
