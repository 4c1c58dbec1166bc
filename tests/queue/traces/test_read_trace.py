"""Readers of job logs: every format, and every fault of a file or a row."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.traces.read_trace import read_trace
from oddlot.queue.traces.trace import Trace
from tests.transcripts import raises

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
SACCT = "JobID|User|JobName|Partition|AllocTRES|AllocCPUS|Submit|Start|End|ElapsedRaw|State"


def trace_of(folder: Path, *lines: str, name: str = "jobs.csv", **options: Any) -> Trace:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_trace(path, **options)


def test_philly_folder_has_jobs_in_order_and_nodes(tmp_path: Path) -> None:
    jobs = [
        "job_id,submit_time,duration_s,num_gpus,gpu_seconds,vc",
        "7,2017-10-02 00:00:10,30,8,240,b",
        "5,2017-10-02 00:00:00,60,1,60,a",
    ]
    with gzip.open(tmp_path / "philly_gpu_jobs.csv.gz", "wt") as file:
        file.write("\n".join(jobs))
    (tmp_path / "philly_vc_nodes.csv").write_text("vc,node num\na,4\nb,2\n")
    trace = read_trace(tmp_path)
    assert [job.request.id for job in trace.jobs] == ["5", "7"]
    first, second = trace.jobs
    assert second.request.submitted - first.request.submitted == 10
    assert (first.duration, first.request.gpus, first.request.virtual_cluster) == (60, 1, "a")
    assert trace.nodes == {"a": 4, "b": 2}
    assert read_trace(tmp_path / "philly_gpu_jobs.csv.gz") == trace


def test_helios_log_has_states_and_queueing(tmp_path: Path) -> None:
    (tmp_path / "cluster_gpu_number.csv").write_text(
        "date,vc1,vc2,total\n2020-04-01,8,0,8\n2020-04-02,16,0,16\n"
    )
    trace = trace_of(
        tmp_path,
        HELIOS,
        "1,u1,vc1,2,8,1,COMPLETED,2020-04-02 16:32:41,2020-04-02 16:32:50,2020-04-02 16:33:00,10,9",
        "2,u2,vc1,0,4,1,CANCELLED,2020-04-02 16:32:42,2020-04-02 16:32:42,2020-04-02 16:32:47,5,0",
        "3,u2,vc1,1,4,1,NODE_FAIL,2020-04-02 16:32:43,None,None,,0",
        name="cluster_log.csv",
    )
    assert [(job.state, job.queued, job.request.gpus) for job in trace.jobs] == [
        ("completed", 9, 2),
        ("cancelled", 0, 0),
    ]
    assert [(one.line, one.reason) for one in trace.problems] == [(4, "no duration")]
    assert trace.nodes == {"vc1": 2}


def test_sacct_skips_steps_and_counts_jobs_that_have_not_ended(tmp_path: Path) -> None:
    times = "2024-03-01T10:00:00|2024-03-01T10:05:00|2024-03-01T11:05:00"
    trace = trace_of(
        tmp_path,
        SACCT,
        f"11|ann|train|gpu|billing=8,cpu=8,gres/gpu=3,gres/gpu:a100=3,node=1|8|{times}|3600|COMPLETED",
        f"11.batch||batch||cpu=8|8|{times}|3600|COMPLETED",
        f"11.0||python||cpu=8|8|{times}|3600|COMPLETED",
        f"12_4|ann|a b|gpu|cpu=2,gres/gpu:v100=1,gres/gpu:a100=1|2|{times}||CANCELLED by 1000",
        f"13|bob|eval|cpu|cpu=2|2|{times}|3600|RUNNING",
        "14|bob|eval|cpu|cpu=2|2|2024-03-01T10:00:00|Unknown|Unknown|0|CANCELLED by 1",
        f"15|bob|a|b|eval|cpu|cpu=2|2|{times}|3600|FAILED",
        f'16|bob|"quoted|cpu|cpu=2|2|{times}|3600|OUT_OF_MEMORY',
    )
    assert [job.request.gpus for job in trace.jobs] == [3, 2, 0]
    assert [job.state for job in trace.jobs] == ["completed", "cancelled", "failed"]
    assert [job.request.name for job in trace.jobs] == ["train", "a b", '"quoted']
    assert {job.duration for job in trace.jobs} == {3600}
    assert {job.queued for job in trace.jobs} == {300}
    assert [one.line for one in trace.problems] == [6, 7, 8]


@pytest.mark.parametrize(
    ("elapsed", "expected"), [("1-02:00:01", 93_601), ("00:05:00", 300), ("05:30.500", 330.5)]
)
def test_sacct_reads_elapsed_time(tmp_path: Path, elapsed: str, expected: float) -> None:
    trace = trace_of(
        tmp_path, "JobID|State|Submit|ReqGRES|Elapsed", f"1|TIMEOUT|2024-03-01T10:00:00|gpu:2|{elapsed}"
    )
    assert trace.jobs[0].duration == expected
    assert trace.jobs[0].request.gpus == 2


def test_rows_that_cannot_be_used_are_named_by_line(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        "id,submitted,duration,gpus,name",
        "a,0,10,1,fine",
        "b,0,,1,",
        "c,0,-3,1,",
        "a,1,10,1,",
        "d,soon,10,1,",
        "e,0,nan,1,",
        "f,0,inf,1,",
        "g,0,1e999,1,",
        "h,0,10,-1,",
        "i,0,10,1.5,",
        "j,0,10,1e30,",
        "k,0,10,0,",
        "l,0,10",
        "",
        "m,nan,10,1,",
        ",0,10,1,",
        'n,-5,10,1,"over',
        'two lines"',
        "o,5,ten,1,",
        "p,1e300,10,1,",
    )
    assert [job.request.id for job in trace.jobs] == ["n", "a"]
    assert {one.line: one.reason for one in trace.problems} == {
        3: "no duration",
        4: "negative duration",
        5: "the job id of line 2 again",
        6: "unreadable time of submission",
        7: "no duration",
        8: "unreadable duration",
        9: "unreadable duration",
        10: "negative number of GPUs",
        11: "unreadable number of GPUs",
        12: "more than 1,000,000 GPUs",
        13: "neither GPUs nor cores",
        14: "3 fields, but the header has 5",
        16: "no time of submission",
        17: "no job id",
        20: "unreadable duration",
        21: "unreadable time of submission",
    }


def test_plain_table_with_other_names_and_delimiter(tmp_path: Path) -> None:
    lines = (
        "When;From;To;Cards;Who",
        "2020-01-01T00:00:00Z;10;70;2;ann",
        "2020-01-01T01:00:00+01:00;70;10;2;ann",
    )
    columns = {"submitted": "When", "start": "From", "end": "To", "gpus": "Cards", "user": "Who"}
    trace = trace_of(tmp_path, *lines, columns=columns)
    assert (trace.jobs[0].duration, trace.jobs[0].request.user) == (60, "ann")
    assert trace.jobs[0].request.submitted == 1_577_836_800
    assert trace.problems[0].reason == "negative duration"


@pytest.mark.parametrize(
    ("header", "options", "code", "name"),
    [
        ("id,submitted,gpus", {}, "missing_column", "duration"),
        ("id,duration,gpus", {}, "missing_column", "submitted"),
        ("id,submitted,duration", {}, "missing_column", "gpus"),
        ("id,submitted,duration,gpus", {"columns": {"user": "Who"}}, "missing_column", "who"),
        ("id,submitted,duration,gpus", {"kind": "helios"}, "missing_column", "cpu_num"),
    ],
)
def test_missing_column_is_named_beside_the_existing_ones(
    tmp_path: Path, header: str, options: dict[str, Any], code: str, name: str
) -> None:
    with raises(UsageError, code, name=name) as caught:
        trace_of(tmp_path, header, "1,2,3,4", **options)
    assert caught.value.fields["columns"] == tuple(header.split(","))


def test_unknown_kind_or_field_is_an_error(tmp_path: Path) -> None:
    header = "id,submitted,duration,gpus"
    wrong: list[dict[str, Any]] = [{"kind": "phily"}, {"columns": {"length": "duration"}}]
    for options in wrong:
        with raises(UsageError, "unknown_name"):
            trace_of(tmp_path, header, "1,2,3,4", **options)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "no_header"),
        (b"\n1,2\n", "no_header"),
        (b"id,submitted,duration,gpus\n", "no_jobs"),
        (b"id,submitted,duration,gpus\n1,2,-3,4\n", "no_jobs"),
        (b"\x7fELF\x00\x01\x02\xff\xfe" * 100, "not_utf8"),
        ("id,submitted,duration,gpus\n1,2,3,4\n".encode("utf-16"), "not_utf8"),
        ("id,submitted,duration,gpus,name\n1,2,3,4,Jürgen\n".encode("latin-1"), "not_utf8"),
        (b"id,submitted,duration,gpus\n1,2,3," + b"9" * 200_000, "invalid_csv"),
        (b"\x00" * 1000, "missing_column"),
    ],
)
def test_file_without_usable_text_is_an_error(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with raises(UsageError, code):
        read_trace(path)


def test_folder_without_jobs_and_missing_file_are_errors(tmp_path: Path) -> None:
    for path, code in ((tmp_path, "no_trace"), (tmp_path / "none.csv", "unreadable_file")):
        with raises(UsageError, code):
            read_trace(path)


@pytest.mark.skipif(not os.environ.get("ODDLOT_DATA"), reason="needs ODDLOT_DATA")
def test_recorded_philly_jobs_are_read_completely() -> None:
    trace = read_trace(Path(os.environ["ODDLOT_DATA"]) / "trace_philly")
    assert (len(trace.jobs), len(trace.problems), len(trace.nodes)) == (66_815, 0, 11)
