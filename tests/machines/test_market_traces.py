"""Published market traces: formats, errors, and the original files if they are available."""

import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oddlot import UsageError
from oddlot.machines import Steps
from oddlot.machines.market_traces import (
    read_alive,
    read_aws_prices,
    read_azure_prices,
    read_gcp_probe,
    read_skypilot,
)
from tests.machines.files import short_id, written
from tests.transcripts import raises

AWS = """\
region,availability_zone,instance_type,product,timestamp,spot_price_usd
us-east-1,us-east-1a,p3.2xlarge,Linux/UNIX,2020-01-01T01:00:00.000Z,1.5
us-east-1,us-east-1a,p3.2xlarge,Linux/UNIX,2020-01-01T00:00:00.000Z,1.25
us-east-1,us-east-1b,p3.2xlarge,Linux/UNIX,2020-01-01T00:30:00.000Z,9
"""
AZURE = "Date,NC6,NC12\n2/28/2020,$0.5,$1\n2/29/2020,$0.5,$2\n3/1/2020,$0.75,$2\n"
GCP = """\
[2020-03-01T10:00:00.000Z] Created instance i0 with 1 GPU(s) of type nvidia-tesla-v100 in zone us-west1-b
[2020-03-01T10:00:01.000Z] Instance i0 running in zone us-west1-b
[2020-03-01T10:00:02.000Z] Created instance i1 with 8 GPU(s) of type nvidia-tesla-k80 in zone us-west1-b
[2020-03-01T10:00:02.500Z] Created instance i8 with 8 GPU(s) of type nvidia-tesla-v100 in zone us-west1-b
[2020-03-01T10:00:03.000Z] Created instance i9 with 8 GPU(s) of type nvidia-tesla-v100 in zone us-east1-c
Deleted [https://www.googleapis.com/compute].
[2020-03-01T10:15:00.000Z] Instance i1 not running in zone us-west1-b
[2020-03-01T10:30:00.000Z] Instance i0 not running in zone us-west1-b
[2020-03-01T10:30:05.000Z] Successfully deleted instance i0
[2020-03-01T10:45:00.000Z] Instance i2 creation failed
[2020-03-01T11:00:00.000Z] Created instance i3 with 1 GPU(s) of type nvidia-tesla-v100 in zone us-west1-b
"""
aws = partial(read_aws_prices, instance="p3.2xlarge", zone="us-east-1a")
azure = partial(read_azure_prices, size="NC6")
inverted = partial(read_skypilot, inverted=True)
gcp = partial(read_gcp_probe, gpu="nvidia-tesla-v100", zone="us-west1-b")


def skypilot(gap: float, data: list[float]) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap}, "data": data})


def test_every_trace_format_is_read(tmp_path: Path) -> None:
    def file(text: str) -> Path:
        return written(tmp_path / "trace", text)

    assert read_alive(file("0,8\n12.5,8\n12.5,6\n\n30,7\n")) == Steps((0.0, 12.5, 30.0), (8.0, 6.0, 7.0))
    spreadsheet = file("\ufeff0,1\r\n1,0\r\n")
    assert read_alive(spreadsheet, "hours") == Steps((0.0, 3600.0), (1.0, 0.0))
    assert read_alive(file("time,alive\n0,1\n0.5,0\n"), "hours") == Steps((0.0, 1800.0), (1.0, 0.0))
    assert aws(file(AWS)) == aws(file(AWS.replace(".000Z", ""))) == Steps((0.0, 3600.0), (1.25, 1.5))
    assert read_azure_prices(file(AZURE), "NC6") == Steps((0.0, 2 * 86400.0), (0.5, 0.75))
    assert gcp(file(GCP)) == Steps((0.0, 1800.0, 3600.0), (1.0, 0.0, 1.0))
    seconds, counted = (0.0, 1200.0, 2400.0, 3000.0), (4.0, 16.0, 0.0, 0.0)
    one = file(skypilot(600, [0, 0, 1, 1, 0]))
    assert read_skypilot(one) == Steps(seconds, (0.0, 1.0, 0.0, 0.0)), "1 is an available instance"
    assert read_skypilot(one, inverted=True) == Steps(seconds, (1.0, 0.0, 1.0, 1.0)), "1 is a preempted one"
    assert read_skypilot(file(skypilot(600, [4, 16, 0]))) == Steps((0.0, 600.0, 1200.0, 1800.0), counted)
    packed = written(tmp_path / "trace.csv.gz", AWS)
    assert read_aws_prices(packed, "p3.2xlarge", "us-east-1b") == Steps((0.0,), (9.0,))


