"""The decisions of a meeting, alone and in random histories of faults in simulated time."""

import random

import pytest

from replicax.contracts.group import Incarnation
from replicax.group.membership.quorum import (
    AGAIN,
    DONE,
    QuorumRecord,
    View,
    expected,
    is_abandoned,
    next_record,
    verdict,
)

A, B, C = (Incarnation(index, 0) for index in range(3))
SHEET = QuorumRecord(4, 2, (A, B, C), (b"a", b"b", b"c"), (A, B, C))


def view(notes=(), gone=(), silent=(), newest=(A, B, C)):
    notes = {incarnation: (9, str(incarnation.index).encode()) for incarnation in notes}
    return View({incarnation.index: incarnation for incarnation in newest}, frozenset(gone), frozenset(silent), notes)


def test_the_first_roll_waits_for_all():
    assert expected(None, False, 3, view([A, C])) == [1]
    assert next_record(None, False, 3, view([A, C])) is None
    assert next_record(None, False, 3, view([A, B, C])) == QuorumRecord(1, 1, (A, B, C), (b"0", b"1", b"2"), (A, B, C))


@pytest.mark.parametrize("known", [{"gone": [B]}, {"silent": [B]}, {"newest": [A, Incarnation(1, 1), C]}])
def test_later_rolls_wait_for_nobody_who_is_not_up(known):
    assert next_record(SHEET, False, 3, view([A])) is None
    assert next_record(SHEET, False, 3, view([A, C], **known)) == QuorumRecord(
        5, 5, (A, C), (b"0", b"2"), (A, B, C), ((B, 4),) if "silent" in known else ()
    )


def test_the_same_lives_keep_their_clique_unless_a_sum_has_failed():
    assert next_record(SHEET, False, 3, view([A, B, C])).clique == 2
    assert next_record(SHEET, True, 3, view([A, B, C])).clique == 5


def test_a_newcomer_is_taken_when_it_has_come_and_not_waited_for():
    new, last = Incarnation(1, 1), QuorumRecord(5, 5, (A, C), (b"", b""), (A, C))
    assert next_record(last, False, 3, view([A, C], newest=[A, new, C])).incarnations == (A, C)
    assert next_record(last, False, 3, view([A, new, C], newest=[A, new, C])).incarnations == (A, new, C)


def test_a_roll_uses_a_note_up():
    after = next_record(SHEET, False, 3, view([A, C], silent=[B]))
    assert after.absent == ((B, 4),)
    # B has not come again since quorum 4: what stands on the job store is the note for that.
    newest = {incarnation.index: incarnation for incarnation in (A, B, C)}
    then = next_record(after, False, 3, View(newest, notes={A: (5, b"0"), B: (3, b"1"), C: (5, b"2")}))
    assert then.incarnations == (A, C)
    assert then.absent == ((B, 4),)
    assert next_record(then, False, 3, View(newest, notes=dict.fromkeys((A, B, C), (6, b"")))).incarnations == (A, B, C)


def test_newcomers_alone_make_no_roll():
    new = Incarnation(1, 1)
    only = view([new], gone=[A, C], newest=[A, new, C])
    assert next_record(SHEET, False, 3, only) is None
    assert is_abandoned(SHEET, False, only)
    assert not is_abandoned(SHEET, False, view([new], gone=[A], silent=[C], newest=[A, new, C]))
    assert not is_abandoned(None, False, only)


def test_a_newcomer_of_a_failed_sum_holds_no_state():
    new = Incarnation(1, 1)
    last = QuorumRecord(5, 5, (A, new), (b"", b""), (A, B))
    alone = view([new], gone=[A], newest=[A, new, C])
    assert next_record(last, True, 3, alone) is None
    assert is_abandoned(last, True, alone)
    alone = View(alone.newest, alone.gone, notes={new: (5, b"1")})
    assert next_record(last, False, 3, alone).incarnations == (new,)  # The sum has given it the state.
    # One that was left out in between, and holds the state, is waited for if it is up.
    assert expected(QuorumRecord(5, 5, (A,), (b"",), (A, C)), True, 3, view([A])) == [2]
    assert expected(QuorumRecord(5, 5, (A,), (b"",), (A, C)), False, 3, view([A])) == []


def test_a_sum_counts_when_all_have_its_result():
    assert verdict(SHEET, {0: b"", 1: b""}, view()) is None
    assert verdict(SHEET, {0: b"", 1: b"", 2: b""}, view()) == DONE
    assert verdict(SHEET, {0: b"", 1: b"", 2: b""}, view(gone=[C])) == DONE
    assert verdict(SHEET, {0: b"", 1: b""}, view(gone=[C])) == AGAIN
    assert verdict(SHEET, {0: b"", 1: b""}, view(silent=[C])) == AGAIN
    assert verdict(SHEET, {1: b"Connection closed by peer"}, view()) == AGAIN


class Process:
    """One incarnation in a history: it waits for a quorum, is in a sum, or knows the outcome."""

    def __init__(self, incarnation):
        self.incarnation, self.last, self.broken, self.done, self.stopped = incarnation, None, False, -1, False


