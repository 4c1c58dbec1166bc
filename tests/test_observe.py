"""The figures of a log, and the log in a file."""

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from oddlot.core import words as w
from oddlot.core.conductor import ECHO, Conductor
from oddlot.core.errors import CheckpointError, JobError
from oddlot.core.ledger import Ledger
from oddlot.core.spans import Span
from oddlot.log import Log, given_out, read_log, surviving
from oddlot.observe import Tally, resumed_after, take_into_account, tally_of
from oddlot.strategies import Synchronous


def start(task: str, start: int, stop: int) -> w.Start:
    return w.Start(w.Task(task, task.partition(":")[0], (Span(0, start, stop),), 0))


def arrived(task: str, samples: int, **facts: Any) -> w.Arrived:
    return w.Arrived(w.Facts(task, task.partition(":")[0], 0, samples, **facts))


def story() -> list[w.Record]:
    """Two workers; one is lost with a task, one answer is an echo, one is refused, one is dropped."""
    return [
        w.Record(0.0, w.Joined("w1", 3.6), (start("w1:1", 0, 8),)),
        w.Record(1.0, w.Joined("w2", 7.2), (start("w2:2", 8, 16),)),
        w.Record(
            2.0,
            arrived("w1:1", 8, loss=2.0, bytes_up=5, bytes_down=7),
            (w.Step({"w1:1": 1.0}), start("w1:3", 16, 24)),
        ),
        w.Record(3.0, w.Evaluated(1, {"loss": 0.5, "accuracy": 0.9})),
        w.Record(4.0, w.Lost("w2")),
        w.Record(5.0, arrived("w1:3", 6, loss=1.0, bytes_up=5), (w.Drop("w1:3"), start("w1:4", 8, 16))),
        w.Record(6.0, w.Refused("w1:4", "bad"), (start("w1:5", 8, 16), start("w1:6", 16, 24))),
        w.Record(7.0, w.Cancelled("w1:5", "w1", 11, 2), (w.Abort("w1:6", "w1"),)),
        w.Record(8.0, arrived("w1:6", 8, loss=1.0, bytes_up=1, bytes_down=3), (), ECHO),
    ]  # fmt: skip


def test_the_figures_add_up() -> None:
    tally = Tally(16)
    for record in story():
        tally(record)
    assert (tally.versions, tally.updates, tally.echoes, tally.refused) == (1, 2, 1, 1)
    assert (tally.samples_merged, tally.samples_wasted, tally.epochs) == (8, 8 + 6 + 8 + 8 + 8, 0.5)
    assert (tally.samples_assigned, tally.samples_returned) == (6 * 8, 2), "of w1:3 a part was handed over"
    assert tally.summary()["wasted"] == {"lost": 8, "cancelled": 16, "dropped": 6, "refused": 8}
    assert (tally.bytes_up, tally.bytes_down, tally.bytes_data, tally.workers_lost) == (11, 21, 2, 1)
    assert tally.bytes_wasted == 11 + 2 + 1 + 3
    assert tally.dollars == pytest.approx((8 * 3.6 + 3 * 7.2) / 3600)
    assert tally.training_loss == pytest.approx(2.0 - 0.05)
    assert tally.value("loss") == 0.5
    assert {name: row.state for name, row in tally.workers.items()} == {"w1": "waiting", "w2": "lost"}
    assert tally.history == [
        {"seconds": 2.0, "versions": 1.0, "epochs": 0.5, "dollars": pytest.approx((2 * 3.6 + 7.2) / 3600)}
        | {"loss": 0.5, "accuracy": 0.9}
    ], "a row is that of the version, not of when its evaluation came"


def test_what_was_under_way_at_the_end_is_wasted() -> None:
    tally = Tally(16)
    tally(w.Record(0.0, w.Joined("w1"), (start("w1:1", 0, 8),)))
    assert tally.samples_wasted == 0
    tally.finish()
    assert tally.summary()["wasted"] == {"unfinished": 8}


def conductor() -> Conductor:
    return Conductor(Synchronous(), Ledger(16, 1))


def written(path: Path, records: list[w.Record]) -> Log:
    log = Log(path, conductor())
    for record in records:
        log(record)
    return log


