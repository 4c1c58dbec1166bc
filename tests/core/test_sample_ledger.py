"""The ledger: every position of every epoch is merged exactly once, despite lost, late or dropped tasks."""

import json

import pytest
from hypothesis import given, strategies as st

from oddlot.core.sample_ledger import SampleLedger, Skipped
from oddlot.core.sample_spans import Span
from oddlot.core.shard_queue import MAX_SPANS
from oddlot.core.support.errors import BadSamples
from oddlot.core.support.serialization import from_plain, to_plain
from tests.transcripts import raises

Place = tuple[int, int]

ledgers = st.builds(
    SampleLedger,
    size=st.integers(1, 30),
    epochs=st.integers(1, 3),
    shards=st.integers(1, 4),
    epoch_barrier=st.booleans(),
    skip_bad=st.just(value=True),
)
VERBS = [
    "lease",
    "lease",
    "lease",
    "arrive",
    "arrive",
    "merge",
    "merge",
    "share",
    "give_back",
    "reject",
    "drop",
]
deed = st.tuples(st.sampled_from(VERBS), st.integers(0, 9), st.integers(0, 3))
deeds = st.integers(0, 60).flatmap(lambda count: st.lists(deed, min_size=count, max_size=count))


class Fate:
    """An independent model of a ledger, from the spans of its tasks: open tasks, the inbox, and counted positions."""

    def __init__(self, ledger: SampleLedger) -> None:
        self.ledger = ledger
        self.started = 0
        self.open: dict[str, list[Place]] = {}
        self.inbox: dict[str, list[Place]] = {}
        self.counted: list[Place] = []

    def do(self, verb: str, number: int, pick: int) -> None:
        if verb == "lease":
            self.lease(number + 1, f"n{pick}")
        elif verb in {"merge", "drop"} and self.inbox:
            update = list(self.inbox)[pick % len(self.inbox)]
            places = self.inbox.pop(update)
            if verb == "merge":
                self.ledger.merge(update)
                self.counted += places
            else:
                self.ledger.give_back(update)
        elif verb in {"arrive", "share", "give_back", "reject"} and self.open:
            getattr(self, verb)(list(self.open)[pick % len(self.open)], number)

    def lease(self, samples: int, node: str) -> bool:
        had_work = self.ledger.work_left
        self.started += 1
        spans = self.ledger.lease(f"t{self.started}", samples, node)
        assert bool(spans) == had_work
        places = places_of(spans)
        assert len(places) <= samples + (samples > 1)
        assert len({epoch for epoch, _ in places}) <= 1
        if spans:
            self.open[f"t{self.started}"] = places
        return bool(spans)

    def share(self, task: str, _: int) -> None:
        if task in self.ledger.leases:
            self.started += 1
            self.open[f"t{self.started}"] = places_of(self.ledger.share(f"t{self.started}", task))
            assert self.open[f"t{self.started}"] == self.open[task]

    def arrive(self, task: str, samples: int) -> None:
        places = self.open.pop(task)
        if task in self.ledger.leases:
            samples = min(samples + 1, len(places))
            self.ledger.arrive(task, samples)
            self.inbox[task] = places[:samples]

    def give_back(self, task: str, _: int = 0) -> None:
        del self.open[task]
        self.ledger.give_back(task)

    def reject(self, task: str, _: int) -> None:
        places = self.open.pop(task)
        skipped = self.ledger.skipped
        if task in self.ledger.leases:
            self.ledger.reject(task, "it was bad")
        if self.ledger.skipped > skipped:
            self.counted += places


def places_of(spans: tuple[Span, ...]) -> list[Place]:
    return [(span.epoch, position) for span in spans for position in range(span.start, span.stop)]