class History:
    """Islands whose steps come in random order, with random faults, over one store."""

    def __init__(self, seed, size):
        self.random, self.size = random.Random(seed), size
        self.records, self.outcomes, self.ended, self.notes, self.gone = {}, {}, {}, {}, set()
        self.processes = {index: Process(Incarnation(index, 0)) for index in range(size)}
        self.kept: dict[int, dict[Incarnation, int]] = {}  # For each round who has kept the sum of which quorum.

    def view(self, process, last):
        """Returns what one process knows: it may take a living one for silent."""
        incarnations = [each.incarnation for each in self.processes.values()]
        silent = {each.incarnation for each in self.processes.values() if each.stopped and self.random.random() < 0.5}
        if self.faults and self.random.random() < 0.02:
            silent.add(self.random.choice(incarnations))
        newest = {incarnation.index: incarnation for incarnation in incarnations}
        return View(newest, frozenset(self.gone), frozenset(silent - {process.incarnation}), self.notes)

    def step(self, process):
        last = process.last
        name = last.number if last else 0
        if last and process.incarnation in last.incarnations and name not in self.outcomes:
            self.ended.setdefault(name, {})
            if self.random.random() < 0.7:
                failed = self.faults and self.random.random() < 0.05
                self.ended[name].setdefault(process.incarnation.index, b"lost" if failed else b"")
            outcome = verdict(last, self.ended[name], self.view(process, last))
            if outcome is not None:
                self.outcomes.setdefault(name, outcome)
            return
        self._settle(process)
        self.notes[process.incarnation] = (name, str(process.done).encode())
        newest = max(self.records, default=0)
        if newest > name:
            process.last = self.records[name + 1] if name else self.records[newest]
            process.broken, process.settled = False, False
            return
        known = self.view(process, last)
        broken = process.broken if last is None or process.incarnation in last.incarnations else None
        if broken is None and process.incarnation in last.holders and all(map(known.is_over, last.incarnations)):
            self.outcomes[name] = AGAIN
            broken = True
        if broken is not None:
            record = next_record(last, broken, self.size, known)
            if record is not None:
                self.check(last, broken, record)
                self.records.setdefault(record.number, record)

    def _settle(self, process):
        """Keeps the values of a sum that counts, once."""
        last = process.last
        if last is None or process.incarnation not in last.incarnations or getattr(process, "settled", True):
            return
        process.settled = True
        if self.outcomes[last.number] == DONE:
            process.done = max(int(note) for note in last.notes) + 1
            quorums = self.kept.setdefault(process.done, {})
            quorums[process.incarnation] = last.number
            living = {quorum for incarnation, quorum in quorums.items() if incarnation not in self.gone}
            assert len(living) == 1, f"round {process.done} was kept from the rolls {living}"
        process.broken = self.outcomes[last.number] == AGAIN

    def check(self, last, broken, record):
        indices = [incarnation.index for incarnation in record.incarnations]
        assert indices == sorted(set(indices)), "one life of each island at most"
        if last is not None:
            assert set(last.holders if broken else last.incarnations) & set(record.incarnations), (
                "somebody has the state"
            )
            assert record.number == last.number + 1
            if record.clique != record.number:
                assert record.incarnations == last.incarnations, "a clique has the same lives"
                assert self.outcomes[last.number] == DONE

    def fault(self):
        process = self.random.choice([*self.processes.values()])
        others = [
            each for each in self.processes.values() if each is not process and not each.stopped and each.done >= 0
        ]
        kind = self.random.choice(["kill", "stop", "wake", "wake"])
        if kind == "wake":
            process.stopped = False
        elif kind == "stop" and others:
            process.stopped = True
        elif kind == "kill" and any(each.last and each.incarnation in each.last.incarnations for each in others):
            self.gone.add(process.incarnation)
            self.notes.pop(process.incarnation, None)
            incarnation = Incarnation(process.incarnation.index, process.incarnation.number + 1)
            self.processes[incarnation.index] = Process(incarnation)

    def run(self, steps):
        for number in range(steps):
            self.faults = number < steps // 2
            if self.faults and self.random.random() < 0.03:
                self.fault()
            if not self.faults:
                for process in self.processes.values():
                    process.stopped = False
            process = self.random.choice([*self.processes.values()])
            if not process.stopped:
                self.step(process)
        return self


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 1500), marks=pytest.mark.nightly)])
def test_random_histories(seeds):
    kills = 0
    for seed in seeds:
        history = History(seed, 2 + seed % 4).run(1500)
        kills += len(history.gone)
        last = history.records[max(history.records)]
        holders = last.holders_after(history.outcomes.get(last.number) == AGAIN)
        everybody_is_lost = all(incarnation in history.gone for incarnation in holders)
        if not everybody_is_lost:
            assert len(last.incarnations) == history.size, (
                f"seed {seed}: {last.incarnations} of {history.size} meet in the end"
            )
            assert last.number > 20, f"seed {seed}: only {last.number} rolls"
    assert kills > len(seeds)
