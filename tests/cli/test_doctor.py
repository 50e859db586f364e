"""`replicax doctor`: each check against environments made up for it, and one real all-reduce."""

from __future__ import annotations

import json
import os
import shutil
import socket
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.cluster import detect_cluster, own_address
from replicax.job.launching.timed import Outcome
from replicax.tools.doctor import (
    DoctorReport,
    Finding,
    Severity,
    all_reduce,
    choose,
    diagnosis,
    found_devices,
    machine,
    network,
    software,
)

GOOD = {"jax": "0.10.2", "jaxlib": "0.10.2", "keras": "3.15.1", "replicax": "0.1.0"}


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize(
    ("versions", "python", "wrong"),
    [
        ({}, "3.11.7", {}),
        ({}, "3.10.1", {"python": Severity.FAIL}),
        ({"jax": None}, "3.12.0", {"jax": Severity.FAIL}),
        ({"jaxlib": "0.9.0"}, "3.12.0", {"jax": Severity.FAIL}),
        ({"jax": "0.9.2", "jaxlib": "0.9.2"}, "3.12.0", {"jax": Severity.FAIL}),
        ({"jax": "0.13.0.dev1", "jaxlib": "0.13.0"}, "3.12.0", {"jax": Severity.WARN}),
        ({"keras": "3.11.0"}, "3.12.0", {"keras": Severity.FAIL}),
        ({"keras": None, "replicax": None}, "3.12.0", {"keras": Severity.FAIL}),
    ],
)
def test_versions(versions: dict[str, Any], python: str, wrong: dict[str, Severity]):
    found = list(software.check_software((GOOD | versions).get, python))
    assert [finding.name for finding in found] == ["python", "replicax", "jax", "keras"]
    assert {finding.name: finding.status for finding in found if finding.status is not Severity.OK} == wrong
    assert all(finding.cure for finding in found if finding.status is not Severity.OK)


def test_the_backend_of_keras(tmp_path: Path):
    def status(environ: dict[str, str]) -> Severity:
        return software.check_keras_backend(environ, tmp_path).status

    assert status({"KERAS_BACKEND": "jax"}) is Severity.OK
    assert status({"KERAS_BACKEND": "torch"}) is Severity.FAIL
    assert status({}) is Severity.WARN
    settings = tmp_path / ".keras" / "keras.json"
    settings.parent.mkdir()
    settings.write_text('{"backend": "jax"}')
    assert status({}) is Severity.OK
    settings.write_text("[")
    assert status({}) is Severity.WARN


def test_devices_are_counted_by_kind():
    found = [{"platform": "gpu", "kind": "H100", "memory": 80 * 2**30}] * 2
    assert found_devices.describe_devices(found).text == "2 x gpu (H100), 80.0 GiB each"


def test_devices_are_found_by_another_process():
    environ = {**os.environ, "JAX_NUM_CPU_DEVICES": "3", "NPROC": "2"}
    found = by_name(found_devices.check_devices(environ))
    assert found["devices"].text == "3 x cpu"
    assert found["threads"].status is Severity.WARN
    assert "NPROC=6" in found["threads"].cure
    assert found_devices.check_threads({"NPROC": "6"}, 3, 2).status is Severity.OK
    assert found_devices.check_threads({}, 1, 1).status is Severity.OK


def test_devices_that_cannot_be_found():
    (finding,) = found_devices.check_devices({**os.environ, "JAX_PLATFORMS": "nonsense"})
    assert finding.status is Severity.FAIL
    assert "nonsense" in finding.text
    hanging = found_devices.find_devices(dict(os.environ), timeout_s=0.01)
    assert isinstance(hanging, Finding)
    assert hanging.status is Severity.FAIL


def tf_config(addresses: list[str], index: int = 0) -> dict[str, str]:
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(cluster)}


def test_the_cluster_is_told_with_its_source():
    (finding,), detection = network.check_cluster(tf_config(["a:1", "b:1"], 1))
    assert detection is not None
    assert finding.status is Severity.OK
    assert finding.details["source"] == "TF_CONFIG"
    assert finding.text.startswith("this process is worker:1, process 1 of 2, coordinator a:1")


def test_a_malformed_cluster_fails_with_the_error():
    (finding,), detection = network.check_cluster(tf_config(["a:1", "a:1"]))
    assert detection is None
    assert finding.status is Severity.FAIL
    assert "has the address of worker[0]" in finding.text
    assert finding.cure.startswith("Give each task an address of its own")


