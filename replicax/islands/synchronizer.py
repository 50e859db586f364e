"""The synchronization of islands: which values they have in common, since when, and what they exchange."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import IslandDivergenceError
from replicax.group.membership.meeting import Meeting, MemberLostError, Quorum
from replicax.islands.exchange import Part, Sent, added, averaged, copied, weighted, zeros_like
from replicax.islands.island_state import Common, IslandState
from replicax.islands.kinds import DIVERGING, Kind
from replicax.islands.notes import Note, check_same_programs, digest_of, read_note, veterans
from replicax.islands.outer_optimizers import OuterOptimizer
from replicax.islands.progress import Progress
from replicax.islands.registry import Entry, Registry
from replicax.islands.rounds import Schedule
from replicax.islands.saving import check_saved, restore, saved
from replicax.islands.values import Values
from replicax.runtime import turns
from replicax.typing import PyTree

_WHAT = {
    "start": "the first values of variables",
    "round": "a synchronization of the islands",
    "end": "strategy.synchronize()",
    "counts": "the totals of metrics",
}


class _Outcome(NamedTuple):
    """The outcome of an exchange, before it is kept."""

    fragments: tuple[int, ...]
    values: dict[int, jax.Array]  # by the variables' keys
    outer: dict[int, PyTree]  # by fragment


class Synchronizer:
    """Keeps one island and the others together: counts its steps, and exchanges values when it is time."""

    def __init__(
        self,
        meeting: Meeting,
        schedule: Schedule,
        outer: OuterOptimizer,
        averages_slots: bool,
        compressed: bool,
        values: Values,
        replicas: int,
    ):
        self.meeting = meeting
        self.registry, self.progress = Registry(schedule.fragments), Progress(schedule)
        self.common = Common(outer, values, schedule.fragments)
        self.num_bytes = 0  # of all arrays that it has exchanged
        self._values, self._replicas = values, replicas
        self._averaged = (Kind.MEAN, Kind.SLOT) if averages_slots else (Kind.MEAN,)
        self._compressed = compressed
        self._update = jax.jit(outer.update)
        self._restored: PyTree = None
        self._turn = threading.RLock()
        # The arrays that trained variables have held after the latest exchange, by the variables' keys.
        self._held: dict[int, weakref.ref[jax.Array]] = {}
        self._settings = (
            f"every={schedule.every}, fragments={schedule.fragments}, outer optimizer: {outer.described}, "
            f"optimizer_state={'mean' if averages_slots else 'own'!r}, "
            f"compression={'bfloat16' if compressed else None!r}"
        )
        self._known: list[Entry] | None = None  # the variables at the latest step
        self._agreed: set[int] = set()  # the keys of variables that have begun with one value everywhere

    # Called around steps.

    def turn(self) -> contextlib.AbstractContextManager[object]:
        """Returns the lock of the threads of this island: a step and the end of its round are one thread's."""
        # Taken before the locks of `runtime.turns`, which other islands of the process need meanwhile. Threads of XLA,
        # which run functions of the host, do not wait for the program that waits for them.
        return contextlib.nullcontext() if turns.is_foreign() else self._turn

    @contextlib.contextmanager
    def counted(self, trains: bool, weight: float) -> Iterator[None]:
        """Returns what a program that assigns variables runs in."""
        with self.turn():
            self.before(trains)
            yield
            self.after(trains, weight)

    def before(self, trains: bool) -> None:
        """Called before a program that assigns variables: a newcomer gets its values, a new round its start."""
        self._take_restored()
        if trains and self.progress.due:
            self.meet("round", self.progress.due)
        entries = self.registry.entries()
        if trains and entries is not self._known:
            if any(entry.key not in self._agreed for entry in entries):
                self.meet("start", ())
            self._known = entries
        self.common.counts.note_assigned(self.registry.of_kind(Kind.SUM))
        if trains:
            self._start_rounds()

    def _start_rounds(self) -> None:
        self._note_assigned()
        anchors, since = self.common.anchors, self.progress.since
        if all(since) and len(anchors) == len(self.registry.of_kind(Kind.TRAINED)):
            return
        trained = self.registry.of_kind(Kind.TRAINED)
        started = [entry for entry in trained if since[entry.fragment] == 0 or entry.key not in anchors]
        if started:
            with turns.of_thread(), turns.DISPATCH:
                found = copied([self._values.local(entry.variable) for entry in started])
            anchors.update(zip([entry.key for entry in started], found, strict=True))

    def _note_assigned(self) -> None:
        """Notes what Python has assigned, in no step, to variables that are equal on all islands."""
        # A round begins with these values, as with the first ones: so all islands must assign the same. In a round it
        # is a change such as those of steps.
        since = self.progress.since
        if self.meeting.size == 1 or all(since):
            return
        for entry in self.registry.of_kind(Kind.TRAINED):
            held, array = self._held.get(entry.key), array_of(entry.variable)
            if since[entry.fragment] or held is None or held() is array:
                continue
            self._held[entry.key] = weakref.ref(array)
            with turns.of_thread(), turns.DISPATCH:
                value = np.asarray(self._values.local(entry.variable))
                anchor = self.common.anchors.get(entry.key)
                same = anchor is not None and np.array_equal(value, np.asarray(anchor))
            if not same:
                named = f"{entry.described} {self.progress.assigned}".encode()
                self.progress.assigned = zlib.crc32(value.tobytes(), zlib.crc32(named))

    def after(self, trains: bool, weight: float) -> None:
        """Called after such a program; the islands meet here when it is time."""
        self.common.counts.note_counted(self.registry.of_kind(Kind.SUM))
        if trains:
            self.progress.add_step(weight)
            if self.progress.due:
                self.meet("round", self.progress.due)

    def check_equal(self, variable: VariableLike) -> None:
        """Checks that the islands have the same value of a variable."""
        entry = self.registry.entry(variable) if self.meeting.size > 1 else None
        if entry is None or entry.kind not in DIVERGING:
            return
        counts, since = entry.kind is Kind.SUM, self.progress.since[entry.fragment]
        if self.common.counts.differ(entry) if counts else since:
            raise IslandDivergenceError(name_of(variable), since, self.progress.schedule.every, counts)

    # Checkpoints.

    def now(self) -> Progress:
        """Returns how far this island is, also right after it was restored."""
        self._take_restored()
        return self.progress

    def get_state(self) -> PyTree:
        """Returns what a checkpoint of this island has besides the values of variables."""
        self._take_restored()
        entries = self.registry.entries()
        return saved(self.common, self.progress, entries, self._values if jax.process_count() > 1 else None)

    def set_state(self, state: PyTree) -> None:
        """Goes on where `get_state` was called, with the first program: until then variables may get their values."""
        check_saved(state, self.progress, self.common.outer_kind)
        self._restored = state

    def _take_restored(self) -> None:
        state, self._restored = self._restored, None
        if state is not None:
            entries = self.registry.entries()
            restore(state, self.common, self.progress, entries, self._values)
            self._agreed = {entry.key for entry in entries}
            self._held = {}

    # Meeting the others.

    def synchronize(self) -> None:
        """Makes all values equal and ends the round; waits until all islands have called it."""
        with self.turn():
            self._take_restored()
            quorum = self.meet("end", tuple(range(self.progress.schedule.fragments)))
            self.progress.step = 0
        absent = [name for i, name in enumerate(self.meeting.names) if i not in quorum.present]
        if absent:
            warnings.warn(
                f"strategy.synchronize() was made without {', '.join(absent)}: they have ended before, or were lost. "
                "Their steps since their last exchange are not in the values. All islands must call it equally "
                "often.",
                RuntimeWarning,
                stacklevel=3,
            )

    def meet(self, at: str, fragments: tuple[int, ...]) -> Quorum:
        """Exchanges what is due with the other islands; at `end` and `counts`, until all of them have come there."""
        self._note_assigned()
        while True:
            described = digest_of([entry.described for entry in self.registry.entries()])
            own = self.progress.note(at, fragments, described, self._settings)
            quorum = self.meeting.gather(_WHAT[at], own.encoded())
            notes = [read_note(note) for note in quorum.notes]
            here = quorum.present.index(self.meeting.index)
            check_same_programs([self.meeting.names[i] for i in quorum.present], notes, here)
            try:
                self._exchange(quorum, notes, here)
            except MemberLostError:
                continue
            if not own.waits or all(note.waits for note in notes):
                return quorum

    def _exchange(self, quorum: Quorum, notes: Sequence[Note], here: int) -> None:
        """Makes one exchange; nothing is kept before all of it has come."""
        old = veterans(notes)
        outcome = _Outcome((), {}, {})
        if old:
            outcome = self._summed(quorum, [notes[i] for i in old], notes[here] if here in old else None)
        leader = old[0] if old else 0
        state = None
        if len(old) < len(notes) or any(note.at == "start" for note in notes):
            state = self._handed_over(quorum, here == leader, outcome, everything=bool(old))
        entries = self.registry.entries()
        away = (self.meeting.index - quorum.present[leader]) * self._replicas
        if state is not None and here != leader:
            with turns.of_thread(), turns.DISPATCH:
                if not old:
                    self.common.take_values(entries, state.values, away)
                elif here in old:
                    new = [(e, x) for e, x in zip(entries, state.values, strict=True) if e.key not in self._agreed]
                    self.common.take_values([e for e, _ in new], [x for _, x in new], away)
                else:
                    self.common.take(entries, state, away)
                    self.progress.taken_over(notes[leader])
        self._agreed = {entry.key for entry in entries}
        if here in old or here == leader:
            self._keep(outcome)
        self.progress.synchronized(outcome.fragments)
        trained = self.registry.of_kind(Kind.TRAINED)
        self._held = {entry.key: weakref.ref(array_of(entry.variable)) for entry in trained}

    def _summed(self, quorum: Quorum, old: Sequence[Note], own: Note | None) -> _Outcome:
        """Returns the new values of what is synchronized now, on newcomers and on all others."""
        wanted = sorted({fragment for note in old for fragment in note.fragments})
        work = {f: sum(note.weights[f] for note in old) for f in wanted}
        # Where no island has done anything, all are equal.
        fragments = [f for f in wanted if work[f] > 0]
        parts = {f: Part.of([note.weights[f] for note in old], own.weights[f] if own else 0.0) for f in fragments}
        trained = [e for e in self.registry.of_kind(Kind.TRAINED) if e.fragment in parts]
        means = [e for e in self.registry.of_kind(*self._averaged) if e.fragment in parts]
        counts = self.registry.of_kind(Kind.SUM) if any(note.waits for note in old) else []
        if not trained and not means and not counts:
            return _Outcome(tuple(wanted), {}, {})
        sent = self._sent(trained, means, counts, parts)
        if own is None:
            sent = Sent(*(list(zeros_like(group)) for group in sent))
        totals = sent.cut(self._total(quorum, sent.arrays))
        done = [parts[entry.fragment].of_all for entry in means]
        local = [self._values.local(entry.variable) for entry in means]
        values = dict(zip([e.key for e in means], averaged(totals.means, done, local), strict=True))
        bases = [self.common.counts.bases[e.key] for e in counts] if own is not None else totals.counts
        values |= zip([e.key for e in counts], added(bases, totals.counts), strict=True)
        outer: dict[int, PyTree] = {}
        if own is not None:
            for fragment in fragments:
                new, outer[fragment] = self._outer_step(fragment, trained, totals.trained)
                values |= new
        return _Outcome(tuple(wanted), values, outer)

    def _sent(
        self, trained: Sequence[Entry], means: Sequence[Entry], counts: Sequence[Entry], parts: dict[int, Part]
    ) -> Sent:
        with turns.of_thread(), turns.DISPATCH:
            now = [[self._values.local(entry.variable) for entry in group] for group in (trained, means, counts)]
            anchors = [self.common.anchors.get(e.key, x) for e, x in zip(trained, now[0], strict=True)]
            bases = [self.common.counts.bases.get(e.key, x) for e, x in zip(counts, now[2], strict=True)]
            shares = [parts[entry.fragment].share for entry in trained]
            works = [parts[entry.fragment].work for entry in means]
            return weighted((anchors, now[0], shares), (now[1], works), (now[2], bases), self._compressed)

    def example_of(self, fragment: int) -> Sent:
        """Returns arrays such as those that are sent for a fragment."""
        parts = {fragment: Part.of([1.0], 1.0)}
        trained = [e for e in self.registry.of_kind(Kind.TRAINED) if e.fragment == fragment]
        means = [e for e in self.registry.of_kind(*self._averaged) if e.fragment == fragment]
        return self._sent(trained, means, [], parts)

    def _total(self, quorum: Quorum, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        self.num_bytes += sum(array.nbytes for array in arrays)
        return self.meeting.total(quorum, arrays)

    def _outer_step(
        self, fragment: int, trained: Sequence[Entry], moved: Sequence[jax.Array]
    ) -> tuple[dict[int, jax.Array], PyTree]:
        own = [i for i, entry in enumerate(trained) if entry.fragment == fragment]
        anchors = [self.common.anchors[trained[i].key] for i in own]
        gradients = [moved[i].astype(anchor.dtype) for i, anchor in zip(own, anchors, strict=True)]
        state = self.common.outer_state(fragment, [trained[i] for i in own], anchors)
        new, state = self._update(gradients, state, anchors)
        return {trained[i].key: value for i, value in zip(own, new, strict=True)}, state

    def _handed_over(self, quorum: Quorum, is_leader: bool, outcome: _Outcome, everything: bool) -> IslandState:
        """Returns the leader's state on all islands: newcomers take it. At the start there are first values only."""
        with turns.of_thread(), turns.DISPATCH:
            state = self.common.state(self.registry.entries(), outcome.values, outcome.outer)
            state = state if everything else IslandState(state.values, [], [], [])
            leaves, structure = jax.tree_util.tree_flatten(state)
            own = copied(leaves) if is_leader else zeros_like(leaves)
        found: IslandState = jax.tree_util.tree_unflatten(structure, self._total(quorum, own))
        return found

    def _keep(self, outcome: _Outcome) -> None:
        changed = [entry for entry in self.registry.entries() if entry.key in outcome.values]
        with turns.of_thread(), turns.DISPATCH:
            self._values.store(changed, [outcome.values[entry.key] for entry in changed])
        for entry in changed:
            if entry.kind is Kind.SUM:
                self.common.counts.begin(entry, outcome.values[entry.key])
            elif entry.kind is Kind.TRAINED:  # This island may make no step before the others have ended a round.
                self.common.anchors[entry.key] = outcome.values[entry.key]
        self.common.keep_outer(outcome.outer, self.registry.entries())