def test_a_log_comes_back_and_begins_with_what_rebuilds_the_conductor(tmp_path: Path) -> None:
    written(tmp_path / "log", story()).close()
    assert list(read_log(tmp_path / "log")) == story()
    header = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert header["format"] == 1
    assert header["conductor"]["ledger"]["size"] == 16


def test_lines_reach_the_file_once_a_second(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [w.Record(now, w.Ticked()) for now in (0.5, 1.1, 1.5, 2.0)])
    assert [record.now for record in read_log(tmp_path / "log")] == [0.5, 1.1]
    log.close()


def test_an_unfinished_last_line_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, story()).close()
    path.write_bytes(path.read_bytes()[:-9])
    assert list(read_log(path)) == story()[:-1]
    log = written(path, [w.Record(9.0, w.Ticked())])
    assert log.records == len(story())
    log.close()
    assert list(read_log(path)) == [*story()[:-1], w.Record(9.0, w.Ticked())]


@pytest.mark.parametrize(
    "line",
    ["{}", "[1]", "nonsense", '{"is": "Record", "now": 1}', "7", pytest.param("[" * 200_000, id="nested")]
    + [
        f'{{"is":"Record","now":{now},"event":{{"is":"Ticked"}}}}'
        for now in ("NaN", "1e400", "null", "-1", "9" * 400)
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    written(path, story()).close()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[4:]]) + "\n")
    with pytest.raises(CheckpointError, match=r"log:4 is damaged"):
        list(read_log(path))


