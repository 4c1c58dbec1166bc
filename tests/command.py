"""Helpers that run the command line in an empty folder."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from oddlot.cli import app as cli
from oddlot.core.support.errors import OddlotError
from oddlot.engines.local import fork_client
from tests.transcripts import check

tell = cli.tell
FLEET = """\
[[machines]]
name = "spot"
count = 3
seconds_per_sample = 0.01
delay = { kind = "lognormal", cv = 0.5 }
link = { megabits_per_second = 100, latency_milliseconds = 20 }
dollars_per_hour = 3.6
"""
JOB = """\
workload = "my_jobs:small"

[run]
until = "epochs>=2"

[engine]
workers = 1

[strategy]
name = "fastest_k"
k = 1
"""
MY_JOBS = """\
import oddlot, torch
from torch import nn

def small(until="epochs>=1", loss="fine"):
    print("the job's own words")
    x = torch.arange(32.0).reshape(16, 2) / 32
    losses = {"fine": nn.functional.mse_loss, "broken": broken, "unsound": unsound}
    data = x, x[:, :1]
    return oddlot.Job(lambda: nn.Linear(2, 1), data, loss=losses[loss], batch_size=4, until=until, name="small")

def broken(outputs, targets):
    raise ValueError("a fault in the user's loss")

def unsound(outputs, targets):
    return outputs.mean() * torch.nan
"""


@dataclass
class Answer:
    code: int
    out: str
    err: str
    error: OddlotError | None = None
    """Error that ended the command."""


class Oddlot:
    """The command line, run in this process because a new process would import PyTorch again."""

    starts_early = False
    """Whether to start a fork server while settings are read, as outside of tests."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> Answer:
        self.monkeypatch.setattr(sys, "argv", ["oddlot", *arguments])
        errors = list[OddlotError]()

        def noted(error: OddlotError) -> None:
            errors.append(error)
            tell(error)

        with self.monkeypatch.context() as patch:
            patch.setattr(cli, "tell", noted)
            if not self.starts_early:
                patch.setattr(fork_client, "start_early", lambda: None)
            with pytest.raises(SystemExit) as end:
                cli.main()
        out, err = self.capsys.readouterr()
        return Answer(int(end.value.code or 0), out, err, *errors)

    def rejects(self, code: str, *arguments: str, exit_code: int = 2, **fields: Any) -> Answer:
        """Run a command, assert that it ends with this error, and return its output."""
        answer = self(*arguments)
        assert answer.error, answer.err
        check(answer.error, code, **fields)
        assert answer.code == answer.error.exit_code == exit_code
        assert f"oddlot: {answer.error}\n" in answer.err
        return answer

    def json(self, *arguments: str) -> dict[str, Any]:
        answer = self(*arguments, "--json", "--quiet")
        assert answer.code == 0, answer.err
        assert answer.out.count("\n") == 1
        return json.loads(answer.out)  # type: ignore[no-any-return]
