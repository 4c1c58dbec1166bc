"""The metrics of a log, and log files."""

import errno
import io
import json
import os
from pathlib import Path

import pytest

from oddlot.core.commands import Abort, Drop, Skip, Step
from oddlot.core.conductor import Conductor
from oddlot.core.events import (
    TOO_LARGE,
    Averaged,
    Cancelled,
    Evaluated,
    Joined,
    Lost,
    Priced,
    Resumed,
    Ticked,
    UpdateRejected,
)
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import CheckpointError, JobError
from oddlot.history.log import Log, given_out, read_log, read_sound, surviving
from oddlot.history.metrics import Tally, resumed_after, take_into_account, tally_of, use_saved_model
from oddlot.strategies import Synchronous
from tests.report.records import arrived, merged, start
from tests.transcripts import check, raises


def story() -> list[Record]:
    """Return the log of two workers: a lost worker with a task, and a late, a rejected and a dropped update."""
    return [
        Record(0.0, Joined("w1", 3.6), (start("w1:1", (0, 0, 8)),)),
        Record(1.0, Joined("w2", 7.2), (start("w2:2", (0, 8, 16)),)),
        Record(
            2.0,
            arrived("w1:1", 8, loss=2.0, bytes_up=5, bytes_down=7),
            (Step({"w1:1": 1.0}), start("w1:3", (0, 16, 24))),
        ),
        Record(3.0, Evaluated(1, {"loss": 0.5, "accuracy": 0.9})),
        Record(4.0, Lost("w2")),
        Record(5.0, arrived("w1:3", 6, loss=1.0, bytes_up=5), (Drop("w1:3"), start("w1:4", (0, 8, 16)))),
        Record(6.0, UpdateRejected("w1:4", "bad"), (start("w1:5", (0, 8, 16)), start("w1:6", (0, 16, 24)))),
        Record(7.0, Cancelled("w1:5", "w1", 11, 2), (Abort("w1:6", "w1"),)),
        Record(8.0, arrived("w1:6", 8, loss=1.0, bytes_up=1, bytes_down=3), (), ECHO),
    ]  # fmt: skip


def test_tally_counts_versions_samples_bytes_and_cost() -> None:
    tally = tally_of(story(), 16)
    assert (tally.versions, tally.updates, tally.echoes, tally.rejections.total()) == (1, 2, 1, 1)
    assert (tally.samples.merged, tally.samples.wasted.total(), tally.epochs) == (8, 8 + 6 + 8 + 8 + 8, 0.5)
    assert (tally.samples.assigned, tally.samples.returned) == (6 * 8, 2), "of w1:3 a part was handed over"
    assert tally.summary()["wasted"] == {"lost": 8, "cancelled": 16, "dropped": 6, "invalid": 8}
    assert (
        tally.traffic.bytes_up,
        tally.traffic.bytes_down,
        tally.traffic.bytes_data,
        tally.timeline.workers_lost,
    ) == (11, 21, 2, 1)
    assert tally.traffic.bytes_wasted == 11 + 2 + 1 + 3
    assert tally.dollars == pytest.approx((8 * 3.6 + 3 * 7.2) / 3600)
    assert tally.quality.training_loss == pytest.approx(2.0 - 0.05)
    assert tally.value("loss") == 0.5
    assert {name: row.state for name, row in tally.workers.items()} == {"w1": "waiting", "w2": "lost"}
    assert tally.quality.history == [
        {"seconds": 2.0, "versions": 1.0, "epochs": 0.5, "dollars": pytest.approx((2 * 3.6 + 7.2) / 3600)}
        | {"loss": 0.5, "accuracy": 0.9}
    ], "a row is that of the version, not of when its evaluation came"


def test_unfinished_samples_are_wasted_and_skipped_ones_are_not() -> None:
    begun = Record(0.0, Joined("w1"), (start("w1:1", (0, 0, 8)),))
    tally = tally_of([begun], 16)
    assert tally.samples.wasted.total() == 0
    tally.finish()
    assert tally.summary()["wasted"] == {"unfinished": 8}
    tally = tally_of([begun, Record(1.0, UpdateRejected("w1:1", "NaN"), (Skip((Span(0, 0, 8),)),))], 16)
    assert (tally.epochs, tally.samples.skipped, tally.samples.wasted.total(), tally.rejections.total()) == (
        0.5,
        8,
        0,
        1,
    )