@given(ledgers, deeds)
def test_every_position_is_counted_exactly_once(
    ledger: SampleLedger, deeds: list[tuple[str, int, int]]
) -> None:
    fate = Fate(ledger)
    for deed in deeds:
        fate.do(*deed)
        assert len(set(fate.counted)) == len(fate.counted)
        assert all(
            fate.counted.count((ledger.epoch - 1, at)) == 1 for at in range(ledger.size) if ledger.epoch
        )
    for task in list(fate.open):
        fate.give_back(task)
    for update in list(fate.inbox):
        ledger.merge(update)
        fate.counted += fate.inbox.pop(update)
    while fate.lease(7, "last"):
        task, places = fate.open.popitem()
        ledger.arrive(task, len(places))
        ledger.merge(task)
        fate.counted += places
    assert ledger.done
    assert not ledger.leases
    assert sorted(fate.counted) == [(e, at) for e in range(ledger.epochs or 0) for at in range(ledger.size)]


@pytest.mark.parametrize(
    ("size", "asked", "leases"),
    [(9, 4, [4, 5]), (9, 8, [9]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1]), (1, 4, [1])],
)
def test_last_single_sample_joins_the_previous_lease(size: int, asked: int, leases: list[int]) -> None:
    ledger = SampleLedger(size, epochs=1)
    found = [len(places_of(ledger.lease(f"t{number}", asked, "a"))) for number in range(len(leases))]
    assert found == leases
    assert not ledger.work_left


def test_last_single_returned_sample_joins_the_lease() -> None:
    ledger = SampleLedger(16, epochs=1)
    ledger.lease("t1", 9, "a")
    ledger.give_back("t1")
    assert ledger.lease("t2", 8, "a") == (Span(0, 0, 9),)


@given(ledgers, deeds, deeds)
def test_saved_ledger_continues_the_same(
    ledger: SampleLedger, before: list[tuple[str, int, int]], after: list[tuple[str, int, int]]
) -> None:
    fate = Fate(ledger)
    for deed in before:
        fate.do(*deed)
    other = Fate(from_plain(SampleLedger, json.loads(json.dumps(to_plain(ledger)))))
    other.started, other.open, other.inbox = fate.started, dict(fate.open), dict(fate.inbox)
    for deed in after:
        fate.do(*deed)
        other.do(*deed)
    assert other.open == fate.open
    assert to_plain(other.ledger) == to_plain(ledger)


def test_returned_spans_are_joined_and_leased_first() -> None:
    ledger = SampleLedger(100)
    for task in "abcd":
        ledger.lease(task, 10, "n")
    for task in "cab":
        ledger.give_back(task)
    assert ledger.cursors[0].returned == [Span(0, 0, 30)]
    assert ledger.lease("e", 35, "n") == (Span(0, 0, 30), Span(0, 40, 45))


def test_spans_of_two_epochs_are_not_joined() -> None:
    ledger = SampleLedger(10)
    for task, samples in (("a", 4), ("b", 6), ("c", 4), ("d", 6)):
        ledger.lease(task, samples, "n")
    ledger.give_back("a")
    ledger.give_back("d")
    assert ledger.cursors[0].returned == [Span(0, 0, 4), Span(1, 4, 10)]


def test_partial_update_returns_the_rest_of_scattered_spans() -> None:
    ledger = SampleLedger(100)
    ledger.lease("a", 10, "n")
    ledger.lease("b", 10, "n")
    ledger.give_back("a")
    assert ledger.lease("c", 15, "n") == (Span(0, 0, 10), Span(0, 20, 25))
    ledger.arrive("c", 12)
    assert ledger.leases["c"].spans == (Span(0, 0, 10), Span(0, 20, 22))
    assert ledger.cursors[0].returned == [Span(0, 22, 25)]


def test_lease_never_spans_two_epochs() -> None:
    ledger = SampleLedger(10, epochs=2)
    assert ledger.lease("a", 8, "n") == (Span(0, 0, 8),)
    assert ledger.lease("b", 8, "n") == (Span(0, 8, 10),)
    assert ledger.lease("c", 8, "n") == (Span(1, 0, 8),)
    ledger.give_back("b")
    assert ledger.lease("d", 8, "n") == (Span(0, 8, 10),)


def test_epoch_barrier_waits_until_the_last_epoch_is_merged() -> None:
    ledger = SampleLedger(10, epochs=2, epoch_barrier=True)
    ledger.lease("a", 10, "n")
    assert not ledger.work_left
    assert ledger.lease("b", 10, "n") == ()
    ledger.arrive("a", 10)
    assert not ledger.work_left
    assert ledger.merge("a")
    assert ledger.lease("b", 10, "n") == (Span(1, 0, 10),)


