"""The faults of `tests/planted/` fit the code as it is. That the tests find them, `python tests/planted.py` shows."""

from __future__ import annotations

import ast
import collections

import pytest

from tests import planted

FAULTS = planted.faults()
# The rooms whose code crosses processes, and how many faults they have together at the least.
CROSSING = {
    "checkpoint",
    "cluster",
    "collectives",
    "group",
    "islands",
    "job",
    "parameter_server",
    "ray_cluster",
}


def test_each_fault_fits_its_file_once_and_leaves_python() -> None:
    wrong = []
    for fault in FAULTS:
        try:
            text = (planted.ROOT / fault.file).read_text(encoding="utf-8")
            changed = fault.changed(text)
            if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
                wrong.append(f"{fault.name}: the same program with it as without")
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(f"{fault.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_each_fault_has_a_name_of_its_own_and_lies_in_its_room() -> None:
    names = collections.Counter(fault.name for fault in FAULTS)
    assert [name for name, count in names.items() if count > 1] == []
    astray = [
        fault.name
        for fault in FAULTS
        if not (
            fault.file.count("/") == 1 or fault.file.startswith("pytest_replicax/")
            if fault.room == planted.CORE
            else fault.file.startswith(f"replicax/{fault.room}/")
        )
    ]
    assert astray == []


def test_there_are_enough_faults_in_every_room() -> None:
    rooms = collections.Counter(fault.room for fault in FAULTS)
    assert {*rooms} == {*planted.rooms()}
    assert {room: count for room, count in rooms.items() if count < 3} == {}
    assert rooms.total() >= 120
    assert sum(count for room, count in rooms.items() if room in CROSSING) >= 40


def test_the_tests_that_should_find_a_fault_exist() -> None:
    wrong = []
    for test in sorted({test for fault in FAULTS for test in (*fault.tests, *fault.room_tests)}):
        path, _, name = test.partition("::")
        # A folder whose tests have moved away still holds compiled ones on the machine of whoever moved them.
        files = [planted.ROOT / path] if path.endswith(".py") else [*(planted.ROOT / path).rglob("*.py")]
        function = name.rpartition("::")[2].partition("[")[0]
        if not any(file.exists() and (not name or f"def {function}(" in file.read_text("utf-8")) for file in files):
            wrong.append(test)
    assert wrong == []


def test_make_test_says_which_tests_run() -> None:
    assert planted.expression().startswith("not ")


def test_a_fault_that_no_longer_fits_says_so() -> None:
    fault = planted.Fault("data", "halved", "replicax/data/x.py", "a + b", "a", (), ())
    assert fault.changed("c = a + b") == "c = a"
    for text, count in (("c = a - b", 0), ("a + b; a + b", 2)):
        with pytest.raises(ValueError, match=f"'halved' of data no longer fits: its old text stands {count} times"):
            fault.changed(text)


@pytest.mark.parametrize(
    ("output", "test", "is_test"),
    [
        ("tests/data/test_x.py::test_a PASSED [ 50%]\ntests/data/test_x.py::test_y[a - b] FAILED [100%]\n", "y", True),
        ("[gw1] [  3%] FAILED tests/data/test_x.py::test_y[a - b] \n", "y", True),
        (
            "tests/data/test_x.py::test_a PASSED [ 50%]\ntests/data/test_x.py::test_y[a - b] +++ Timeout +++\n~~",
            "y",
            True,
        ),
        ("==== short ====\nERROR tests/data/test_x.py\n!!!!", "file", False),
        ("ImportError while loading conftest", "folder", False),
    ],
    ids=["alone", "beside", "time-out", "import", "conftest"],
)
def test_what_failed_is_read_from_what_pytest_prints(output: str, test: str, is_test: bool) -> None:
    names = {"y": "tests/data/test_x.py::test_y[a - b]", "file": "tests/data/test_x.py", "folder": "tests/data"}
    assert planted.failure_in(output, ("tests/data",)) == (names[test], is_test)
