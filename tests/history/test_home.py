"""Paths that begin with ~, where no shell expands it."""

from pathlib import Path

import pytest

from oddlot.config.job_file import JobFile
from oddlot.history.run_folder import RunFolder
from oddlot.machines.text_files import checked_path
from oddlot.workloads.places import roots


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.toml").write_text('[workload]\nname = "digits"\n')
    assert RunFolder("~/run").path == tmp_path / "run"
    assert checked_path("~/fleet.toml") == tmp_path / "fleet.toml"
    assert roots("~") == [tmp_path]
    assert JobFile.read("~/job.toml").source.path == tmp_path / "job.toml"
