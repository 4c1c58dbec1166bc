"""Generated traces for the smoke form, in the files and formats of the public traces."""

import gzip
from pathlib import Path

from benchmarks.vc_asgd.market import ALIVE

COUNTS = ((0, 0), (6, 4), (7, 12), (8, 5), (10, 9), (14, 3), (15, 12), (30, 6))
"""Hours, and the number of available machines after this time."""
PRICES = {
    "aws_spot_prices_us.csv.gz": [
        "region,availability_zone,instance_type,product,timestamp,spot_price_usd",
        "us-east-1,us-east-1c,p3.2xlarge,Linux/UNIX,2020-03-01T10:00:00.000Z,0.95",
        "us-east-1,us-east-1c,p3.2xlarge,Linux/UNIX,2020-03-02T18:30:00.000Z,1.10",
        "us-east-1,us-east-1c,p3.2xlarge,Linux/UNIX,2020-03-09T12:00:00.000Z,0.92",
        "us-east-1,us-east-1a,p2.xlarge,Linux/UNIX,2020-03-01T10:00:00.000Z,0.27",
    ],
    "gcp_persistent_2020-03-01.out.gz": [
        "[2020-03-01T10:00:00.000Z] Created instance instance0 with 1 GPU(s) of type v100 in zone us-west1-b",
        "[2020-03-01T14:00:00.000Z] Instance instance0 not running in zone us-west1-b",
        "[2020-03-01T16:00:00.000Z] Created instance instance1 with 1 GPU(s) of type v100 in zone us-west1-b",
        "[2020-03-01T20:00:00.000Z] Instance instance1 not running in zone us-west1-b",
        "[2020-03-01T21:00:00.000Z] Instance instance2 creation failed",
    ],
    "azure_us_east.csv": ["Date,NC6,NC12", "2/24/2020,$0.12,$0.24", "2/27/2020,$0.15,$0.30"],
}


def write(folder: Path) -> None:
    """Write counts of machines, spot prices and the log of a probe."""
    counts, prices = folder / "spot_bamboo_2020", folder / "spot_gpu_2020"
    counts.mkdir()
    prices.mkdir()
    for file, unit in ALIVE.values():
        an_hour = {"seconds": 3600, "hours": 1}[unit]
        (counts / file).write_text("".join(f"{an_hour * hour},{alive}\n" for hour, alive in COUNTS))
    for file, lines in PRICES.items():
        content = "\n".join(lines).encode()
        (prices / file).write_bytes(gzip.compress(content) if file.endswith(".gz") else content)
