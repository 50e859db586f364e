"""The membership log, read and drawn."""

import xml.etree.ElementTree as ElementTree

import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import LaunchError
from replicax.group.membership.membership_log import MembershipLog
from replicax.job.membership_history import Span, history_of, read_history
from replicax.tools.plots.membership import bars, summary, svg, table

BEGIN = 1_700_000_000.0


def lines(*events):
    return [{"time": BEGIN + time, "event": event, **keys} for time, event, keys in events]


def start(time, worker, incarnation=0, **keys):
    return time, "start", {"worker": worker, "life": incarnation, "pid": 100 + worker, **keys}


def end(time, worker, reason, incarnation=0):
    return time, "end", {"worker": worker, "life": incarnation, "pid": 1, "code": 1, "reason": reason}


def world(time, number, incarnations, why="because"):
    members, numbers = zip(*incarnations, strict=True)
    return time, "world", {"number": number, "members": list(members), "lives": list(numbers), "why": why}


EVENTS = lines(
    (0, "job", {"fewest": 1, "most": 3, "workers": 2, "attempt": 0}),
    start(0, 0),
    start(0, 1),
    world(10, 1, [(0, 0), (1, 0)]),
    end(40, 1, "killed by signal 9"),
    start(40, 1, 1, host="afar"),
    world(41, 2, [(0, 0)], "worker 1 was lost (killed by signal 9)"),
    world(60, 3, [(0, 0), (1, 1)]),
    end(99, 0, "finished"),
    end(99, 1, "finished", 1),
    (100, "finish", {"code": 0, "why": "exit code 0: done"}),
)


def test_runs_and_memberships_are_spans():
    found = history_of(EVENTS)
    assert [span._replace(begin=span.begin - BEGIN, end=span.end - BEGIN) for span in found.runs] == [
        Span(1, 0, 0, 40, "killed by signal 9"),
        Span(0, 0, 0, 99, "finished"),
        Span(1, 1, 40, 99, "finished"),
    ]
    assert [span._replace(begin=span.begin - BEGIN, end=span.end - BEGIN) for span in found.memberships] == [
        Span(1, 0, 10, 40, "killed by signal 9"),
        Span(0, 0, 10, 99, "finished"),
        Span(1, 1, 60, 99, "finished"),
    ]
    assert [number for *_, number in found.members_over_time()] == [2, 1, 2]


def test_a_job_that_still_runs_lasts_to_the_last_line():
    found = history_of(EVENTS[:7])
    assert found.runs[-1] == Span(1, 1, BEGIN + 40, BEGIN + 41, "")
    assert found.memberships[-1] == Span(0, 0, BEGIN + 10, BEGIN + 41, "")


def test_a_second_attempt_ends_what_the_first_has_left():
    again = lines((200, "job", {"fewest": 1, "most": 3, "workers": 2, "attempt": 1}))
    found = history_of([*EVENTS[:4], *again])
    assert {span.how for span in found.runs} == {"the job started again"}
    assert found.changes[-1].text.startswith("attempt 1: 2 worker(s) start")


def test_the_table_tells_each_change():
    shown = table(history_of(EVENTS)).splitlines()
    assert len(shown) == 1 + len(EVENTS)
    assert shown[6].split()[1:] == ["40.0", "s", "worker", "1", "starts", "again", "(process", "101", "on", "afar)"]
    assert shown[8].split()[1:] == ["60.0", "s", "3", "0", "1", "because"]


def test_the_summary_counts():
    assert summary(history_of(EVENTS)) == (
        "100 s, 3 world(s), 1 to 2 members, 1.79 on average, 1 process(es) lost or left."
    )


def test_the_bars_show_who_is_a_member_and_who_only_runs():
    first, second, *_ = bars(history_of(EVENTS)).splitlines()
    assert set(first.partition("|")[2]) == {"█", "░", " ", "|"}
    line = second.partition("|")[2]
    assert [line[i] for i in (0, 20, 30, 50)] == ["░", "█", "░", "█"]


def test_the_picture_is_svg_with_a_bar_for_each_span():
    found = history_of(EVENTS)
    root = ElementTree.fromstring(svg(found, "A <job> & its members"))
    space = "{http://www.w3.org/2000/svg}"
    titled = [each.find(f"{space}title").text for each in root if each.find(f"{space}title") is not None]
    assert len(titled) == len(found.runs) + len(found.memberships) + 1  # and a mark where one was lost
    assert "worker 1: killed by signal 9" in titled
    assert root.find(f"{space}polyline") is not None


def test_a_job_of_one_line_can_be_drawn():
    found = history_of(EVENTS[:1])
    ElementTree.fromstring(svg(found, "empty"))
    assert "no world began" in summary(found)
    assert bars(found)


def test_what_is_written_is_read(tmp_path):
    log = MembershipLog(tmp_path)
    log.job(1, 2, 1, 0)
    log.start(Incarnation(0, 0), 7)
    log.world(1, [Incarnation(0, 0)], "the job has begun")
    log.leave(Incarnation(0, 0), "preempted")
    log.end(Incarnation(0, 0), 7, 75, "preempted")
    log.finish(75, "exit code 75")
    (tmp_path / "members.jsonl").open("a").write('{"time": 1')  # not yet whole
    found = read_history(tmp_path)
    assert [change.text for change in found.changes][2:4] == ["the job has begun", "worker 0 leaves: preempted"]


def test_a_folder_without_a_log(tmp_path):
    with pytest.raises(LaunchError, match=r"There is no members.jsonl in .*replicax run --elastic"):
        read_history(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]\n", "no JSON\n", '{"event": "start", "time": 1}\n'])
def test_another_file_is_refused(tmp_path, text):
    (tmp_path / "members.jsonl").write_text(text)
    with pytest.raises(LaunchError, match="is no membership log"):
        read_history(tmp_path)
