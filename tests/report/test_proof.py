"""The proof from the log: it holds for thousands of histories, and finds whatever is not exactly once."""

from random import Random

import pytest

from oddlot.core import words as w
from oddlot.core.spans import Span
from oddlot.report.proof import prove
from oddlot.strategies import BY_NAME, WRAPPERS, Synchronous
from oddlot.testing.play import Data
from oddlot.testing.trial import MOVES, Trial

HISTORIES = 250


def start(task: str, *spans: tuple[int, int, int]) -> w.Start:
    return w.Start(w.Task(task, task.partition(":")[0], tuple(Span(*span) for span in spans), 0))


def brings(update: str, samples: int, *actions: w.Action, remark: str = "") -> w.Record:
    return w.Record(1.0, w.Arrived(w.Facts(update, update.partition(":")[0], 0, samples)), actions, remark)


def merges(update: str, samples: int) -> w.Record:
    return brings(update, samples, w.Step({update: 1.0}))


def begins(*starts: w.Start) -> w.Record:
    return w.Record(0.0, w.Joined("a"), starts)


WHOLE = [begins(start("a:1", (0, 0, 8)), start("b:1", (0, 8, 16))), merges("b:1", 8), merges("a:1", 8)]


def test_a_whole_epoch() -> None:
    proof = prove(WHOLE, 16)
    assert (proof.whole, proof.merged, proof.skipped, proof.faults) == (1, 16, 0, ())
    assert str(proof) == "exactly once: every one of the 16 positions of epoch 0 is in one merged update"


def test_an_epoch_under_way() -> None:
    assert str(prove(WHOLE[:2], 16)) == (
        "not twice: no epoch is whole yet; 8 positions of epochs under way are merged, none twice "
        "(to come: 8 of epoch 0)"
    )
    more = [begins(start("a:2", (1, 0, 4), (1, 8, 10))), merges("a:2", 6)]
    assert str(prove(WHOLE + more, 16)).endswith("none twice (to come: 10 of epoch 1)")


@pytest.mark.parametrize(
    "before",
    [
        [],
        [brings("a:1", 8, remark="echo")],
        [brings("a:1", 8, w.Drop("a:1"))],
        [w.Record(1.0, w.Refused("a:1", "bad"))],
        [merges("a:1", 8)],
    ],
    ids=["never", "an echo", "dropped", "refused", "merged before"],
)
def test_what_has_not_arrived_cannot_be_merged(before: list[w.Record]) -> None:
    log = [begins(start("a:1", (0, 0, 8))), *before, w.Record(2.0, w.Ticked(), (w.Step({"a:1": 1.0}),))]
    (fault,) = prove(log, 8).faults
    assert fault.startswith("a:1 is merged, and has not arrived")


@pytest.mark.parametrize("epoch", [9_000_000_000, -1])
def test_an_epoch_that_cannot_be_is_told_soon(epoch: int) -> None:
    log = [begins(start("a:1", (epoch, 0, 8))), merges("a:1", 8)]
    proof = prove(log, 8)
    assert not proof.whole
    assert bool(proof.faults) is (epoch < 0)
    assert str(proof).count("of epoch 0") == (epoch > 0)


def test_a_hole_that_lasts_is_seen() -> None:
    """Epoch 0 lacks a position; nothing of epoch 2 is there."""
    log = [begins(start("a:1", (0, 0, 15))), merges("a:1", 15)]
    log += [begins(start("a:2", (1, 0, 16))), merges("a:2", 16)]
    log += [begins(start("a:3", (5, 0, 16))), merges("a:3", 16)]
    proof = prove(log, 16)
    assert proof.to_come == ((0, 1), (2, 16), (3, 16), (4, 16))
    assert str(proof).endswith("(to come: 1 of epoch 0, 16 of epoch 2, 16 of epoch 3, more of later ones)")