def test_mesh_summary_has_the_metrics_of_the_saved_model() -> None:
    """After a partition, the other peers evaluate their average later."""
    log = [
        Record(1.0, Averaged(("w1", "w2"), 0.0, 0, is_final=True), peer="w1"),
        Record(1.0, Averaged(("w3", "w4"), 0.0, 0, is_final=True), peer="w3"),
        Record(2.0, Evaluated(0, {"accuracy": 0.8}), peer="w1"),
        Record(3.0, Evaluated(0, {"accuracy": 0.6}), peer="w3"),
    ]
    tally = tally_of(log, 16)
    use_saved_model(tally, log, ["w1", "w2"])
    assert tally.summary()["accuracy"] == 0.8


def tick(now: float) -> Record:
    return Record(now, Ticked())


def written(path: Path, records: list[Record]) -> Log:
    log = Log(path, Conductor(Synchronous(), SampleLedger(16, 1)))
    for record in records:
        log(record)
    return log


def test_log_round_trips_and_its_header_has_the_conductor(tmp_path: Path) -> None:
    written(tmp_path / "log", story()).close()
    assert list(read_log(tmp_path / "log")) == story()
    header = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert header["format"] == 4
    assert header["conductor"]["ledger"]["size"] == 16


def test_too_large_and_invalid_updates_are_counted_separately() -> None:
    begun = Record(0.0, Joined("w1"), tuple(start(f"w1:{n}", (0, 8 * n, 8 * n + 8)) for n in range(3)))
    rejections = [
        ("w1:0", "NaN", "numbers_not_finite"),
        ("w1:1", "norm", TOO_LARGE),
        ("w1:2", "cut off", None),
    ]
    summary = tally_of([begun, *(Record(1.0, UpdateRejected(*one)) for one in rejections)], 24).summary()
    assert (summary["updates_invalid"], summary["updates_rejected"]) == (2, 1)
    assert summary["wasted"] == {"invalid": 16, "rejected": 8}


def test_log_lines_are_flushed_once_a_second(tmp_path: Path) -> None:
    """Lines are also flushed while no further records are written."""
    log = written(tmp_path / "log", [tick(now) for now in (0.5, 1.1, 1.5, 2.0)])
    for now, read in ((2.0, [0.5, 1.1]), (2.09, [0.5, 1.1]), (2.1, [0.5, 1.1, 1.5, 2.0])):
        log.keep_up(now)
        assert [record.now for record in read_log(tmp_path / "log")] == read
    log.close()


def test_unfinished_last_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, story()).close()
    path.write_bytes(path.read_bytes()[:-9])
    assert list(read_log(path)) == story()[:-1]
    log = written(path, [tick(9.0)])
    assert log.records == len(story())
    log.close()
    assert list(read_log(path)) == [*story()[:-1], tick(9.0)]


NO_RECORDS = ["{}", "[1]", "nonsense", '{"is": "Record", "now": 1}', "7", "[" * 200_000] + [
    f'{{"is":"Record","now":{now},"event":{{"is":"Ticked"}}}}'
    for now in ("NaN", "1e400", "null", "-1", "9" * 400)
]


def test_damaged_line_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, story()).close()
    lines = path.read_text().splitlines()
    for line in NO_RECORDS:
        path.write_text("\n".join([*lines[:3], line, *lines[4:]]) + "\n")
        with raises(CheckpointError, "damaged_file", path=str(path), line=4):
            list(read_log(path))
        sound, damage = read_sound(path)
        check(damage, "damaged_file", line=4)
        assert sound == story()[:2]