def test_a_conflict_is_a_warning():
    environ = tf_config(["a:1", "b:1"]) | {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    findings, _ = network.check_cluster(environ)
    assert [finding.status for finding in findings] == [Severity.OK, Severity.WARN]
    assert "TF_CONFIG describes 2 processes, torchrun 4" in findings[1].text


def test_names_ports_and_peers():
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as peer:
        ports = [each.getsockname()[1] for each in (free, peer)]
        environ = tf_config([f"127.0.0.1:{port}" for port in ports])
        taken = by_name(network.check_addresses(detect_cluster(environ).config))
        assert taken["port"].status is Severity.FAIL
        assert "is taken" in taken["port"].text
        free.close()
        well = by_name(network.check_addresses(detect_cluster(environ).config))
        assert {finding.status for finding in well.values()} == {Severity.OK}
        assert well["peers"].details["peers"] == {"worker:1": "listens"}
    gone = by_name(network.check_addresses(detect_cluster(environ).config))
    assert gone["peers"].text == "worker:1 not started"


def test_names_that_nobody_knows(monkeypatch: pytest.MonkeyPatch):
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    config = detect_cluster(tf_config(["nowhere:1", "also-nowhere:1"])).config
    found = by_name(network.check_addresses(config))
    assert {finding.status for finding in found.values()} == {Severity.FAIL}
    assert found["names"].details["unresolved"] == ["worker:0", "worker:1"]
    assert "'nowhere' is a name that is not known here" in found["own address"].text


def test_an_address_that_this_machine_does_not_have():
    environ = tf_config(["192.0.2.200:1", "192.0.2.201:1"])
    found = by_name(network.check_addresses(detect_cluster(environ).config, environ, timeout_s=0.1))
    assert found["own address"].status is Severity.FAIL
    assert "The address of worker:0 cannot be used: '192.0.2.200' means" in found["own address"].text
    assert "Make sure that each machine gets its own task" in found["own address"].cure
    assert "port" not in found
    translated = {**environ, "REPLICAX_HOST": "127.0.0.1"}
    found = by_name(network.check_addresses(detect_cluster(environ).config, translated, timeout_s=0.1))
    assert found["own address"].status is Severity.OK
    assert found["own address"].text.startswith("worker:0 listens at 127.0.0.1; '192.0.2.200', its name in the cluster")


def test_a_name_that_leads_back_to_this_machine(monkeypatch: pytest.MonkeyPatch):
    names = {"alpha": ["127.0.1.1"], "beta": ["192.0.2.1"]}
    two, alone = (detect_cluster(tf_config(["alpha:1", other])).config for other in ("beta:1", "alpha:2"))
    monkeypatch.setattr(own_address, "resolve", lambda host: names.get(host, [host]))
    monkeypatch.setattr(network, "resolve", names.__getitem__)
    monkeypatch.setattr(own_address, "source_towards", {"127.0.1.1": "127.0.0.1", "192.0.2.1": "192.0.2.7"}.get)
    found = by_name(network.check_addresses(two, {}, timeout_s=0.1))
    assert found["own address"].status is Severity.OK
    assert found["own address"].details == {"address": "192.0.2.7", "resolved": ["127.0.1.1"]}
    assert "means 127.0.1.1 on this machine" in found["own address"].text
    found = by_name(network.check_addresses(alone, {}, timeout_s=0.1))
    assert found["own address"].text == "worker:0 listens at 127.0.1.1"
    monkeypatch.setattr(own_address, "source_towards", lambda ip: "")
    found = by_name(network.check_addresses(two, {}, timeout_s=0.1))
    assert found["own address"].status is Severity.FAIL
    assert "has no route to the others" in found["own address"].text


@pytest.mark.parametrize(
    ("environ", "status", "word"),
    [
        ({}, Severity.OK, "none"),
        ({"https_proxy": ""}, Severity.OK, "none"),
        ({"no_proxy": "example.org"}, Severity.OK, "none (no_proxy alone does no harm"),
        ({"https_proxy": "http://p:1"}, Severity.WARN, "10.0.0.1, 10.0.0.2"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.1"}, Severity.WARN, "also for 10.0.0.2:"),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.1, 10.0.0.2"}, Severity.OK, "leaves out"),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, Severity.OK, "leaves out"),
    ],
)
def test_proxies(environ: dict[str, str], status: Severity, word: str):
    config = detect_cluster(tf_config(["10.0.0.1:1", "10.0.0.2:1"])).config
    finding = network.check_proxies(environ, config)
    assert finding.status is status
    assert word in finding.text


def test_a_proxy_matters_on_one_machine_too():
    finding = network.check_proxies({"http_proxy": "http://p:1", "no_proxy": "example.org"})
    assert finding.cure == "export no_proxy=example.org,127.0.0.1,localhost"


def test_the_clock(tmp_path: Path):
    assert machine.check_clock(tmp_path).status is Severity.OK
    assert machine.check_clock(tmp_path, now=0.0).status is Severity.FAIL
    assert machine.check_clock(tmp_path, now=4e9).status is Severity.WARN
    assert machine.check_clock(tmp_path / "absent").status is Severity.WARN
    assert list(tmp_path.iterdir()) == []


