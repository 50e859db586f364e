"""`replicax members`."""

from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.contracts.group import Incarnation
from replicax.group.membership.membership_log import MembershipLog


def test_it_prints_a_table_and_writes_a_picture(tmp_path):
    log = MembershipLog(tmp_path)
    log.start(Incarnation(0, 0), 7)
    log.world(1, [Incarnation(0, 0)], "the job has begun")
    done = CliRunner().invoke(app, ["members", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "the job has begun" in done.output
    assert (tmp_path / "members.svg").read_text().startswith("<svg")


def test_another_place_for_the_picture(tmp_path):
    MembershipLog(tmp_path).start(Incarnation(0, 0), 7)
    done = CliRunner().invoke(app, ["members", str(tmp_path / "members.jsonl"), "--svg", str(tmp_path / "a.svg")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.svg").exists()


def test_without_a_log(tmp_path):
    done = CliRunner().invoke(app, ["members", str(tmp_path)])
    assert done.exit_code == 2
    assert "There is no members.jsonl" in done.output