class FullDisk(io.BytesIO):
    """A file on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_raises_unwritable_file(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [])
    log.close()
    log._file = FullDisk()
    with raises(JobError, "unwritable_file", path=str(log.path), reason=os.strerror(errno.ENOSPC)):
        log(tick(2.0))
    with raises(JobError, "unwritable_file"):
        log.flush()
    log.close()  # an error that was raised is not raised again
    path = tmp_path / "nowhere" / "log"
    with raises(JobError, "unwritable_file", path=str(path), reason=os.strerror(errno.ENOENT)):
        written(path, [])


def test_metrics_refer_to_the_evaluated_version() -> None:
    tally = tally_of([*story(), Record(9.0, Evaluated(3, {"epoch": 0.5}))], 16)
    tally.notes.newest = 5
    assert [tally.version_of(name) for name in ("epoch", "loss", "epochs", "hours")] == [3, 3, 5, 5]


def test_resume_discards_records_after_the_checkpoint() -> None:
    old, then = story(), [Record(3.5, Resumed(3)), tick(9.0)]
    assert surviving([*old, *then]) == [*old[:3], *then]
    assert surviving(old, until=3) == old[:3]
    assert given_out(old[3:]) == 8 + 8 + 8, "w1:4, w1:5 and w1:6"
    assert given_out([*old[5:7], Record(9.0, Resumed(3, 40))]) == 8 + 16 + 40, "what was void before too"
    # `after_record` of the second resume counts all records of the file, including lost records.
    kept = surviving([*old, *then, tick(9.5), Record(9.2, Resumed(11))])
    assert [record.now for record in kept] == [0.0, 1.0, 2.0, 3.5, 9.0, 9.2]


def test_tally_of_a_resumed_log_includes_lost_work() -> None:
    tally = tally_of([*story(), Record(8.5, Resumed(3, 24, 0.01))], 16)
    assert (tally.versions, tally.samples.merged, tally.timeline.workers_lost) == (1, 8, 0), "nobody died"
    assert tally.samples.wasted.total() == 24 + 8 + 8, "what was lost with the checkpoint's workers too"
    assert tally.samples.assigned == 6 * 8, "in the life that was lost too"
    assert tally.dollars == pytest.approx((2 * 3.6 + 7.2) / 3600 + 0.01), "what was lost had its price"
    assert (tally.seconds, tally.cost.dollars_per_second) == (8.5, 0.0)


def test_resumed_event_reports_the_cost_of_lost_work() -> None:
    before = tally_of(story()[:2], 16)
    event = resumed_after(2, before, story()[2:], Path("log"))
    assert event.dollars_lost == pytest.approx((7 * 3.6 + 3 * 7.2) / 3600)
    assert (event.samples_lost, event.bytes_up_lost, event.bytes_down_lost) == (8 + 8 + 8 + 8, 11, 21)
    assert (before.seconds, before.traffic.bytes_up) == (1.0, 0), "they are not counted yet"
    tally = tally_of([*story(), Record(8.5, event)], 16)
    assert (tally.traffic.bytes_up, tally.traffic.bytes_down) == (11, 21), "what is lost has travelled"


def test_time_and_hub_cost_of_lost_work_are_counted() -> None:
    """The hub costs 36 dollars per hour. A worker joins at 1 s, a checkpoint is at 2 s, and a shard arrives at 5 s."""
    log = [
        Record(0.0, Priced("", 36.0)),
        Record(1.0, Joined("w1")),
        Record(2.0, Ticked(), (start("w1:1", (0, 0, 8)),)),
        Record(5.0, arrived("w1:1", 8, bytes_up=1, bytes_down=2, bytes_data=300)),
    ]
    event = resumed_after(3, tally_of(log[:3], 16), log[3:], Path("log"))
    assert event.bytes_data_lost == 300
    assert event.dollars_of_hub_lost == pytest.approx(0.03)
    tally = tally_of([*log, Record(5.0, event), Record(6.0, Joined("w1.2"))], 16)
    assert (tally.traffic.bytes_data, tally.cost.seconds_alone) == (300, 2.0), "a second at each beginning"
    assert tally.summary()["availability"] == pytest.approx(1 / 3), (
        "of the three seconds in which the hub was there"
    )
    assert tally.cost.dollars_of_hub == tally.dollars == pytest.approx(0.05), (
        "but for the one that it begins anew"
    )


def test_merge_overwrites_only_versions_after_its_read() -> None:
    """w1:1 overwrites the merge after its read. w1:2 waits in the inbox, and is merged into the newest version."""
    starts = (start("w1:1", (0, 0, 4)), start("w1:2", (0, 4, 8)), start("w1:3", (0, 8, 12)))
    log = [
        Record(0.0, Joined("w1"), starts),
        merged(1.0, "w1:3", 4),
        Record(2.0, arrived("w1:2", 4)),
        Record(3.0, arrived("w1:1", 4, read=0), (Step({"w1:1": 1.0}),)),
        Record(4.0, Ticked(), (Step({"w1:2": 1.0}),)),
    ]
    tally = tally_of(log, 16)
    assert (tally.versions, tally.overwritten) == (3, 1)


def test_cost_rate_without_workers_is_exactly_zero() -> None:
    prices = {"w1": 0.526, "w2": 0.16, "w3": 3.06}
    log = [Record(1.0, Joined(name, price)) for name, price in prices.items()]
    tally = tally_of([*log, *(Record(2.0, Lost(name)) for name in ("w2", "w3", "w1"))], 16)
    assert tally.cost.dollars_per_second == 0.0


def test_inconsistent_records_raise_damaged_file(tmp_path: Path) -> None:
    stranger = Record(1.0, Ticked(), (Step({"nobody:1": 1.0}),))
    path = tmp_path / "log"
    with raises(CheckpointError, "damaged_file", path=str(path), event="Ticked()", seconds=1.0):
        take_into_account(Tally(16), [stranger], path)