def test_the_compilation_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def status(folder: Path | str) -> Severity:
        return machine.check_cache({"JAX_COMPILATION_CACHE_DIR": str(folder)}).status

    assert status(tmp_path / "new" / "folder") is Severity.OK
    assert list(tmp_path.iterdir()) == []
    assert status("gs://bucket/cache") is Severity.OK
    (tmp_path / "file").touch()
    assert status(tmp_path / "file" / "cache") is Severity.WARN
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=2**20))
    assert status(tmp_path) is Severity.WARN


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome(1, "worker 1", False, {}), "worker 1 ended with exit code 1: an error in the script: ValueError: no"),
        (Outcome(130, "", True, {}), "not done after 9 s"),
    ],
)
def test_an_all_reduce_that_fails(outcome: Outcome, word: str):
    logs = {"worker 0": "", "worker 1": "Traceback (most recent call last):\n  ...\nValueError: no"}
    finding = all_reduce.read_outcome(outcome, logs, 9)
    assert finding.status is Severity.FAIL
    assert word in finding.text


def test_a_crash_tells_what_stood_before_it():
    log = "UNAVAILABLE: no route\n*** Stack: ***\n    @  0x1 f\n\nFatal Python error: Aborted\n\nModules: a, b"
    finding = all_reduce.read_outcome(Outcome(134, "worker 0", False, {}), {"worker 0": log}, 9)
    assert finding.text == "worker 0 ended with exit code 134: ended by SIGABRT: UNAVAILABLE: no route"


@pytest.mark.multiprocess
def test_a_real_all_reduce():
    finding = all_reduce.check_all_reduce(os.environ)
    assert finding.status is Severity.OK, finding
    assert set(finding.details["sizes"]) == {"4096", str(2**20), str(2**24)}
    assert all(size["bytes_per_second"] > 0 for size in finding.details["sizes"].values())


def test_json_has_a_fixed_schema_and_the_worst_finding_is_the_exit_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    done = CliRunner().invoke(app, ["doctor", "--json", "--quick"])
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert told.keys() == {"schema", "status", "findings"}
    assert (told["schema"], told["status"]) == (1, "fail")
    for finding in told["findings"]:
        assert finding.keys() == {"name", "status", "text", "cure", "details"}
        assert finding["status"] in ("ok", "warn", "fail")
    names = [finding["name"] for finding in told["findings"]]
    assert names == [
        "python", "replicax", "jax", "keras", "keras backend", "overrides", "devices", "threads", "cluster", "proxies",
        "clock", "compilation cache",
    ]  # fmt: skip


def test_the_table_shows_cures(monkeypatch: pytest.MonkeyPatch):
    findings = (Finding("good", Severity.OK, "well"), Finding("bad", Severity.WARN, "not so well", "Do this."))
    found = DoctorReport(findings, detect_cluster({}))
    monkeypatch.setattr("replicax.cli.doctor.diagnose", lambda quick: found)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    for words in ("OK     good", "WARN   bad", "-> Do this.", "TF_CONFIG    no", "1 OK, 1 WARN"):
        assert words in done.stdout
    assert diagnosis.DoctorReport((), None).status is Severity.OK


def gpus(count: int, gib: float = 80) -> list[dict[str, Any]]:
    return [{"platform": "gpu", "kind": "H100", "memory": int(gib * 2**30)}] * count


CPU = {"platform": "cpu", "kind": "cpu", "memory": None}


@pytest.mark.parametrize(
    ("devices", "hosts", "parameters", "strategy", "says"),
    [
        (gpus(1), 1, None, 'rx.OneDeviceStrategy("gpu:0")', "1 GPU(s)"),
        ([CPU], 1, 1e9, 'rx.OneDeviceStrategy("cpu:0")', "unknown"),
        ([CPU, *gpus(8)], 1, 4e9, "rx.MirroredStrategy()", "fits on one"),  # 59.6 of 64 GiB
        (gpus(8), 1, 5e9, "rx.FullyShardedStrategy()", "sharded over all 8"),  # 74.5 of 64 GiB
        (gpus(8), 4, 1e9, "rx.MultiWorkerMirroredStrategy()", "each of 4 hosts"),
        (gpus(8), 1, 70e9, "rx.FullyShardedStrategy()", "at least 17 such devices"),  # 1043.1 GiB in parts of 64
        ([{"platform": "tpu", "kind": "v5e", "memory": 2**34}] * 4, 4, None, "rx.TPUStrategy()", "4 TPU core(s)"),
    ],
)
def test_a_strategy_is_chosen_by_devices_memory_and_hosts(devices, hosts, parameters, strategy, says):
    choice = choose(devices, hosts, parameters)
    assert choice.strategy == strategy
    assert says in " ".join(choice.reasons)
    assert ("replicax plan train.py" in " ".join(choice.reasons)) is (parameters is not None)
    assert ("--hosts host1,host2,host3,host4" in choice.command) is (hosts > 1 and devices[0]["platform"] == "gpu")


def test_the_command_says_which_strategy_fits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("replicax.cli.doctor.find_devices", lambda environ: gpus(2))
    done = CliRunner().invoke(app, ["doctor", "--choose"])
    assert done.exit_code == 0
    assert "strategy = rx.MirroredStrategy()" in done.output
