"""`oddlot queue replay`: the table, the files, and invalid input."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from oddlot.report.html_page import MARK
from tests.command import Oddlot
from tests.transcripts import transcribe

JOBS = """\
job_id,user,name,vc,submit_time,duration,gpus,cpus
a,ann,train,x,0,7200,8,1
b,bob,big,x,60,36000,8,1
c,ann,small,x,120,300,1,1
d,ann,small,x,180,-5,1,1
e,bob,small,x,240,,1,1
f,bob,eval,y,300,60,2,1
g,bob,cpu,y,300,60,0,4
"""


ARGUMENTS = ("queue", "replay", "jobs.csv", "--nodes", "1", "--predictions", "exact", "--policies")


@pytest.fixture
def replaying(oddlot: Oddlot, tmp_path: Path) -> Oddlot:
    """Return the command line in a folder with a trace."""
    (tmp_path / "jobs.csv").write_text(JOBS)
    return oddlot


def figures(oddlot: Oddlot, *arguments: str) -> dict[str, Any]:
    answer = oddlot(*arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)  # type: ignore[no-any-return]


def test_policies_are_compared(replaying: Oddlot) -> None:
    found = figures(replaying, *ARGUMENTS, "fifo,qssf")
    assert [(one["line"]) for one in found["problems"]] == [5, 6]
    assert (found["predictions"], found["unit"], found["jobs_without_gpu"]) == ("exact", "GPUs", 1)
    fifo, qssf = found["policies"]
    assert fifo["mean_completion"] == pytest.approx((7_200 + 43_140 + 43_380 + 60) / 4)
    assert qssf["mean_completion"] == pytest.approx((7_200 + 7_380 + 43_440 + 60) / 4)
    assert [one["virtual_cluster"] for one in qssf["by_cluster"]] == ["x", "y"]


def test_the_table_shows_policies_and_what_was_left_out(replaying: Oddlot) -> None:
    answer = replaying(*ARGUMENTS, "fifo,qssf", "--by-cluster")
    assert answer.code == 0, answer.err
    transcribe(answer.out)


def test_plots_and_a_page_are_written(replaying: Oddlot) -> None:
    assert replaying(*ARGUMENTS, "fifo,qssf", "--html", "page.html", "--svg", "plot.svg").code == 0
    page, plot = Path("page.html").read_text(), Path("plot.svg").read_text()
    assert MARK in page
    assert page.count("<figure") == 4
    root = ET.fromstring(plot)
    names = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Completion time", "Queueing delay", "GPUs in use", "fifo", "qssf"} <= names


def test_clusters_share_machines(replaying: Oddlot) -> None:
    found = figures(replaying, *ARGUMENTS, "fifo", "--shared")
    assert found["policies"][0]["gpus"] == 16
    assert found["policies"][0]["mean_completion"] == pytest.approx(
        (7_200 + 36_000 + 7_380 + 6_960) / 4, rel=0.3
    )


def test_cores_count_if_no_job_has_a_gpu(replaying: Oddlot) -> None:
    Path("jobs.csv").write_text("job_id,submit_time,duration,gpus,cpus\na,0,10,0,48\nb,0,10,0,48\n")
    found = figures(replaying, *ARGUMENTS, "fifo")
    assert (found["unit"], found["jobs_without_gpu"]) == ("cores", 0)
    assert found["policies"][0]["mean_completion"] == 15


def test_days_and_load_select_jobs_and_machines(replaying: Oddlot) -> None:
    rows = "".join(f"{day},2024-01-0{day} 12:00:00,86400,8\n" for day in range(1, 8))
    Path("jobs.csv").write_text(f"job_id,submit_time,duration,gpus\n{rows}")
    arguments = (
        "queue",
        "replay",
        "jobs.csv",
        "--policies",
        "fifo",
        "--load",
        "0.5",
        "--predictions",
        "exact",
    )
    found = figures(replaying, *arguments, "--from", "2024-01-02", "--to", "2024-01-05")["policies"][0]
    assert (found["jobs"], found["gpus"]) == (4, 24)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--policies", "fastest"), "unknown_name"),
        (("--policies", "nowhere:Policy"), "policy_not_importable"),
        (("--policies", ","), "no_policies"),
        (("--load", "1.5"), "bad_load"),
        (("--load", "0.5", "--nodes", "2"), "load_and_nodes"),
        ((), "no_machines"),
        (("--nodes", "1", "--per-node", "4", "--clusters", "x"), "job_too_large"),
        (("--clusters", "z", "--nodes", "1"), "unknown_cluster"),
        (("--from", "1.1.2024", "--nodes", "1"), "bad_day"),
        (("--from", "2024-01-01", "--nodes", "1"), "no_jobs"),
        (("--columns", "id", "--nodes", "1"), "bad_columns"),
        (("--nodes", "1", "--predictions", "guess"), "unknown_name"),
        (("--nodes", "1", "--html", "page.pdf"), "not_html"),
        (("--nodes", "1", "--svg", "no/plot.svg"), "missing_folder"),
    ],
)
def test_invalid_input_is_rejected(flags: tuple[str, ...], code: str, replaying: Oddlot) -> None:
    predictions = () if "--predictions" in flags else ("--predictions", "exact")
    replaying.rejects(code, "queue", "replay", "jobs.csv", *predictions, *flags)


def test_a_policy_of_the_current_folder_is_used(replaying: Oddlot) -> None:
    Path("last_job_first.py").write_text(
        "from oddlot.queue.core.policies.fifo import Fifo\n"
        "class Last(Fifo):\n"
        "    name = 'last'\n"
        "    def priority(self, job, now, usage):\n"
        "        return -job.request.submitted\n"
    )
    (found,) = figures(replaying, *ARGUMENTS, "last_job_first:Last")["policies"]
    assert found["policy"] == "last"
    assert found["mean_completion"] == pytest.approx((7_200 + 7_380 + 43_440 + 60) / 4)
