"""Choice of the engine by `--engine` and `--workers`."""

import json
from pathlib import Path
from typing import Any

import pytest

from oddlot import Local, Ray
from oddlot.cli.run_command import RunCommand
from oddlot.core.support.errors import ClusterLost
from oddlot.engines.local import fork_client
from tests.command import Oddlot

SMALL = ("train", "my_jobs:small")


@pytest.fixture
def engines(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the commands' engines, and of starts and ends of fork servers. Commands do not train."""
    oddlot.starts_early = True
    found: list[Any] = []

    def fit(asked: RunCommand, settings: Any, *_: Any) -> int:
        found.append(settings.engine(asked.fleet))
        return 0

    monkeypatch.setattr(RunCommand, "_fit", fit)
    monkeypatch.setattr(fork_client, "start_early", lambda: found.append("started"))
    monkeypatch.setattr(fork_client, "end_early", lambda: found.append("ended"))
    return found


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        ("", ["started", Local(), "ended"]),
        ("--engine local --workers 3", ["started", Local(3), "ended"]),
        ("--engine ray", ["ended", Ray(), "ended"]),
        ("--engine ray --workers 4", ["ended", Ray(4), "ended"]),
        ("--engine ray --workers 2-16 --set engine.num_gpus=1", ["ended", Ray((2, 16), num_gpus=1), "ended"]),
        ("--set engine.kind=ray --set engine.workers=[2,16]", ["started", "ended", Ray((2, 16)), "ended"]),
    ],
)
def test_flags_choose_the_engine(oddlot: Oddlot, engines: list[Any], flags: str, seen: list[Any]) -> None:
    answer = oddlot(*SMALL, *flags.split())
    assert answer.code == 0, answer.err
    assert engines == seen


def test_job_file_chooses_the_engine(oddlot: Oddlot, engines: list[Any]) -> None:
    Path("job.toml").write_text('workload = "my_jobs:small"\n[engine]\nkind = "ray"\nworkers = [1, 4]\n')
    oddlot("train", "job.toml")
    oddlot("train", "job.toml", "--engine", "local", "--workers", "2")
    assert [one for one in engines if not isinstance(one, str)] == [Ray((1, 4)), Local(2)]
    oddlot.rejects("range_of_workers", "train", "job.toml", "--engine", "local", line=4)


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_run_can_resume_on_another_engine(oddlot: Oddlot, engines: list[Any], kind: str) -> None:
    """Settings that the other engine does not have are dropped."""
    own: dict[str, dict[str, Any]] = {
        "local": {"threads": 2},
        "ray": {"num_cpus": 2.0, "resources": {"spot": 1.0}},
    }
    engine = {"kind": kind, "workers": 3, **own[kind]}
    about = {
        "command": ["train", "my_jobs:small"],
        "settings": {"workload": {"name": "my_jobs:small"}, "engine": engine},
    }
    Path("run").mkdir()
    Path("run/records.jsonl").write_text("")
    settings = {"format": 2, "job": "small", "strategy": "Synchronous()", "engine": {"kind": kind}}
    Path("run/run.json").write_text(json.dumps({**settings, "about": about}))
    resume = (*SMALL, "--out", "run", "--resume", "latest")
    for flags in ((), ("--engine", "local"), ("--engine", "ray")):
        answer = oddlot(*resume, *flags)
        assert answer.code == 0, answer.err
    found = [one for one in engines if not isinstance(one, str)]
    with_own = {"local": Local(3, threads=2), "ray": Ray(3, num_cpus=2.0, resources={"spot": 1.0})}
    without = {"local": Local(3), "ray": Ray(3)}
    assert found == [
        with_own[kind],
        *((with_own if name == kind else without)[name] for name in ("local", "ray")),
    ]
    simulate = ("simulate", *SMALL[1:], "--machines", "fleet.toml", *resume[2:])
    oddlot.rejects("other_command", *simulate, command="train")


def test_lost_cluster_prints_the_resume_command(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: Any) -> int:
        raise ClusterLost("the head has ended", lost="head")

    monkeypatch.setattr(RunCommand, "_fit", fit)
    answer = oddlot.rejects("cluster_lost", *SMALL, "--engine", "ray", "--out", "run", exit_code=4)
    last = "oddlot train my_jobs:small --engine ray --resume latest --out run"
    assert answer.err.splitlines()[-1].strip() == last


def test_rejected_run_leaves_no_files(oddlot: Oddlot) -> None:
    before = sorted(Path.cwd().iterdir())
    gossip = (
        *SMALL,
        "--strategy",
        "gossip",
        "--engine",
        "ray",
        "--checkpoints",
        "saved",
        "--until",
        "epochs>=1",
    )
    oddlot.rejects("engine_without_mesh", *gossip, "--out", "run")
    assert sorted(Path.cwd().iterdir()) == before
    Path("mine").mkdir()
    oddlot.rejects("engine_without_mesh", *gossip, "--out", "mine")
    assert Path("mine").is_dir(), "it was there before"
