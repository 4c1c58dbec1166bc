"""Published traces: the form of each, its faults, and the real files where they are."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oddlot import Steps, UsageError
from oddlot.machines.traces import (
    read_alive,
    read_aws_prices,
    read_azure_prices,
    read_gcp_probe,
    read_skypilot,
)

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
SKYPILOT = {"metadata": {"gap_seconds": 600}, "data": [0, 0, 1, 1, 0]}


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_every_form_is_read(tmp_path: Path) -> None:
    def file(text: str) -> Path:
        return written(tmp_path, text)

    assert read_alive(file("0,8\n12.5,8\n12.5,6\n\n30,7\n")) == Steps((0.0, 12.5, 30.0), (8.0, 6.0, 7.0))
    assert read_alive(file("\ufeff0,1\r\n1,0\r\n"), "hours") == Steps((0.0, 3600.0), (1.0, 0.0)), (
        "a spreadsheet's"
    )
    assert read_alive(file("time,alive\n0,1\n0.5,0\n"), "hours") == Steps((0.0, 1800.0), (1.0, 0.0))
    assert read_aws_prices(file(AWS), "p3.2xlarge", "us-east-1a") == Steps((0.0, 3600.0), (1.25, 1.5))
    assert read_azure_prices(file(AZURE), "NC6") == Steps((0.0, 2 * 86400.0), (0.5, 0.75))
    steps = read_gcp_probe(file(GCP), "nvidia-tesla-v100", "us-west1-b")
    assert steps == Steps((0.0, 1800.0, 3600.0), (1.0, 0.0, 1.0))
    assert read_skypilot(file(json.dumps(SKYPILOT))) == Steps(
        (0.0, 1200.0, 2400.0, 3000.0), (1.0, 0.0, 1.0, 1.0)
    )
    counts = SKYPILOT | {"data": [4, 16, 0]}
    assert read_skypilot(file(json.dumps(counts))) == Steps(
        (0.0, 600.0, 1200.0, 1800.0), (4.0, 16.0, 0.0, 0.0)
    )
    packed = written(tmp_path, gzip.compress(AWS.encode()), "trace.csv.gz")
    assert read_aws_prices(packed, "p3.2xlarge", "us-east-1b") == Steps((0.0,), (9.0,))


def aws(path: Path) -> Steps:
    return read_aws_prices(path, "p3.2xlarge", "us-east-1a")


def azure(path: Path) -> Steps:
    return read_azure_prices(path, "NC6")


def gcp(path: Path) -> Steps:
    return read_gcp_probe(path, "nvidia-tesla-v100", "us-west1-b")


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_alive, "", "it holds nothing"),
        (read_alive, "0,8\n7", "line 2: '7' is not `time,alive`"),
        (read_alive, "0,8\nnan,7", "line 2: 'nan,7' is not `time,alive`"),
        (read_alive, "0,8\n5,-1", "line 2: '5,-1' is not `time,alive`"),
        (read_alive, "0,8\n5,1.5", "line 2: how many are alive must be a whole number"),
        (read_alive, "0,8\n5,7\n4,6", "line 3: the times of a trace must not go back"),
        (lambda path: read_alive(path, "days"), "0,8", "unit = 'days' must be seconds or hours"),
        (read_alive, b"\xff\xfe", "is not a text in UTF-8: byte 0"),
        (aws, "a,b\n1,2", "line 1: no column availability_zone"),
        (aws, AWS.replace("1.25", "-1"), "line 3: '-1' is no price in dollars"),
        (aws, AWS.replace("1.25", "inf"), "line 3: 'inf' is no price in dollars"),
        (aws, AWS.replace("2020-01-01T01", "noon"), "line 2: 'noon:00:00.000Z' is no time"),
        (aws, AWS.replace("us-east-1a", "us-east-1c"), "no price of p3.2xlarge in us-east-1a: did you mean"),
        (
            aws,
            AWS.replace("p3.2xlarge", "p3.8xlarge"),
            "no price of p3.2xlarge anywhere: did you mean `p3.8xlarge`",
        ),
        (azure, AZURE.replace("NC6", "NC7"), "it has no column NC6: did you mean `NC7`"),
        (azure, AZURE.replace("2/29/2020", "2/30/2020"), "line 3: '2/30/2020' is no day"),
        (azure, AZURE.replace("$0.75", "free"), "line 4: 'free' is no price"),
        (
            gcp,
            GCP.replace("v100", "p100"),
            "no instance has nvidia-tesla-v100: did you mean `nvidia-tesla-p100`",
        ),
        (
            gcp,
            GCP.replace("west1-b", "west1-c"),
            "v100 was not created in us-west1-b: did you mean `us-west1-c`",
        ),
        (
            gcp,
            GCP.replace("1 GPU", "8 GPU"),
            "v100 in us-west1-b was not created with 1 GPU(s): there are: 8",
        ),
        (
            gcp,
            GCP.replace("v100 in zone us-west1-b", "v100 in zone us-west1-d"),
            "v100 was not created in us-west1-b: did you mean `us-west1-d`",
        ),
        (gcp, "0,4\n3600,2\n", "it is no log of a probe"),
        (azure, "", "it has no column Date"),
        (gcp, GCP.replace("[2020-03-01T10:30:00.000Z]", "[later]"), "line 8: 'later' is no time"),
        (read_skypilot, "[1, 2", "it is no JSON"),
        (read_skypilot, "[" * 100_000, "it is no JSON"),
        (read_skypilot, "[1, 2]", 'it is not {"metadata"'),
        (
            read_skypilot,
            f'{{"metadata": {{"gap_seconds": 1{"0" * 400}}}, "data": [1]}}',
            "is no number above 0, and below 1e+15",
        ),
        (
            read_skypilot,
            '{"metadata": {"gap_seconds": 1e16}, "data": [1]}',
            "gap_seconds = 1e+16 is no number",
        ),
        (
            read_skypilot,
            '{"metadata": {"gap_seconds": 0}, "data": [1]}',
            "gap_seconds = 0 is no number above 0",
        ),
        (
            read_skypilot,
            '{"metadata": {"gap_seconds": 5}, "data": [0.5]}',
            "data is no list of whole numbers",
        ),
        (read_skypilot, '{"metadata": {"gap_seconds": 5}, "data": []}', "data is no list of whole numbers"),
    ],
)
def test_a_bad_file_is_told_its_line(
    tmp_path: Path, read: Callable[[Path], Steps], text: str | bytes, told: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        read(written(tmp_path, text))
    assert told in str(refusal.value)


def test_no_file_and_half_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absent cannot be read: No such file"):
        read_alive(tmp_path / "absent")
    half = written(tmp_path, gzip.compress(AWS.encode())[:-20], "half.gz")
    with pytest.raises(UsageError, match=r"half\.gz is not a whole gzip file"):
        aws(half)
    with pytest.raises(UsageError, match=r"plain.gz cannot be read: Not a gzipped file"):
        aws(written(tmp_path, AWS, "plain.gz"))


DATA = Path(os.environ.get("ODDLOT_DATA", "nowhere"))
real = pytest.mark.skipif(
    not (DATA / "spot_gpu_2020").is_dir() or not (DATA / "spot_bamboo_2020").is_dir(),
    reason="ODDLOT_DATA names no folder with spot_gpu_2020 and spot_bamboo_2020",
)


@real
def test_the_real_traces_are_read() -> None:
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


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    naive = AWS.replace(".000Z", "")
    assert aws(written(tmp_path, naive)) == aws(written(tmp_path, AWS))