def test_epochs_are_unlimited_by_default() -> None:
    ledger = SampleLedger(5)
    assert [ledger.lease(f"{n}", 9, "n") for n in range(3)] == [(Span(epoch, 0, 5),) for epoch in range(3)]
    assert not ledger.done


def test_epoch_ends_only_after_the_epochs_before_it() -> None:
    ledger = SampleLedger(5)
    for task in "ab":
        ledger.lease(task, 5, "n")
        ledger.arrive(task, 5)
    assert not ledger.merge("b")
    assert ledger.epoch == 0
    assert ledger.merge("a")
    assert ledger.epoch == 2
    assert ledger.merged == []


def test_first_update_of_shared_samples_wins() -> None:
    ledger = SampleLedger(10)
    ledger.lease("a", 10, "n")
    assert ledger.share("b", "a") == (Span(0, 0, 10),)
    ledger.arrive("b", 6)
    assert "a" not in ledger.leases
    ledger.give_back("a")
    assert ledger.cursors[0].returned == [Span(0, 6, 10)]


def test_shared_samples_return_after_the_last_of_their_tasks() -> None:
    ledger = SampleLedger(10)
    ledger.lease("a", 10, "n")
    ledger.share("b", "a")
    ledger.give_back("a")
    assert ledger.cursors[0].returned == []
    ledger.give_back("b")
    assert ledger.cursors[0].returned == [Span(0, 0, 10)]


def test_shards_are_ranges_and_stay_with_their_worker() -> None:
    ledger = SampleLedger(10, shards=3)
    assert [(cursor.first, cursor.last) for cursor in ledger.cursors] == [(0, 3), (3, 6), (6, 10)]
    assert ledger.lease("1", 1, "a") == (Span(0, 0, 1),)
    assert ledger.lease("2", 1, "b") == (Span(0, 3, 4),)
    assert ledger.lease("3", 1, "a") == (Span(0, 1, 2),)
    assert ledger.lease("4", 1, "b") == (Span(0, 4, 5),)
    assert ledger.lease("5", 9, "b", shard=2) == (Span(0, 6, 10),)


def test_new_worker_takes_the_shard_of_a_lost_worker() -> None:
    ledger = SampleLedger(10, shards=2)
    ledger.lease("1", 1, "a")
    ledger.lease("2", 1, "b")
    ledger.lose("b")
    assert ledger.lease("3", 1, "c") == (Span(0, 6, 7),)


def test_worker_finishes_the_oldest_epoch_of_other_shards_first() -> None:
    ledger = SampleLedger(8, shards=2)
    ledger.lease("1", 4, "a")
    assert ledger.lease("2", 1, "a") == (Span(0, 4, 5),)
    ledger.lease("3", 3, "b")
    assert ledger.lease("4", 4, "a") == (Span(1, 0, 4),)


