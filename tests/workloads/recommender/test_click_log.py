"""Tests of reading logs of clicks: columns, times, duplicates and bad files."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommender.click_log import ClickLog, Columns, read_log
from tests.transcripts import raises

HEADER = ["user", "item", "time", "stars"]
RATINGS = "user,item,time,stars\nb,x,20,5\na,y,30,1\na,x,10,4\na,y,30,1\n,z,1,1\n"


def written(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def rows_of(log: ClickLog) -> list[tuple[str, str, float, bool]]:
    columns = log.user_ids[log.users], log.item_ids[log.items], log.times, log.clicked
    return [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_rows_are_sorted_and_ratings_become_clicks(tmp_path: Path, name: str) -> None:
    log = read_log(written(tmp_path, RATINGS, name), Columns(rating="stars"))
    assert rows_of(log) == [("a", "x", 10, True), ("a", "y", 30, False), ("b", "x", 20, True)]
    assert (log.duplicates, log.skipped, log.is_ordered) == (1, 1, False)
    assert log.has_negatives


def test_file_without_header_and_with_a_long_separator(tmp_path: Path) -> None:
    path = written(tmp_path, "1::9::8::100\n1::7::2::50\n", "ratings.dat")
    columns = Columns("0", "1", "3", rating="2", click_rating=8, separator="::", has_header=False)
    assert rows_of(read_log(path, columns)) == [("1", "7", 50, False), ("1", "9", 100, True)]


@pytest.mark.parametrize("separator", [",", "::", r"\t"])
def test_cells_keep_their_characters(tmp_path: Path, separator: str) -> None:
    cells = ["user", "item", "time", "a\u2028b", "x", "1"] + (
        ["b", '"y\r\nz"', "2"] if separator != "::" else []
    )
    lines = [separator.replace(r"\t", "\t").join(cells[at : at + 3]) for at in range(0, len(cells), 3)]
    log = read_log(written(tmp_path, "\n".join(lines)), Columns(separator=separator))
    rows = [("a\u2028b", "x", 1, True), ("b", "y\r\nz", 2, True)]
    assert rows_of(log) == rows[: len(lines) - 1]


def test_dates_and_labels_are_read(tmp_path: Path) -> None:
    text = "user,item,time,seen\n1,a,2010-12-01 08:26:00,1\n1,b,2010-12-01T08:25:00+00:00,False\n1,c,1291191900,no\n"
    log = read_log(written(tmp_path, text), Columns(clicked="seen"))
    assert rows_of(log) == [
        ("1", "b", 1291191900, False),
        ("1", "c", 1291191900, False),
        ("1", "a", 1291191960, True),
    ]


def test_row_that_was_shown_and_clicked_is_one_click() -> None:
    log = ClickLog.of([1, 1, 1], [5, 5, 5], [7, 7, 8], [False, True, False])
    assert rows_of(log) == [("1", "5", 7, True), ("1", "5", 8, False)]
    assert log.duplicates == 1


def test_rows_at_the_same_time_keep_their_order() -> None:
    items = [3, 1, 2, 0] * 50
    log = ClickLog.of([0] * 200, [f"{item}-{at}" for at, item in enumerate(items)], [1.0] * 200)
    assert [name.split("-")[1] for name in log.item_ids[log.items]] == list(map(str, range(200)))


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "user": [8.0, 1.0, None],
        "item": ["x1", "b", "c"],
        "time": [1.5, 2.5, 3],
        "click": [True, False, True],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet", Columns(clicked="click"))
    assert rows_of(log) == [("1", "b", 2.5, False), ("8", "x1", 1.5, True)]
    with raises(UsageError, "invalid_log_value", row=1, column="item", given="x1"):
        read_log(tmp_path / "log.parquet", Columns(time="item"))
    with raises(UsageError, "missing_column", column="rating", there=["user", "item", "time", "click"]):
        read_log(tmp_path / "log.parquet", Columns(rating="rating"))
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with raises(UsageError, "damaged_file", path=str(tmp_path / "bad.parquet")):
        read_log(tmp_path / "bad.parquet", Columns())


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises(UsageError, "missing_library", library="pyarrow"):
        read_log(tmp_path / "log.parquet", Columns())


@pytest.mark.parametrize(
    ("text", "columns", "code", "fields"),
    [
        ("", Columns(), "empty_log", {"rows": 0}),
        ("user,item,time\n", Columns(), "empty_log", {"rows": 0}),
        ("user,item,time\n,,5\n", Columns(), "empty_log", {"rows": 1}),
        (RATINGS, Columns(time="when"), "missing_column", {"column": "when", "there": HEADER}),
        ("user,user,item,time\n1,2,3,4\n", Columns(), "duplicate_column", {"column": "user", "count": 2}),
        ("user,item,time\n1,2,soon\n", Columns(), "invalid_log_value", {"line": 2, "column": "time", "given": "soon"}),
        ("user,item,time\n1,2,nan\n", Columns(), "invalid_log_value", {"line": 2, "column": "time", "given": "nan"}),
        (RATINGS, Columns(clicked="stars"), "invalid_log_value", {"line": 2, "column": "stars", "given": "5"}),
        ('user,item,time\n\n"1\n",2,3\n1,2,x\n', Columns(), "invalid_log_value", {"line": 5, "given": "x"}),
        ("user::item::time\n\n1::2::x\n", Columns(separator="::"), "invalid_log_value", {"line": 3, "given": "x"}),
        ("user,item,time\n1,2,3\n1,2\n", Columns(), "unequal_rows", {"line": 3, "columns": 2, "width": 3}),
        (RATINGS, Columns(separator=""), "invalid_value", {"name": "separator"}),
        (RATINGS, Columns(clicked="a", rating="b"), "two_labels", {}),
    ],
)  # fmt: skip
def test_bad_file_is_rejected(
    tmp_path: Path, text: str, columns: Columns, code: str, fields: dict[str, Any]
) -> None:
    with raises(UsageError, code, **fields):
        read_log(written(tmp_path, text), columns)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "unreadable_file", path=str(tmp_path / "none.csv")):
        read_log(tmp_path / "none.csv", Columns())


def test_ids_are_sorted_text() -> None:
    log = ClickLog.of([10, 9], ["b", "a"], [1, 2])
    np.testing.assert_array_equal(log.user_ids, ["10", "9"])
    np.testing.assert_array_equal(log.item_ids, ["a", "b"])