class FullDisk(io.TextIOWrapper):
    """A file on a disk that is full."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_nothing_is_written_to_keeps_up(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", conductor())
    log(w.Record(0.5, w.Ticked()))
    log.keep_up(0.9)
    assert list(read_log(tmp_path / "log")) == []
    log.keep_up(1.1)
    assert list(read_log(tmp_path / "log")) == [w.Record(0.5, w.Ticked())]
    log.close()


def test_a_full_disk_is_told_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", conductor())
    log.close()
    log._file = FullDisk(io.BytesIO())
    with pytest.raises(JobError, match=r"cannot write .*log.*No space left.*resume"):
        log(w.Record(2.0, w.Ticked()))
    with pytest.raises(JobError, match="No space left"):
        log.flush()
    log.close()  # what has been told is not told again


def test_a_log_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"cannot write the log .*nowhere/log \(No such file"):
        Log(tmp_path / "nowhere" / "log", conductor())


def test_a_metric_is_about_the_version_that_was_evaluated() -> None:
    tally = Tally(16)
    for record in [*story(), w.Record(9.0, w.Evaluated(3, {"epoch": 0.5}))]:
        tally(record)
    tally.versions = 5
    assert [tally.version_of(name) for name in ("epoch", "loss", "epochs", "hours")] == [3, 3, 5, 5]


def test_what_came_after_a_checkpoint_that_was_resumed_from_is_lost_work() -> None:
    old = story()
    resumed = w.Record(3.5, w.Resumed(3))
    assert surviving([*old, resumed, w.Record(9.0, w.Ticked())]) == [
        *old[:3],
        resumed,
        w.Record(9.0, w.Ticked()),
    ]
    assert surviving(old, until=3) == old[:3]
    assert given_out(old[3:]) == 8 + 8 + 8, "w1:4, w1:5 and w1:6"
    assert given_out([*old[5:7], w.Record(9.0, w.Resumed(3, 40))]) == 8 + 16 + 40, "what was void before too"


def test_records_are_counted_over_all_lives_of_a_run() -> None:
    """The second resumption counts from the beginning of the file, the lost records included."""
    old = story()
    log = [*old, w.Record(3.5, w.Resumed(3)), w.Record(9.0, w.Ticked()), w.Record(9.5, w.Ticked())]
    kept = surviving([*log, w.Record(9.2, w.Resumed(11))])
    assert [record.now for record in kept] == [0.0, 1.0, 2.0, 3.5, 9.0, 9.2]


def test_the_figures_of_a_resumed_log() -> None:
    tally = tally_of([*story(), w.Record(8.5, w.Resumed(3, 24, 0.01))], 16)
    assert (tally.versions, tally.samples_merged, tally.workers_lost) == (1, 8, 0), "nobody died"
    assert tally.samples_wasted == 24 + 8 + 8, "what was lost with the checkpoint's workers too"
    assert tally.samples_assigned == 6 * 8, "in the life that was lost too"
    assert tally.dollars == pytest.approx((2 * 3.6 + 7.2) / 3600 + 0.01), "what was lost had its price"
    assert (tally.seconds, tally.bill.dollars_per_second) == (8.5, 0.0)


def test_what_lost_work_had_cost() -> None:
    before = tally_of(story()[:2], 16)
    event = resumed_after(2, before, story()[2:], Path("log"))
    assert event.dollars_lost == pytest.approx((7 * 3.6 + 3 * 7.2) / 3600)
    assert (event.samples_lost, event.bytes_up_lost, event.bytes_down_lost) == (8 + 8 + 8 + 8, 11, 21)
    assert (before.seconds, before.bytes_up) == (1.0, 0), "they are not counted yet"
    tally = tally_of([*story(), w.Record(8.5, event)], 16)
    assert (tally.bytes_up, tally.bytes_down) == (11, 21), "what is lost has travelled"


def test_the_time_and_the_hub_s_part_of_lost_work_are_not_forgotten() -> None:
    """A hub at 36 dollars an hour, a worker that comes at 1 s, a checkpoint at 2 s, and a shard that came at 5 s."""
    facts = w.Facts("w1:1", "w1", 0, 8, "gradient", None, {}, 1, 2, 300)
    log = [
        w.Record(0.0, w.Priced("", 36.0)),
        w.Record(1.0, w.Joined("w1")),
        w.Record(2.0, w.Ticked(), (w.Start(w.Task("w1:1", "w1", (Span(0, 0, 8),), 0)),)),
        w.Record(5.0, w.Arrived(facts)),
    ]
    event = resumed_after(3, tally_of(log[:3], 16), log[3:], Path("log"))
    assert event.bytes_data_lost == 300
    assert event.dollars_of_hub_lost == pytest.approx(0.03)
    tally = tally_of([*log, w.Record(5.0, event), w.Record(6.0, w.Joined("w1.2"))], 16)
    assert (tally.bytes_data, tally.bill.seconds_alone) == (300, 2.0), "a second at each beginning"
    assert tally.bill.dollars_of_hub == tally.dollars == pytest.approx(0.05), (
        "but for the one that it begins anew"
    )


def test_only_what_a_server_has_read_before_is_overwritten() -> None:
    """w1:1 is written over what two merges have made since; w1:2, which waits till later, comes on top."""
    tally = tally_of(
        [
            w.Record(0.0, w.Joined("w1"), (start("w1:1", 0, 4), start("w1:2", 4, 8), start("w1:3", 8, 12))),
            w.Record(1.0, arrived("w1:3", 4), (w.Step({"w1:3": 1.0}),)),
            w.Record(2.0, arrived("w1:2", 4)),
            w.Record(3.0, arrived("w1:1", 4, read=0), (w.Step({"w1:1": 1.0}),)),
            w.Record(4.0, w.Ticked(), (w.Step({"w1:2": 1.0}),)),
        ],
        16,
    )
    assert (tally.versions, tally.overwritten) == (3, 1)


def test_nobody_costs_nothing_to_the_last_digit() -> None:
    prices = {"w1": 0.526, "w2": 0.16, "w3": 3.06}
    log = [w.Record(1.0, w.Joined(name, price)) for name, price in prices.items()]
    tally = tally_of([*log, *(w.Record(2.0, w.Lost(name)) for name in ("w2", "w3", "w1"))], 16)
    assert tally.bill.dollars_per_second == 0.0


def test_records_that_are_no_history_are_told(tmp_path: Path) -> None:
    stranger = w.Record(1.0, w.Ticked(), (w.Step({"nobody:1": 1.0}),))
    with pytest.raises(CheckpointError, match=r"log is damaged: Ticked\(\) at 1\.0 s does not follow from"):
        take_into_account(Tally(16), [stranger], tmp_path / "log")


def test_skipped_samples_are_passed_and_not_wasted() -> None:
    tally = Tally(16)
    tally(w.Record(0.0, w.Joined("w1"), (start("w1:1", 0, 8),)))
    tally(w.Record(1.0, w.Refused("w1:1", "NaN"), (), "skipped"))
    assert (tally.epochs, tally.samples_skipped, tally.samples_wasted, tally.refused) == (0.5, 8, 0, 1)
