from __future__ import annotations

import pytest

from replicax.tensorflow.checkpoints import SavedTensor, Slot
from replicax.tensorflow.checkpoints.object_graph import parsed
from tests.migrate.bundles import message


def node(children: dict[str, int] | None = None, *more: tuple[int, bytes]) -> tuple[int, bytes]:
    refers = [(1, message((1, child), (2, name))) for name, child in (children or {}).items()]
    return 1, message(*refers, *more)


def tensor(name: str, full_name: str, key: str) -> tuple[int, bytes]:
    return 2, message((1, name), (2, full_name), (3, key))


def test_objects_values_and_slots():
    graph = parsed(
        message(
            node({"model": 1, "optimizer": 2}),
            node({"kernel": 3}),
            node({}, (3, message((1, 3), (2, "m"), (3, 4))), (4, message((1, "saver"), (2, "o")))),
            node({}, tensor("VARIABLE_VALUE", "dense/kernel", "model/kernel/V")),
            node({}, tensor("VARIABLE_VALUE", "dense/kernel/m", "model/kernel/m/V"), tensor("OTHER", "", "o")),
        )
    )
    assert graph.paths == {0: "", 1: "model", 2: "optimizer", 3: "model/kernel"}
    assert graph.nodes[2].slots == (Slot(variable=3, name="m", node=4),)
    assert [one.saver for one in graph.nodes] == ["", "", "saver", "", ""]
    assert graph.variables[3] == SavedTensor("VARIABLE_VALUE", "dense/kernel", "model/kernel/V")
    assert graph.variables.keys() == {3, 4}


def test_a_shortest_path_through_loops_and_shared_objects():
    graph = parsed(
        message(node({"a": 1, "b": 2}), node({"self": 1, "root": 0, "c": 3}), node({"c": 3}), node({"up": 1}))
    )
    assert graph.paths == {0: "", 1: "a", 2: "b", 3: "a/c"}


def test_a_path_through_an_optimizer_is_taken_only_where_there_is_no_other():
    kernel = tensor("VARIABLE_VALUE", "dense/kernel", "opt/_trainable_variables/0/V")
    slot = tensor("VARIABLE_VALUE", "adam/m", "opt/_variables/0/V")
    graph = parsed(
        message(
            node({"net": 1, "opt": 2}),
            node({"layers": 3}),
            node({"_trainable_variables": 4, "_variables": 5}),
            node({"0": 6}),
            node({"0": 7}),
            node({"0": 8}),
            node({"kernel": 7}),
            node({}, kernel),
            node({}, slot),
        )
    )
    assert (graph.paths[7], graph.paths[8]) == ("net/layers/0/kernel", "opt/_variables/0")
    assert graph.names == {"opt/_trainable_variables/0/V": "net/layers/0/kernel"}
    assert [one.is_optimizer for one in graph.nodes[:3]] == [False, False, True]


def test_a_long_chain():
    count = 50_000
    graph = parsed(message(*(node({"n": i + 1} if i + 1 < count else {}) for i in range(0, count))))
    assert len(graph.nodes) == count
    chain = parsed(message(*(node({"n": min(i + 1, 1999)}) for i in range(2000))))
    assert chain.paths[1999].count("/") == 1998


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the object graph has no objects"),
        (message(node({"a": 1})), "the object graph refers to object 1 of 1"),
        (message(node({"a": -1})), "refers to object 18446744073709551615 of 1"),
        (message(node({}, (3, message((1, 0), (3, 9))))), "refers to object 9 of 1"),
        (message((1, b"\x0a\x7f")), "the field at byte 0 needs 127 bytes"),
        (message(node({}, (2, message((1, b"\xff\xfe"))))), "can't decode"),
    ],
)
def test_damaged_graphs(data, problem):
    with pytest.raises(ValueError, match=problem):
        parsed(data)