def test_only_what_an_update_brought_counts() -> None:
    """A partial answer, an echo, a dropped update and one that nobody merged."""
    log = [
        begins(start("a:1", (0, 0, 4), (0, 6, 16)), start("a:2", (0, 4, 6)), start("b:1", (0, 4, 6))),
        brings("b:1", 2, remark="echo"),
        brings("a:2", 2, w.Drop("a:2")),
        merges("a:1", 6),
    ]
    proof = prove(log, 16)
    assert (proof.whole, proof.merged) == (0, 6)
    rest = [begins(start("a:3", (0, 4, 6), (0, 8, 16))), merges("a:3", 10)]
    assert prove(log + rest, 16).whole == 1


@pytest.mark.parametrize(
    ("again", "told"),
    [
        ((0, 3, 5), "positions 3 to 4 of epoch 0 are in a:1 and in c:1"),
        ((0, 7, 9), "positions 7 to 7 of epoch 0 are in a:1 and in c:1"),
        ((0, 15, 17), "epoch 0 has positions beyond its 16 samples"),
    ],
)
def test_what_is_merged_twice_is_named(again: tuple[int, int, int], told: str) -> None:
    proof = prove([*WHOLE, begins(start("c:1", again)), merges("c:1", again[2] - again[1])], 16)
    assert told in proof.faults
    assert str(proof).startswith("NOT exactly once: ")


def test_a_gap_is_no_whole_epoch() -> None:
    log = [begins(start("a:1", (0, 0, 8)), start("b:1", (0, 9, 16))), merges("a:1", 8), merges("b:1", 7)]
    assert prove(log, 16).whole == 0
    proof = prove(log, 16, epochs=2)
    assert proof.faults == (
        "1 positions of epoch 0 are in no merged update",
        "16 positions of epoch 1 are in no merged update",
    )
    assert str(proof).startswith("NOT exactly once: 1 positions of epoch 0")


def test_samples_that_were_given_up_are_counted() -> None:
    refused = [begins(start("a:1", (0, 0, 4))), w.Record(1.0, w.Refused("a:1", "NaN"))]
    given_up = [begins(start("a:2", (0, 0, 4))), w.Record(1.0, w.Refused("a:2", "NaN"), remark="skipped")]
    rest = [begins(start("b:1", (0, 4, 16))), merges("b:1", 12)]
    assert prove([*refused, *rest], 16).whole == 0
    proof = prove([*refused, *given_up, *rest], 16)
    assert (proof.whole, proof.merged, proof.skipped) == (1, 12, 4)
    assert str(proof).endswith("is in one merged update, or was skipped (4)")
    after_all = [begins(start("c:1", (0, 0, 4))), merges("c:1", 4)]
    assert (
        "positions 0 to 3 of epoch 0 are in a:2 (skipped) and in c:1"
        in prove([*given_up, *after_all], 16).faults
    )


@pytest.mark.parametrize("name", [*BY_NAME, *WRAPPERS])
def test_random_histories_are_exactly_once(name: str) -> None:
    """Workers join, leave, are lost, answer in part, late or badly, runs are resumed, in any order."""
    make = BY_NAME[name] if name in BY_NAME else lambda: WRAPPERS[name](Synchronous())
    for seed in range(HISTORIES):
        chance = Random(f"{name} {seed}")
        size, epochs = chance.randint(1, 24), chance.randint(1, 3)
        data = Data(size, epochs, chance.random() < 0.5, chance.randint(1, 2), 4, chance.randint(1, 3), True)
        trial = Trial(make, data, chance.randint(2, 4))
        moves = [(chance.choice(MOVES), chance.randint(0, 7), chance.randint(0, 3)) for _ in range(40)]
        trial.live(moves, 0)
        trial.end()
        proof = prove(trial.log, size)
        assert not proof.faults, f"seed {seed}: {proof}"
        assert (proof.whole, proof.merged + proof.skipped) == (epochs, size * epochs), f"seed {seed}"