def test_more_shards_than_samples_leave_empty_shards() -> None:
    ledger = SampleLedger(2, epochs=2, shards=5)
    taken = [ledger.lease(f"{n}", 1, "n") for n in range(5)]
    assert sorted(places_of(sum(taken, ()))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert taken[4] == ()


def test_samples_rejected_three_times_raise_bad_samples() -> None:
    ledger = SampleLedger(10)
    for task in "ab":
        ledger.lease(task, 4, "n")
        assert not ledger.reject(task, "NaN in fc.weight").spans
    ledger.lease("c", 4, "n")
    with raises(BadSamples, "bad_samples", spans=(Span(0, 0, 4),), others=0, all_invalid=True):
        ledger.reject("c", "NaN in fc.weight")


def test_bad_samples_counts_other_rejected_samples() -> None:
    """Samples that were merged since their rejection do not count."""
    ledger = SampleLedger(10)
    for task, samples in (("a", 4), ("b", 3), ("c", 3)):
        ledger.lease(task, samples, "n")
    for task in "abc":
        ledger.reject(task, "NaN")
    for task, samples in (("d", 3), ("e", 3), ("f", 4)):
        ledger.lease(task, samples, "n")
    ledger.arrive("d", 3)
    ledger.merge("d")
    ledger.reject("f", "NaN")
    ledger.lease("g", 4, "n")
    with raises(BadSamples, "bad_samples", others=3, all_invalid=False):
        ledger.reject("g", "NaN")


def test_skip_bad_skips_rejected_samples_and_ends_their_epoch() -> None:
    ledger = SampleLedger(4, epochs=1, skip_bad=True)
    for task in "ab":
        ledger.lease(task, 4, "n")
        assert not ledger.reject(task, "bad").spans
    ledger.lease("c", 4, "n")
    ledger.share("d", "c")
    assert ledger.reject("c", "bad") == ((Span(0, 0, 4),), True)
    assert (ledger.skipped, ledger.done, ledger.leases) == (4, True, {})


def struck(ledger: SampleLedger, task: str, samples: int) -> Skipped:
    """Lease `samples` samples and let the process end while it computes them."""
    spans = ledger.lease(task, samples, "n")
    ledger.give_back(task)
    return ledger.strike(spans, "ended by SIGSEGV")


def test_samples_of_three_crashed_workers_raise_bad_samples() -> None:
    """The error names only samples of all three crashed processes."""
    ledger = SampleLedger(10)
    struck(ledger, "a", 8)
    struck(ledger, "b", 6)
    with raises(BadSamples, "bad_samples", spans=(Span(0, 0, 4),)):
        struck(ledger, "c", 4)


def test_skip_bad_skips_samples_of_crashes_unless_merged() -> None:
    ledger = SampleLedger(10, epochs=1, skip_bad=True)
    for task in "ab":
        assert struck(ledger, task, 4) == ((), False)
    ledger.lease("c", 2, "n")
    ledger.arrive("c", 2)
    ledger.merge("c")
    assert not ledger.strike((Span(0, 0, 2),), "hung").spans, "they were computed after all"
    assert struck(ledger, "d", 2) == ((Span(0, 2, 4),), False)
    for task in "ef":
        assert struck(ledger, task, 6) == ((), False)
    assert struck(ledger, "g", 6) == ((Span(0, 4, 10),), True)
    assert (ledger.skipped, ledger.done, ledger.strikes) == (8, True, {"0:0": 1, "0:1": 1})


def test_lease_has_a_bounded_number_of_spans() -> None:
    ledger = SampleLedger(400, epochs=1)
    for number in range(400):
        ledger.lease(f"{number}", 1, "n")
    for number in range(0, 400, 2):
        ledger.give_back(f"{number}")
    assert len(ledger.lease("torn", 400, "n")) == MAX_SPANS
    assert len(ledger.lease("more", 400, "n")) == MAX_SPANS


def test_lease_adds_new_samples_after_returned_spans() -> None:
    ledger = SampleLedger(10)
    ledger.lease("a", 2, "n")
    ledger.lease("b", 2, "n")
    ledger.give_back("a")
    assert ledger.lease("c", 4, "n") == (Span(0, 0, 2), Span(0, 4, 6))


def test_merge_clears_the_rejections_of_its_samples() -> None:
    ledger = SampleLedger(8)
    ledger.lease("a", 4, "n")
    ledger.reject("a", "bad")
    assert len(ledger.rejections) == 4
    ledger.lease("b", 4, "n")
    ledger.arrive("b", 3)
    ledger.merge("b")
    assert list(ledger.rejections) == ["0:3"]


def test_merged_spans_exclude_open_and_returned_samples() -> None:
    ledger = SampleLedger(10)
    for task in ("a", "b", "c", "d"):
        ledger.lease(task, 4, "w1")
    ledger.arrive("a", 4)
    ledger.merge("a")
    ledger.give_back("c")
    assert ledger.merged_spans() == [Span(0, 0, 4)]
    ledger.arrive("d", 3)
    ledger.merge("d")
    ledger.arrive("b", 1)
    ledger.merge("b")
    assert ledger.merged_spans() == [Span(0, 0, 5), Span(1, 0, 3)]
