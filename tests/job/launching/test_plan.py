from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from replicax.errors import LaunchError
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.options import Options, check_script, make_log_dir, parse_workers
from replicax.job.plan import Job, Plan, count_ports, flags_for_workers, make_plan
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.task import cache_folder

PORTS = [1001, 1002, 1003, 1004, 1005]


def plan(environment: dict[str, str] | None = None, attempt: int = 0, **options) -> Plan:
    wanted = Options("train.py", **options)
    job = Job(wanted, {"HOME": "/home/me"} if environment is None else environment, "secret", 77)
    return make_plan(job, wanted.workers, attempt, PORTS[: count_ports(wanted, wanted.workers)])


def test_every_task_knows_the_cluster_and_its_place_in_it():
    made = plan(workers=2, evaluator=True)
    assert [(task.type, task.index, task.port) for task in made.tasks] == [
        ("worker", 0, 1001),
        ("worker", 1, 1002),
        ("evaluator", 0, None),
    ]
    cluster = {"worker": ["127.0.0.1:1001", "127.0.0.1:1002"]}
    for task in made.tasks:
        role = {"cluster": cluster, "task": {"type": task.type, "index": task.index}}
        assert json.loads(task.environment["TF_CONFIG"]) == role
    assert [(task.name, task.log_name) for task in made.tasks[1:3]] == [
        ("worker 1", "worker-1.log"),
        ("evaluator 0", "evaluator-0.log"),
    ]


def test_a_coordinator_starts_its_servers_and_workers_itself():
    made = plan({"TF_CONFIG": "{}", "REPLICAX_PS_WORKERS": "9"}, workers=4, min_workers=2, ps=3)
    (coordinator,) = made.tasks
    assert made.workers == 2
    assert (coordinator.name, coordinator.port) == ("chief 0", None)
    numbers = {"REPLICAX_PS_WORKERS": "2", "REPLICAX_PS_SERVERS": "3", "REPLICAX_TOKEN": "secret"}
    assert numbers.items() <= coordinator.environment.items()
    assert not {"TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"} & coordinator.environment.keys()


def test_jax_is_told_of_the_workers_only():
    *workers, evaluator = plan({"JAX_PROCESS_ID": "9", "TF_CONFIG": "{}"}, workers=2, evaluator=True).tasks
    for index, worker in enumerate(workers):
        assert worker.environment["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:1001"
        assert worker.environment["JAX_COORDINATOR_BIND_ADDRESS"] == "127.0.0.1:1001"
        assert worker.environment["JAX_NUM_PROCESSES"] == "2"
        assert worker.environment["JAX_PROCESS_ID"] == str(index)
    assert not {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} & evaluator.environment.keys()


def test_workers_that_come_and_go_meet_at_a_port_of_its_own():
    for task in plan(workers=2, elastic=ElasticRange(1, 3)).tasks:
        assert task.environment["REPLICAX_MEETING"] == "127.0.0.1:1003"
        assert task.port in (1001, 1002)


def test_the_environment_that_all_share():
    (task,) = plan(attempt=3, devices_per_worker=20).tasks
    expected = {
        "HOME": "/home/me",
        "KERAS_BACKEND": "jax",
        "JAX_NUM_CPU_DEVICES": "20",
        "NPROC": str(max(40, os.cpu_count() or 1)),
        "PYTHONUNBUFFERED": "1",
        "JAX_COMPILATION_CACHE_DIR": "/home/me/.cache/replicax/compiled",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "REPLICAX_TOKEN": "secret",
        "REPLICAX_ATTEMPT": "3",
        "REPLICAX_LAUNCHER_PID": "77",
    }
    assert expected.items() <= task.environment.items()


def test_what_the_user_has_set_stays():
    own = {
        "KERAS_BACKEND": "torch",
        "JAX_COMPILATION_CACHE_DIR": "/mine",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "5",
        "NPROC": "500",
        "XLA_FLAGS": "--xla_some_flag",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    (task,) = plan(own).tasks
    assert own.items() <= task.environment.items()


@pytest.mark.parametrize(
    ("environment", "no_proxy"),
    [
        ({}, None),
        ({"no_proxy": "example.org"}, "example.org"),
        ({"http_proxy": "http://p:1"}, "127.0.0.1"),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "example.org"}, "example.org,127.0.0.1"),
    ],
)
def test_only_where_there_is_a_proxy_this_machine_is_left_out_of_it(environment: dict[str, str], no_proxy: str | None):
    [task] = plan(environment, workers=1).tasks
    assert task.environment.get("no_proxy") == no_proxy