@pytest.mark.parametrize(
    ("read", "text", "code", "fields"),
    [
        (read_alive, "", "empty_file", {}),
        (read_alive, "0,8\n7", "invalid_line", {"line": 2, "given": "7"}),
        (read_alive, "0,8\nnan,7", "invalid_line", {"line": 2, "given": "nan,7"}),
        (read_alive, "0,8\n5,-1", "invalid_line", {"line": 2, "given": "5,-1"}),
        (read_alive, "0,8\n5,1.5", "fractional_count", {"line": 2, "given": 1.5}),
        (read_alive, "0,8\n5,7\n4,6", "times_out_of_order", {"line": 3, "given": 4}),
        (read_alive, b"\xff\xfe", "not_utf8", {"byte": 0}),
        (read_alive, None, "unreadable_file", {}),
        (aws, "a,b\n1,2", "missing_column", {"line": 1, "name": "availability_zone"}),
        (aws, AWS.replace("1.25", "-1"), "invalid_price", {"line": 3, "given": "-1"}),
        (aws, AWS.replace("1.25", "inf"), "invalid_price", {"line": 3, "given": "inf"}),
        (aws, AWS.replace("2020-01-01T01", "noon"), "invalid_time", {"line": 2, "given": "noon:00:00.000Z"}),
        (aws, AWS.replace("1a", "1c"), "unknown_name", {"kind": "zone of p3.2xlarge", "given": "us-east-1a"}),
        (aws, AWS.replace("p3.2", "p3.8"), "unknown_name", {"kind": "instance", "nearest": "p3.8xlarge"}),
        (aws, AWS + "x" * 200_000, "invalid_csv", {}),
        (azure, "", "missing_column", {"line": 1, "name": "Date"}),
        (azure, AZURE.replace("NC6", "NC7"), "unknown_name", {"kind": "size", "nearest": "NC7"}),
        (azure, AZURE.replace("2/29/2020", "2/30/2020"), "invalid_day", {"line": 3, "given": "2/30/2020"}),
        (azure, AZURE.replace("$0.75", "free"), "invalid_price", {"line": 4, "given": "free"}),
        (gcp, GCP.replace("v100", "p100"), "unknown_name", {"kind": "gpu", "nearest": "nvidia-tesla-p100"}),
        (gcp, GCP.replace("t1-b", "t1-c"), "unknown_name", {"given": "us-west1-b", "nearest": "us-west1-c"}),
        (
            gcp,
            GCP.replace("v100 in zone us-west1-b", "v100 in zone x"),
            "unknown_name",
            {"given": "us-west1-b"},
        ),
        (gcp, GCP.replace("1 GPU", "8 GPU"), "unknown_name", {"given": "1", "nearest": None}),
        (gcp, "0,4\n3600,2\n", "other_format", {}),
        (
            gcp,
            GCP.replace("01T10:30:00", "later"),
            "invalid_time",
            {"line": 8, "given": "2020-03-later.000Z"},
        ),
        (read_skypilot, "[1, 2", "invalid_json", {}),
        (read_skypilot, "[" * 100_000, "invalid_json", {}),
        (read_skypilot, "[1, 2]", "other_format", {}),
        (read_skypilot, skypilot(10**400, [1]), "invalid_value", {"name": "gap_seconds"}),
        (read_skypilot, skypilot(1e16, [1]), "invalid_value", {"name": "gap_seconds", "given": 1e16}),
        (read_skypilot, skypilot(0, [1]), "invalid_value", {"name": "gap_seconds", "given": 0}),
        (read_skypilot, skypilot(5, [0.5]), "invalid_value", {"name": "data", "given": [0.5]}),
        (read_skypilot, skypilot(5, []), "invalid_value", {"name": "data", "given": []}),
        (inverted, skypilot(5, [1, 0, 2]), "inverted_counts", {"most": 2}),
    ],
    ids=short_id,
)
def test_invalid_trace_names_the_line(
    tmp_path: Path, read: Callable[[Path], Steps], text: str | bytes | None, code: str, fields: dict[str, Any]
) -> None:
    path = tmp_path / "trace"
    if text is not None:
        written(path, text)
    with raises(UsageError, code, path=str(path), **fields):
        read(path)


def test_truncated_gzip_trace_raises(tmp_path: Path) -> None:
    with raises(UsageError, "damaged_file", path=str(tmp_path / "half.gz")):
        aws(written(tmp_path / "half.gz", gzip.compress(AWS.encode())[:-20]))
    with raises(UsageError, "unreadable_file", path=str(tmp_path / "plain.gz")):
        aws(written(tmp_path / "plain.gz", AWS.encode()))


DATA = Path(os.environ.get("ODDLOT_DATA", "nowhere"))
real = pytest.mark.skipif(
    not (DATA / "spot_gpu_2020").is_dir() or not (DATA / "spot_bamboo_2020").is_dir(),
    reason="ODDLOT_DATA names no folder with spot_gpu_2020 and spot_bamboo_2020",
)


@real
def test_published_traces_are_read() -> None:
    prices = read_aws_prices(DATA / "spot_gpu_2020" / "aws_spot_prices_us.csv.gz", "p3.2xlarge", "us-east-1b")
    assert 0.918 <= min(prices.values) < max(prices.values) < 3.06
    assert prices.seconds[-1] > 80 * 86400
    azure_prices = read_azure_prices(DATA / "spot_gpu_2020" / "azure_us_east.csv", "NC6")
    assert set(azure_prices.values) == {0.12276}
    for log in ("gcp_persistent_2020-03-01.out.gz", "gcp_persistent_2020-03-04.out.gz"):
        gpus = 1 if "01" in log else 8
        up = read_gcp_probe(DATA / "spot_gpu_2020" / log, "nvidia-tesla-v100", "us-west1-b", gpus)
        assert set(up.values) == {0.0, 1.0}
        assert len(up.values) >= 8
    for path in sorted((DATA / "spot_bamboo_2020").glob("*.csv")):
        in_hours = path.name.endswith("2020-11-20-to-2020-11-23.csv")
        alive = read_alive(path, "hours" if in_hours else "seconds")
        assert 8 * 3600 < alive.seconds[-1] < 100 * 3600
        assert 8 <= max(alive.values) <= 16
