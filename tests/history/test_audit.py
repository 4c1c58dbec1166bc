"""The audit of a log finds every violation of exactly-once merging."""

import re

import pytest

from oddlot.core.commands import Action, Drop, Skip, Start, Step
from oddlot.core.events import Joined, Ticked, UpdateRejected
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.history.audit import Proof, holes, prove
from tests.report.records import arrived, merged, start
from tests.transcripts import check, transcribe


def brings(update: str, samples: int, *actions: Action, remark: str = "") -> Record:
    return Record(1.0, arrived(update, samples), actions, remark)


def merges(update: str, samples: int) -> Record:
    return merged(1.0, update, samples)


def begins(*starts: Start) -> Record:
    return Record(0.0, Joined("a"), starts)


def counts(proof: Proof) -> tuple[int, int, int]:
    """Return the numbers of complete epochs, merged samples and skipped samples. Assert that there are no faults."""
    assert not proof.faults
    transcribe(str(proof))
    return proof.whole, proof.merged, proof.skipped


WHOLE = [begins(start("a:1", (0, 0, 8)), start("b:1", (0, 8, 16))), merges("b:1", 8), merges("a:1", 8)]


def test_audit_counts_complete_and_partial_epochs() -> None:
    assert counts(prove(WHOLE, 16)) == (1, 16, 0)
    half = prove(WHOLE[:2], 16)
    assert (counts(half), half.to_come) == ((0, 8, 0), ((0, 8),))
    more = [begins(start("a:2", (1, 0, 4), (1, 8, 10))), merges("a:2", 6)]
    beyond = prove(WHOLE + more, 16)
    assert (counts(beyond), beyond.to_come) == ((1, 22, 0), ((1, 10),))


@pytest.mark.parametrize(
    "before",
    [
        [],
        [brings("a:1", 8, remark="echo")],
        [brings("a:1", 8, Drop("a:1"))],
        [Record(1.0, UpdateRejected("a:1", "bad"))],
        [merges("a:1", 8)],
    ],
    ids=["never", "an echo", "dropped", "rejected", "merged before"],
)
def test_merge_without_an_update_is_found(before: list[Record]) -> None:
    log = [begins(start("a:1", (0, 0, 8))), *before, Record(2.0, Ticked(), (Step({"a:1": 1.0}),))]
    (fault,) = prove(log, 8).faults
    check(fault, "merged_before_it_arrived", update="a:1")


def test_impossible_epoch_numbers_are_handled_quickly() -> None:
    far, none = (
        prove([begins(start("a:1", (epoch, 0, 8))), merges("a:1", 8)], 8) for epoch in (9_000_000_000, -1)
    )
    assert counts(far) == (0, 8, 0)
    assert len(far.to_come) == 10
    assert none.whole == 0
    check(none.faults[0], "no_such_epoch", epoch=-1)


def test_incomplete_epochs_before_the_newest_are_found() -> None:
    """Epoch 0 lacks a position, and epoch 2 is empty."""
    log = [begins(start("a:1", (0, 0, 15))), merges("a:1", 15)]
    log += [begins(start("a:2", (1, 0, 16))), merges("a:2", 16)]
    log += [begins(start("a:3", (5, 0, 16))), merges("a:3", 16)]
    proof = prove(log, 16)
    assert counts(proof) == (0, 47, 0)
    assert proof.to_come == ((0, 1), (2, 16), (3, 16), (4, 16))


def test_only_merged_samples_of_updates_count() -> None:
    """The log has a partial update, a late update, a dropped update and an unmerged update."""
    log = [
        begins(start("a:1", (0, 0, 4), (0, 6, 16)), start("a:2", (0, 4, 6)), start("b:1", (0, 4, 6))),
        brings("b:1", 2, remark="echo"),
        brings("a:2", 2, Drop("a:2")),
        merges("a:1", 6),
    ]
    assert counts(prove(log, 16)) == (0, 6, 0)
    rest = [begins(start("a:3", (0, 4, 6), (0, 8, 16))), merges("a:3", 10)]
    assert counts(prove(log + rest, 16)) == (1, 16, 0)


@pytest.mark.parametrize(
    ("again", "faults"),
    [
        ((0, 3, 5), [("merged_twice", 3, 4, ("a:1", "c:1"))]),
        ((0, 7, 9), [("merged_twice", 7, 7, ("a:1", "c:1")), ("merged_twice", 8, 8, ("c:1", "b:1"))]),
        ((0, 15, 17), [("merged_twice", 15, 15, ("b:1", "c:1")), ("no_such_position", None, None, None)]),
    ],
    ids=["within", "across", "beyond"],
)
def test_samples_merged_twice_are_reported(again: tuple[int, int, int], faults: list[object]) -> None:
    proof = prove([*WHOLE, begins(start("c:1", again)), merges("c:1", again[2] - again[1])], 16)
    fields = ("first", "last", "updates")
    assert [(fault.code, *map(fault.fields.get, fields)) for fault in proof.faults] == faults
    assert {fault.fields["epoch"] for fault in proof.faults} == {0}
    transcribe(str(proof))


def test_epoch_with_a_gap_is_incomplete() -> None:
    log = [begins(start("a:1", (0, 0, 8)), start("b:1", (0, 9, 16))), merges("a:1", 8), merges("b:1", 7)]
    assert counts(prove(log, 16)) == (0, 15, 0)
    first, second = prove(log, 16, epochs=2).faults
    check(first, "not_merged", epoch=0, count=1)
    check(second, "not_merged", epoch=1, count=16)


def test_skipped_samples_are_counted() -> None:
    rejected = [begins(start("a:1", (0, 0, 4))), Record(1.0, UpdateRejected("a:1", "NaN"))]
    given_up = [
        begins(start("a:2", (0, 0, 4))),
        Record(1.0, UpdateRejected("a:2", "NaN"), (Skip((Span(0, 0, 4),)),)),
    ]
    rest = [begins(start("b:1", (0, 4, 16))), merges("b:1", 12)]
    assert prove([*rejected, *rest], 16).whole == 0
    assert counts(prove([*rejected, *given_up, *rest], 16)) == (1, 12, 4)
    after_all = [begins(start("c:1", (0, 0, 4))), merges("c:1", 4)]
    (fault,) = prove([*given_up, *after_all], 16).faults
    check(fault, "merged_twice", epoch=0, first=0, last=3)


def test_epochs_with_the_same_gap_are_one_error() -> None:
    faults = holes([(0, 2), (1, 2), (2, 0), (3, 2), (4, 1)])
    assert [(one.fields["epoch"], one.fields["last_epoch"], one.fields["count"]) for one in faults] == [
        (0, 1, 2),
        (3, 3, 2),
        (4, 4, 1),
    ]


def test_mesh_verdict_reports_samples_lost_with_peers() -> None:
    gone = tuple(holes([(1, 7), (2, 16)]))
    message = str(Proof(16, 1, 25, 0, gone, left_out=23, missing=("w2", "w3")))
    assert re.findall(r"\b\w?\d+\b", message) == ["25", "48", "23", "w2", "w3"]
    transcribe(message)