def test_an_unreadable_number_of_threads_does_not_count():
    assert plan({"NPROC": "many"}, devices_per_worker=100).tasks[0].environment["NPROC"] == "200"


def test_the_cache_lies_where_the_system_says():
    assert cache_folder({"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}) == Path("/cache/replicax/compiled")


# Ports.


def test_reserved_ports_are_free_for_the_worker_and_for_no_one_else():
    with reserved_ports(5, "127.0.0.1") as ports:
        assert len(set(ports)) == 5
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", ports[0]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports[0]), timeout=5)
        with (
            socket.create_server(("127.0.0.1", ports[0])) as worker,
            socket.create_connection(worker.getsockname(), timeout=5) as caller,
        ):
            assert worker.accept()[1] == caller.getsockname()
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[1]))


def test_nobody_is_given_a_reserved_port():
    with reserved_ports(50, "127.0.0.1") as ours, reserved_ports(50, "127.0.0.1") as theirs:
        assert not set(ours) & set(theirs)


# Options.


@pytest.mark.parametrize(("text", "numbers"), [("4", (4, 4)), ("2:4", (2, 4)), (" 3 : 3 ", (3, 3))])
def test_workers(text: str, numbers: tuple[int, int]):
    assert parse_workers(text) == numbers


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "1:2:3", ":4", "2:", "²"])
def test_what_is_no_number_of_workers(text: str):
    with pytest.raises(LaunchError, match=f"a range such as 2:4, got {re.escape(repr(text))}"):
        parse_workers(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "--workers must be a whole number of at least 1, got 0"),
        ({"workers": 4, "min_workers": 0}, "smaller number of --workers must be .* at least 1, got 0"),
        ({"workers": 2, "min_workers": 4}, "--workers 4:2 is not a range: write the smaller number first"),
        ({"devices_per_worker": 0}, "--devices-per-worker must be .* at least 1, got 0"),
        ({"ps": 1, "evaluator": True}, "--ps and --evaluator exclude each other"),
        ({"ps": -1}, "--ps must be .* at least 0, got -1"),
        ({"restarts": -1}, "--restarts must be .* at least 0, got -1"),
        ({"grace": -0.1}, "--grace must be a number of seconds of at least 0, got -0.1"),
        ({"grace": float("inf")}, "--grace"),
        ({"grace": float("nan")}, "--grace"),
    ],
)
def test_impossible_options(options: dict, says: str):
    with pytest.raises(LaunchError, match=says):
        Options("train.py", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(""), "No script is named"),
        (Options("absent.py"), "no file 'absent.py' in"),
        (Options("python", ("train.py",)), "Name the script itself"),
        (Options("folder"), "It is a folder; to run a package, write -m"),
        (Options("json.tool"), "It is a module: write -m"),
        (Options("absent", module=True), "no module 'absent'"),
        (Options("json.absent", module=True), "no module 'json.absent'"),
        (Options("script.py", module=True), "no module 'script.py'.* Leave out -m"),
        (Options("json.tool.more", module=True), "no module"),
    ],
)
def test_what_cannot_be_run(options: Options, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "script.py").touch()
    with pytest.raises(LaunchError, match=says):
        check_script(options)


def test_what_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    for options in (Options("here.py"), Options("here", module=True), Options("json.tool", module=True)):
        check_script(options)


def test_logs_go_into_a_new_folder_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = make_log_dir(Options("some/train.py"))
    assert folder.is_dir()
    assert re.fullmatch(r"runs/train-\d{8}-\d{6}-\d+", str(folder))
    assert make_log_dir(Options("train.py", log_dir=tmp_path / "a" / "b")) == tmp_path / "a" / "b"


def test_a_folder_for_logs_that_cannot_be(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"cannot be made: .* Choose another --log-dir"):
        make_log_dir(Options("train.py", log_dir=tmp_path / "file" / "folder"))


def test_workers_have_the_flags_of_xla_but_their_own_number_of_devices():
    assert flags_for_workers("--xla_a=1  --xla_force_host_platform_device_count=8 --xla_b") == "--xla_a=1 --xla_b"
    assert flags_for_workers("") == ""
